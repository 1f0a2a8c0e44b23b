// The parts of the decoder on a device, each by itself.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "model/cuda/product_library.h"
#include "model/cuda/seen_lists.h"
#include "model/cuda/sequence_tables.h"
#include "model/cuda/token_draws.h"
#include "tests/attention/cuda/device_memory.h"
#include "tests/attention/test_cache.h"

namespace ziggurat::cuda {
namespace {

// ---- Matrix products ----------------------------------------------------------------------------

struct ProductCase {
  ElementType element, out_element;
  int rows, in_features, out_features;
  bool has_bias, accumulates;
};

std::vector<float> ExpectedProduct(const ProductCase& c, const Tensor& x, const Tensor& weight,
                                   const Tensor& bias, const Tensor& before) {
  std::vector<float> expected;
  for (int r = 0; r < c.rows; ++r) {
    for (int o = 0; o < c.out_features; ++o) {
      double sum = c.has_bias ? bias.at(o) : 0;
      if (c.accumulates) sum += before.at(expected.size());
      for (int i = 0; i < c.in_features; ++i) {
        sum += double{x.at(size_t{1} * r * c.in_features + i)} *
               weight.at(size_t{1} * o * c.in_features + i);
      }
      expected.push_back(static_cast<float>(sum));
    }
  }
  return expected;
}

enum class Way : uint8_t { kPlain, kLibrary, kOneRow };

TEST(CudaProducts, AreTheSumInEveryWay) {
  auto library = ProductLibrary::Create(&TestStream());
  ASSERT_TRUE(library.ok()) << library.status();
  constexpr ElementType kF32 = ElementType::kF32, kBf16 = ElementType::kBf16;
  for (const ProductCase& c : {ProductCase{kF32, kF32, 1, 48, 96, false, false},
                               ProductCase{kF32, kF32, 5, 64, 24, true, true},
                               ProductCase{kBf16, kBf16, 3, 128, 40, true, false},
                               ProductCase{kBf16, kF32, 16, 80, 64, false, true},
                               ProductCase{kBf16, kF32, 2, 72, 304, false, false},
                               ProductCase{kBf16, kBf16, 5, 72, 40, true, false},
                               ProductCase{kBf16, kF32, 1, 8, 1, false, true},
                               ProductCase{kBf16, kBf16, 1, 1032, 7, true, false},
                               ProductCase{kBf16, kF32, 1, 4360, 33, true, true},
                               ProductCase{kBf16, kBf16, 1, 264, 16391, true, true},
                               ProductCase{kBf16, kBf16, 1, 2056, 16387, false, true},
                               ProductCase{kBf16, kBf16, 4, 264, 9, false, false}}) {
    const Tensor x = RandomTensor(c.element, size_t{1} * c.rows * c.in_features, 1);
    const Tensor weight = RandomTensor(c.element, size_t{1} * c.out_features * c.in_features, 2);
    const Tensor bias = RandomTensor(kF32, c.out_features, 3);
    const Tensor before = RandomTensor(c.out_element, size_t{1} * c.rows * c.out_features, 4);
    const std::vector<float> expected = ExpectedProduct(c, x, weight, bias, before);
    OnDevice device_x(x.data(), x.bytes.size()), device_w(weight.data(), weight.bytes.size());
    OnDevice device_bias(bias.data(), bias.bytes.size());
    for (const Way way : {Way::kPlain, Way::kLibrary, Way::kOneRow}) {
      OnDevice y(before.data(), before.bytes.size());
      const Product product{c.element,      device_x.get(),
                            device_w.get(), c.has_bias ? device_bias.get<float>() : nullptr,
                            c.rows,         c.in_features,
                            c.out_features, c.out_element,
                            y.get(),        c.accumulates};
      if (way == Way::kOneRow && !SuitsOneRow(product)) continue;
      if (way == Way::kPlain) LaunchPlainProduct(product, TestStream().get());
      if (way == Way::kOneRow) LaunchOneRowProduct(product, TestStream().get());
      if (way == Way::kLibrary) {
        ASSERT_TRUE((*library)->Run(product).ok());
      }
      Tensor actual(c.out_element, expected.size());
      y.CopyTo(actual.data());
      EXPECT_LE(Deviation(actual.floats(), expected), Tolerance(c.out_element))
          << "way " << static_cast<int>(way) << ", " << c.rows << " x " << c.in_features << " x "
          << c.out_features;
    }
  }
}

/// Of x and weights in bf16, to f32.
Product Bf16Product(const void* x, const void* weight, int rows, int in_features, int out_features,
                    void* y) {
  Product product;
  product.element = ElementType::kBf16;
  product.x = x;
  product.weight = weight;
  product.rows = rows;
  product.in_features = in_features;
  product.out_features = out_features;
  product.y = y;
  return product;
}

// Behind a library's product; more columns than a block has threads.
TEST(CudaProducts, BiasIsAddedToEveryRow) {
  constexpr int kRows = 3, kWidth = 300;
  for (const ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    Tensor y = RandomTensor(element, size_t{kRows} * kWidth, 1);
    const Tensor bias = RandomTensor(ElementType::kF32, kWidth, 2);
    Tensor expected = y;
    for (int i = 0; i < kRows * kWidth; ++i) expected.set(i, y.at(i) + bias.at(i % kWidth));
    OnDevice device_y(y.data(), y.bytes.size()), device_bias(bias.data(), bias.bytes.size());
    LaunchAddBias(element, device_bias.get<float>(), kRows, kWidth, device_y.get(),
                  TestStream().get());
    device_y.CopyTo(y.data());
    EXPECT_EQ(y.floats(), expected.floats()) << Name(element);
  }
}

TEST(CudaProducts, FusedNormalizeBeforeAndGateAfter) {
  constexpr float kEpsilon = 1e-3f;
  for (const auto& [in, out] : {std::pair{8, 2}, {1040, 14}, {264, 6}, {4120, 36}, {1040, 16390}}) {
    const Tensor x = RandomTensor(ElementType::kF32, in, 7);
    const Tensor norm = RandomTensor(ElementType::kF32, in, 8);
    const Tensor weight = RandomTensor(ElementType::kBf16, size_t{1} * out * in, 9);
    const Tensor bias = RandomTensor(ElementType::kF32, out, 10);
    Tensor normed(ElementType::kF32, in);
    MakeReferenceBackend()->RmsNorm(static_cast<const float*>(x.data()),
                                    static_cast<const float*>(norm.data()), kEpsilon, 1, in,
                                    ElementType::kF32, normed.data());
    const ProductCase c = {ElementType::kF32, ElementType::kF32, 1, in, out, true, false};
    const std::vector<float> sums = ExpectedProduct(c, normed, weight, bias, Tensor());
    OnDevice device_x(x.data(), x.bytes.size()), device_norm(norm.data(), norm.bytes.size());
    OnDevice device_w(weight.data(), weight.bytes.size());
    OnDevice device_bias(bias.data(), bias.bytes.size());
    for (const bool gates : {false, true}) {
      std::vector<float> expected = sums;
      if (gates) {
        expected.resize(out / 2);
        for (int i = 0; i < out / 2; ++i) {
          expected[i] = sums[i] / (1 + std::exp(-sums[i])) * sums[out / 2 + i];
        }
      }
      OnDevice y(expected.size() * sizeof(float));
      FusedProduct fused = {Bf16Product(device_x.get(), device_w.get(), 1, in, out, y.get()),
                            device_norm.get<float>(), kEpsilon, gates};
      fused.product.bias = device_bias.get<float>();
      ASSERT_TRUE(SuitsFusion(fused));
      LaunchFusedProduct(fused, TestStream().get());
      std::vector<float> actual(expected.size());
      y.CopyTo(actual.data());
      EXPECT_LE(Deviation(actual, expected), Tolerance(ElementType::kF32))
          << in << " x " << out << (gates ? " with gates" : "");
    }
  }
}

TEST(CudaProducts, OfOneRowRefuseWhatTheyDoNotSuit) {
  alignas(16) const uint16_t numbers[16] = {};
  const Product product = Bf16Product(numbers, numbers, 1, 16, 1, nullptr);
  EXPECT_TRUE(SuitsOneRow(product));
  const auto changed = [&](auto change) {
    Product other = product;
    change(other);
    return SuitsOneRow(other);
  };
  EXPECT_FALSE(changed([](Product& p) { p.element = ElementType::kF32; }));
  EXPECT_FALSE(changed([](Product& p) { ++p.rows; }));
  EXPECT_FALSE(changed([](Product& p) { p.rows = 0; }));
  EXPECT_FALSE(changed([](Product& p) { p.in_features = 12; }));
  EXPECT_FALSE(changed([&](Product& p) { p.x = numbers + 1; }));
  EXPECT_FALSE(changed([&](Product& p) { p.weight = numbers + 4; }));

  const auto* norm = reinterpret_cast<const float*>(numbers);
  EXPECT_TRUE(SuitsFusion({product, norm}));
  EXPECT_FALSE(SuitsFusion({product, norm + 1}));
  Product two_rows = product;
  two_rows.rows = 2;
  EXPECT_FALSE(SuitsFusion({two_rows, norm}));
}

// ---- Tables -------------------------------------------------------------------------------------

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
  int step() const { return input_.step; }

 private:
  std::vector<BlockId> blocks_;
  int slots_;
  std::vector<SegmentView> views_;
  std::vector<TokenTarget> targets_;
  std::vector<DecodeInput::Layer> layers_;
  DecodeInput input_;
};

/// Tables, and what the device makes of them.
class TablesOnDevice {
 public:
  TablesOnDevice()
      : tables_({4, 2, 16, 1}, ElementType::kF32, kLayers, kRows, kWords, {}),
        device_(tables_.table().mirror().data(), kWords * sizeof(uint32_t)) {}

  /// Patches that the step took.
  size_t Step(const std::vector<GrowingSequence*>& sequences) {
    std::vector<DecodeInput> inputs;
    for (GrowingSequence* sequence : sequences) inputs.push_back(sequence->Append());
    const size_t prepared = tables_.table().patches().size();
    EXPECT_TRUE(tables_.Update(inputs).ok());
    const auto patches = tables_.table().patches();
    patches_of_update_ = patches.size() - prepared;
    const auto count = static_cast<uint32_t>(patches.size());
    if (count > 0) {
      OnDevice device_patches(patches.data(), count * sizeof(TablePatch));
      OnDevice device_count(&count, sizeof(count));
      LaunchApplyPatches(device_patches.get<TablePatch>(), device_count.get<uint32_t>(),
                         static_cast<int>(count), device_.get<uint32_t>(), TestStream().get());
      TestStream().Synchronize();
    }
    tables_.table().Sent();
    std::vector<int32_t> positions(kRows), steps(kRows);
    for (size_t i = 0; i < inputs.size(); ++i) {
      positions[tables_.row(i)] = inputs[i].position;
      steps[tables_.row(i)] = inputs[i].step;
    }
    OnDevice device_positions(positions.data(), kRows * 4), device_steps(steps.data(), kRows * 4);
    LaunchBeginStep(tables_.step_items(), device_positions.get<int32_t>(),
                    device_steps.get<int32_t>(), device_.get<uint32_t>(), TestStream().get());
    std::vector<uint32_t> words(kWords);
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
    return count;
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
  /// But for words that the device counts on itself. Of freed words too: whoever has them next is
  /// sent only what is another.
  void ExpectWhatTheMirrorSays(const std::vector<uint32_t>& words, size_t rows) {
    std::vector<bool> is_devices(kWords, false);
    const StepItems& items = tables_.step_items();
    for (int i = 0; i < kLayers * kRows; ++i) {
      is_devices[items.items + (i * sizeof(DeviceItem) + offsetof(DeviceItem, position)) / 4] =
          true;
      if (i % kRows >= static_cast<int>(rows)) continue;
      const auto* growth = reinterpret_cast<const DeviceGrowth*>(words.data() + items.growths) + i;
      is_devices[growth->num_slots] = is_devices[growth->slot] = true;
    }
    for (uint32_t word = 1; word < kWords; ++word) {
      if (is_devices[word]) continue;
      ASSERT_EQ(words[word], tables_.table().mirror()[word]) << "word " << word;
    }
  }

  static constexpr uint32_t kWords = 1 << 13;
  SequenceTables tables_;
  OnDevice device_;
  size_t patches_of_update_ = 0;
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

TEST(SequenceTables, FollowSequencesThatComeAndGo) {
  TablesOnDevice tables;
  std::mt19937 random(5);
  std::vector<std::unique_ptr<GrowingSequence>> live;
  uint64_t next_id = 1;
  size_t prepared = 0;
  for (int step = 0; step < 400; ++step) {
    if (live.size() < kRows && random() % 3 == 0) {
      live.push_back(std::make_unique<GrowingSequence>(next_id++, 1 + random() % 40));
    }
    if (!live.empty() && random() % 5 == 0) live.erase(live.begin() + random() % live.size());
    std::shuffle(live.begin(), live.end(), random);
    std::vector<GrowingSequence*> batch;
    for (const auto& sequence : live) batch.push_back(sequence.get());
    tables.Step(batch);
    // Some of them, of which some will be gone.
    std::erase_if(batch, [&](GrowingSequence*) { return random() % 3 == 0; });
    prepared += tables.Prepare(batch);
  }
  EXPECT_GT(next_id, 20u);
  EXPECT_GT(prepared, 5u);
}

// ---- Draws --------------------------------------------------------------------------------------

TEST(TokenDraws, OfAListThatFindsNoRoomAreTheHosts) {
  constexpr int kVocabulary = 420000;  // twice as many are too much for a step
  SamplingParameters penalized;
  penalized.repetition_penalty = 1.5f;
  penalized.logprobs = 2;
  std::vector<int32_t> everything(kVocabulary);
  std::iota(everything.begin(), everything.end(), 0);
  const std::vector<int32_t> few = {7, 7, 9};
  Sampler samplers[] = {{penalized, everything, kVocabulary},
                        {penalized, few, kVocabulary},
                        {penalized, everything, kVocabulary}};
  Sampler twins[] = {{penalized, everything, kVocabulary},
                     {penalized, few, kVocabulary},
                     {penalized, everything, kVocabulary}};
  const std::vector<int32_t> forbidden = {11};

  auto draws = TokenDraws::Create(&TestStream(), 3, kVocabulary);
  ASSERT_TRUE(draws.ok()) << draws.status();
  const std::vector<float> logits =
      RandomTensor(ElementType::kF32, size_t{3} * kVocabulary, 3).floats();
  OnDevice device_logits(logits.data(), logits.size() * sizeof(float));
  const TokenDraw how[] = {
      {&samplers[0], forbidden}, {&samplers[1], forbidden}, {&samplers[2], forbidden}};
  const int rows[] = {1, 0, 2};
  const uint64_t sequences[] = {1, 2, 3};
  SampledToken tokens[3];
  (*draws)->Ask(how, sequences, rows, device_logits.get<float>());
  TestStream().Synchronize();
  (*draws)->Fetch(how, rows, tokens);
  for (int i = 0; i < 3; ++i) {
    std::vector<float> row(logits.begin() + rows[i] * kVocabulary,
                           logits.begin() + (rows[i] + 1) * kVocabulary);
    const SampledToken expected = twins[i].Sample(absl::MakeSpan(row), forbidden);
    EXPECT_EQ(tokens[i].token_id, expected.token_id) << i;
    EXPECT_NEAR(tokens[i].logprob, expected.logprob, 1e-4) << i;
    EXPECT_EQ(tokens[i].top.size(), expected.top.size()) << i;
    EXPECT_EQ(samplers[i].num_seen(), twins[i].num_seen()) << i;
  }
}

SeenToken FirstOf(const SeenToken* list) {
  SeenToken first;
  TestStream().Copy(&first, list, sizeof(first));
  TestStream().Synchronize();
  return first;
}

TEST(SeenLists, AreSentOnceAndAgainWhereTheDeviceCannotKnow) {
  auto lists = SeenLists::Create(&TestStream(), 1, 100);
  ASSERT_TRUE(lists.ok()) << lists.status();
  SamplingParameters penalized;
  penalized.presence_penalty = 0.5f;
  Sampler sampler(penalized, {}, 100);
  sampler.Took(7);
  const auto ask = [&] { return (*lists)->BeginStep(), (*lists)->Of(1, sampler); };
  SeenToken* const list = ask();
  ASSERT_NE(list, nullptr);
  EXPECT_EQ(FirstOf(list).output_count, 1);
  // The kernel counts the token that it draws.
  const SeenToken counted = {7, 2, 0};
  TestStream().Copy(list, &counted, sizeof(counted));
  sampler.Took(9);
  EXPECT_EQ(ask(), list);
  EXPECT_EQ(FirstOf(list).output_count, 2) << "sent again";
  sampler.Took(9);
  sampler.Took(9);  // one of them elsewhere
  EXPECT_EQ(ask(), list);
  EXPECT_EQ(FirstOf(list).output_count, FirstOf(list).id == 7 ? 1 : 3);
}

TEST(SeenLists, MakeRoomForOthersButNotForThoseOfTheSameStep) {
  // Room for 16,384 tokens, which is one whole vocabulary's.
  constexpr int kVocabulary = 13000;
  auto lists = SeenLists::Create(&TestStream(), 1, kVocabulary);
  ASSERT_TRUE(lists.ok()) << lists.status();
  SamplingParameters penalized;
  penalized.repetition_penalty = 1.5f;
  const auto of_so_many = [&](int count) {
    std::vector<int32_t> prompt(count);
    std::iota(prompt.begin(), prompt.end(), 0);
    return Sampler(penalized, prompt, kVocabulary);
  };
  const Sampler small = of_so_many(1000), large = of_so_many(6000), all = of_so_many(kVocabulary);
  for (uint64_t sequence = 1; sequence < 100; ++sequence) {
    (*lists)->BeginStep();
    ASSERT_NE((*lists)->Of(sequence, sequence % 5 == 0 ? large : small), nullptr) << sequence;
    EXPECT_EQ((*lists)->Of(1000 + sequence, all), nullptr);
  }
  (*lists)->BeginStep();
  (*lists)->BeginStep();
  EXPECT_NE((*lists)->Of(200, large), nullptr);
  EXPECT_NE((*lists)->Of(201, large), nullptr);
  EXPECT_EQ((*lists)->Of(202, large), nullptr);
  (*lists)->BeginStep();
  (*lists)->BeginStep();
  EXPECT_NE((*lists)->Of(203, all), nullptr) << "with no more room than for one token";
}

/// A sequence that draws on the device, and its twin on the host.
struct DrawingSequence {
  uint64_t id = 0;
  Sampler sampler, twin;

  DrawingSequence(uint64_t own_id, const SamplingParameters& parameters,
                  const std::vector<int32_t>& prompt, int vocab_size)
      : id(own_id), sampler(parameters, prompt, vocab_size), twin(parameters, prompt, vocab_size) {}
};

SamplingParameters SomePenalties(uint64_t id) {
  SamplingParameters p;
  p.seed = id;
  if (id % 2 == 0) p.temperature = 0.8f;
  if (id % 3 != 0) p.repetition_penalty = 1.2f;
  if (id % 5 < 2) p.presence_penalty = 0.5f;
  if (id % 7 < 3) p.frequency_penalty = 0.3f;
  if (id % 11 == 0) p.logprobs = 3;
  return p;
}

/// Penalties count on by themselves on the device, in lists that grow, move, and make room for
/// others.
TEST(TokenDraws, CountWhatSequencesThatComeAndGoHaveSeen) {
  constexpr int kVocabulary = 700;
  auto draws = TokenDraws::Create(&TestStream(), kRows, kVocabulary);
  ASSERT_TRUE(draws.ok()) << draws.status();
  std::mt19937 random(17);
  std::vector<std::unique_ptr<DrawingSequence>> live;
  uint64_t next_id = 1;
  for (int step = 0; step < 160; ++step) {
    // One stays, and so outgrows its list; the others come and go, until the first ones' lists
    // must make room.
    while (live.size() > 1 && random() % 2 == 0) live.erase(live.begin() + 1);
    while (live.size() < kRows) {
      std::vector<int32_t> prompt(1 + random() % 600);
      for (int32_t& token : prompt) token = static_cast<int32_t>(random() % kVocabulary);
      live.push_back(
          std::make_unique<DrawingSequence>(next_id, SomePenalties(next_id), prompt, kVocabulary));
      ++next_id;
    }
    // Some tokens are drawn elsewhere.
    if (step % 50 == 49) live[0]->sampler.Took(step), live[0]->twin.Took(step);

    const std::vector<float> logits =
        RandomTensor(ElementType::kF32, size_t{kRows} * kVocabulary, step).floats();
    OnDevice device_logits(logits.data(), logits.size() * sizeof(float));
    std::vector<int> rows(kRows);
    std::iota(rows.begin(), rows.end(), 0);
    std::shuffle(rows.begin(), rows.end(), random);
    std::vector<TokenDraw> how;
    std::vector<uint64_t> ids;
    for (const auto& sequence : live) {
      how.push_back({&sequence->sampler, {}});
      ids.push_back(sequence->id);
    }
    SampledToken tokens[kRows];
    (*draws)->Ask(how, ids, rows, device_logits.get<float>());
    TestStream().Synchronize();
    (*draws)->Fetch(how, rows, tokens);
    for (int i = 0; i < kRows; ++i) {
      std::vector<float> row(logits.begin() + rows[i] * kVocabulary,
                             logits.begin() + (rows[i] + 1) * kVocabulary);
      const SampledToken expected = live[i]->twin.Sample(absl::MakeSpan(row), {});
      ASSERT_EQ(tokens[i].token_id, expected.token_id) << "step " << step << " sequence " << ids[i];
      ASSERT_NEAR(tokens[i].logprob, expected.logprob, 1e-4);
    }
  }
  EXPECT_GT(next_id, 130u);
}

}  // namespace
}  // namespace ziggurat::cuda
