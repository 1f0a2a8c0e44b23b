// What the device is told of the sequences of a step, and what it counts on by itself.
#include "model/cuda/sequence_tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "tests/attention/cuda/device_memory.h"

namespace ziggurat::cuda {
namespace {

constexpr int kLayers = 3, kRows = 4;
constexpr uint32_t kSlotsPerBlock = 16;

/// A sequence whose layers each have one growing segment of bf16.
class GrowingSequence {
 public:
  GrowingSequence(uint64_t id, int slots) : blocks_(40), slots_(slots) {
    std::iota(blocks_.begin(), blocks_.end(), static_cast<BlockId>(100 * id));
    input_.sequence = id;
    for (int layer = 0; layer < kLayers; ++layer) {
      SegmentView& view = views_.emplace_back();
      view.encoding = Encoding::kBf16;
      view.num_kv_heads = 2;
      view.keys = {blocks_.data(), kSlotsPerBlock, 64, 0, 0};
      view.values = {blocks_.data(), kSlotsPerBlock, 64, 32, 0};
    }
    targets_.resize(kLayers);
    layers_.resize(kLayers);
  }

  /// The input of the next step, as SequenceStore::Append gives it: layers are looked at where a
  /// block is taken.
  const DecodeInput& Append() {
    ++input_.step;
    if (input_.step == 1 || slots_ % static_cast<int>(kSlotsPerBlock) == 0) {
      for (int layer = 0; layer < kLayers; ++layer) {
        views_[layer].num_slots = slots_ + 1;
        targets_[layer] = {0, slots_};
        layers_[layer] = {{&views_[layer], 1}, {&targets_[layer], 1}, 0, input_.step};
      }
      input_.changed_at = input_.step;
    }
    ++slots_;
    input_.position = slots_ - 1;
    input_.layers = layers_;
    return input_;
  }
  /// What Append will give next, but for what a layer counts, as SequenceStore::PrepareAppend does
  /// it; nothing where no block is to be taken.
  std::optional<DecodeInput> Prepare() {
    if (slots_ % static_cast<int>(kSlotsPerBlock) != 0) return std::nullopt;
    DecodeInput next = input_;
    next.changed_at = ++next.step;
    ++next.position;
    for (int layer = 0; layer < kLayers; ++layer) {
      views_[layer].num_slots = slots_;
      targets_[layer] = {0, slots_};
      layers_[layer].as_of = next.step;
    }
    return next;
  }
  int slots() const { return slots_; }

 private:
  std::vector<BlockId> blocks_;
  int slots_;
  std::vector<SegmentView> views_;
  std::vector<TokenTarget> targets_;
  std::vector<DecodeInput::Layer> layers_;
  DecodeInput input_;
};

std::vector<DecodeInput> AppendTo(const std::vector<GrowingSequence*>& sequences) {
  std::vector<DecodeInput> inputs;
  for (GrowingSequence* sequence : sequences) inputs.push_back(sequence->Append());
  return inputs;
}

/// Tables, and what the device makes of them.
class TablesOnDevice {
 public:
  explicit TablesOnDevice(uint32_t words = 1 << 13)
      : words_(words),
        tables_({4, 2, 16, 1}, ElementType::kF32, kLayers, kRows, words, {}),
        device_(tables_.table().mirror().data(), words * sizeof(uint32_t)) {}

  /// Patches that the step took.
  size_t Step(const std::vector<GrowingSequence*>& sequences) {
    const std::vector<DecodeInput> inputs = AppendTo(sequences);
    const size_t prepared = tables_.table().patches().size();
    EXPECT_TRUE(tables_.Update(inputs).ok());
    patches_of_update_ = tables_.table().patches().size() - prepared;
    const size_t patches = Send();
    ExpectStep(sequences, inputs);
    return patches;
  }
  /// As the decoder has it: where there is no room in the table for all, each half by itself.
  /// Returns how often there was none.
  int StepInParts(absl::Span<GrowingSequence* const> sequences,
                  absl::Span<const DecodeInput> inputs) {
    const bool has_room = tables_.Update(inputs).ok();
    Send();
    if (has_room) {
      ExpectStep(sequences, inputs);
      return 0;
    }
    if (inputs.size() == 1) return 1;
    const size_t half = inputs.size() / 2;
    return 1 + StepInParts(sequences.first(half), inputs.first(half)) +
           StepInParts(sequences.subspan(half), inputs.subspan(half));
  }
  /// How many sequences took blocks ahead. Those that are in no step yet, or no more, are passed
  /// over.
  size_t Prepare(const std::vector<GrowingSequence*>& sequences) {
    std::vector<DecodeInput> inputs;
    for (GrowingSequence* sequence : sequences) {
      if (const auto input = sequence->Prepare()) inputs.push_back(*input);
    }
    tables_.Prepare(inputs);
    return inputs.size();
  }
  /// Of the last step, those that Prepare had not found.
  size_t patches_of_update() const { return patches_of_update_; }
  uint32_t used_words() { return tables_.table().used_words(); }

 private:
  /// Patches that were sent.
  size_t Send() {
    const auto patches = tables_.table().patches();
    const auto count = static_cast<uint32_t>(patches.size());
    if (count > 0) {
      OnDevice device_patches(patches.data(), count * sizeof(TablePatch));
      OnDevice device_count(&count, sizeof(count));
      LaunchApplyPatches(device_patches.get<TablePatch>(), device_count.get<uint32_t>(),
                         static_cast<int>(count), device_.get<uint32_t>(), TestStream().get());
      TestStream().Synchronize();
    }
    tables_.table().Sent();
    return count;
  }
  void ExpectStep(absl::Span<GrowingSequence* const> sequences,
                  absl::Span<const DecodeInput> inputs) {
    std::vector<int32_t> positions(kRows), steps(kRows);
    for (size_t i = 0; i < inputs.size(); ++i) {
      positions[tables_.row(i)] = inputs[i].position;
      steps[tables_.row(i)] = inputs[i].step;
    }
    OnDevice device_positions(positions.data(), kRows * 4), device_steps(steps.data(), kRows * 4);
    LaunchBeginStep(tables_.step_items(), device_positions.get<int32_t>(),
                    device_steps.get<int32_t>(), device_.get<uint32_t>(), TestStream().get());
    std::vector<uint32_t> words(words_);
    device_.CopyTo(words.data());
    const DeviceCache cache{nullptr, 0, words.data()};
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (int layer = 0; layer < kLayers; ++layer) {
        const DeviceItem& item = tables_.items(layer, kRows).item(cache, tables_.row(i));
        const DeviceSegment& segment = cache.segment(item, 0);
        EXPECT_EQ(segment.num_slots, sequences[i]->slots());
        EXPECT_EQ(cache.target(item, 0).slot, sequences[i]->slots() - 1);
        EXPECT_EQ(item.position, sequences[i]->slots() - 1);
        const uint32_t last = (sequences[i]->slots() - 1) / kSlotsPerBlock;
        EXPECT_EQ(words[segment.keys.blocks + last], 100 * inputs[i].sequence + last);
      }
    }
    ExpectWhatTheMirrorSays(words, inputs.size());
  }
  /// But for words that the device counts on itself. Of freed words too: whoever has them next is
  /// sent only what is another.
  void ExpectWhatTheMirrorSays(const std::vector<uint32_t>& words, size_t rows) {
    std::vector<bool> is_devices(words_, false);
    const StepItems& items = tables_.step_items();
    for (int i = 0; i < kLayers * kRows; ++i) {
      is_devices[items.items + (i * sizeof(DeviceItem) + offsetof(DeviceItem, position)) / 4] =
          true;
      if (i % kRows >= static_cast<int>(rows)) continue;
      const auto* growth = reinterpret_cast<const DeviceGrowth*>(words.data() + items.growths) + i;
      is_devices[growth->num_slots] = is_devices[growth->slot] = true;
    }
    for (uint32_t word = 1; word < words_; ++word) {
      if (is_devices[word]) continue;
      ASSERT_EQ(words[word], tables_.table().mirror()[word]) << "word " << word;
    }
  }

  const uint32_t words_;
  SequenceTables tables_;
  OnDevice device_;
  size_t patches_of_update_ = 0;
};

/// Sequences that come and go at random.
class Crowd {
 public:
  /// One comes in every `coming` steps while there is room, of up to `most_slots`, and one in every
  /// `going` goes.
  Crowd(uint32_t seed, uint32_t coming, uint32_t going, int most_slots)
      : random_(seed), coming_(coming), going_(going), most_slots_(most_slots) {}

  /// Those of the next step, in any order.
  std::vector<GrowingSequence*> Next() {
    if (live_.size() < kRows && random_() % coming_ == 0) {
      live_.push_back(std::make_unique<GrowingSequence>(++count_, 1 + random_() % most_slots_));
    }
    if (!live_.empty() && random_() % going_ == 0) {
      live_.erase(live_.begin() + random_() % live_.size());
    }
    std::shuffle(live_.begin(), live_.end(), random_);
    std::vector<GrowingSequence*> all;
    for (const auto& sequence : live_) all.push_back(sequence.get());
    return all;
  }
  /// Two thirds of them, of which some will be gone.
  std::vector<GrowingSequence*> SomeOf(std::vector<GrowingSequence*> all) {
    std::erase_if(all, [&](GrowingSequence*) { return random_() % 3 == 0; });
    return all;
  }
  /// How many have come.
  uint64_t count() const { return count_; }

 private:
  std::mt19937 random_;
  uint32_t coming_, going_;
  int most_slots_;
  std::vector<std::unique_ptr<GrowingSequence>> live_;
  uint64_t count_ = 0;
};

TEST(SequenceTables, CountOnWithoutAPatchUntilABlockIsTaken) {
  TablesOnDevice tables;
  const uint32_t empty = tables.used_words();
  GrowingSequence a(1, 20), b(2, 3);
  EXPECT_GT(tables.Step({&a, &b}), 0u);
  int moves = 0;
  for (int step = 0; step < 60; ++step) {
    const bool takes = a.slots() % 16 == 0 || b.slots() % 16 == 0;
    const size_t patches = tables.Step({&a, &b});
    if (!takes) {
      EXPECT_EQ(patches, 0u) << "step " << step;
    } else {
      // A block's number; where a list moves records change, and what the device goes on from.
      EXPECT_LE(patches, size_t{kLayers} * 24) << "step " << step;
      if (patches > size_t{2} * kLayers) ++moves;
    }
  }
  EXPECT_LE(moves, 3);  // of six blocks that were taken: lists are short yet
  tables.Step({});
  EXPECT_EQ(tables.used_words(), empty);
}

TEST(SequenceTables, HaveNothingToFindInAStepThatWasPrepared) {
  TablesOnDevice tables;
  GrowingSequence a(1, 20), b(2, 3);
  tables.Step({&a, &b});
  size_t prepared = 0;
  for (int step = 0; step < 200; ++step) {
    prepared += tables.Prepare({&a, &b});
    tables.Step({&a, &b});
    EXPECT_EQ(tables.patches_of_update(), 0u) << "step " << step;
  }
  EXPECT_GE(prepared, 24u);
}

TEST(SequenceTables, GoOnWhereTheTableWasFull) {
  int refused = 0;
  for (const uint32_t words : {700, 850, 1000, 1200, 1500}) {
    TablesOnDevice tables(words);
    Crowd crowd(/*seed=*/words, /*coming=*/2, /*going=*/6, /*most_slots=*/300);
    for (int step = 0; step < 250; ++step) {
      const std::vector<GrowingSequence*> batch = crowd.Next();
      refused += tables.StepInParts(batch, AppendTo(batch));
      tables.Prepare(crowd.SomeOf(batch));
      if (HasFailure()) FAIL() << words << " words, step " << step;
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(SequenceTables, FollowSequencesThatComeAndGo) {
  TablesOnDevice tables;
  Crowd crowd(/*seed=*/5, /*coming=*/3, /*going=*/5, /*most_slots=*/40);
  size_t prepared = 0;
  for (int step = 0; step < 400; ++step) {
    const std::vector<GrowingSequence*> batch = crowd.Next();
    tables.Step(batch);
    prepared += tables.Prepare(crowd.SomeOf(batch));
  }
  EXPECT_GE(crowd.count(), 20u);
  EXPECT_GT(prepared, 5u);
}

}  // namespace
}  // namespace ziggurat::cuda
