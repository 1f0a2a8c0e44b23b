#include "tests/support/stub_model.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ziggurat {
namespace {

struct Record {
  uint32_t tag = 0;
  int32_t position = 0;
  int32_t token = 0;
  uint32_t checksum = 0;
};

uint32_t Mix(uint32_t a, uint32_t b) {
  uint32_t h = a * 0x9E3779B1u ^ (b + 0x7F4A7C15u + (a << 6) + (a >> 2));
  h ^= h >> 16;
  h *= 0x85EBCA6Bu;
  h ^= h >> 13;
  return h;
}

uint32_t Checksum(const Record& record, int layer, int head) {
  return Mix(Mix(Mix(record.tag, record.position), record.token), Mix(layer, head));
}

// The 16 bytes of slot `slot`'s value and the first word of its key, of head `head` of the segment.
struct SlotBytes {
  std::byte* key;
  std::byte* value;
};

std::byte* AreaOf(PoolView pool, const PlaneView& plane, int head, int slot) {
  return pool.Block(plane.blocks[slot / plane.slots_per_block]) +
         static_cast<size_t>(head) * plane.head_stride_bytes + plane.offset_bytes;
}

SlotBytes Locate(PoolView pool, const SegmentView& segment, int head_dim, int head, int slot) {
  const size_t value_bytes = head_dim * ElementBytes(segment.element);
  return {AreaOf(pool, segment.keys, head, slot) + 4 * (slot % segment.keys.slots_per_block),
          AreaOf(pool, segment.values, head, slot) +
              value_bytes * (slot % segment.values.slots_per_block)};
}

void Write(const SlotBytes& bytes, const Record& record) {
  std::memcpy(bytes.value, &record, sizeof(record));
  std::memcpy(bytes.key, &record.checksum, sizeof(record.checksum));
}

Record Read(const SlotBytes& bytes, uint32_t* key_word) {
  Record record;
  std::memcpy(&record, bytes.value, sizeof(record));
  std::memcpy(key_word, bytes.key, sizeof(*key_word));
  return record;
}

absl::Status Wrong(const std::string& what, int layer, int head, int slot) {
  return absl::InternalError(
      absl::StrCat("stub model: ", what, " (layer ", layer, ", head ", head, ", slot ", slot, ")"));
}

// Row of the prompt that slot `slot` of head `head` holds under `edit`. The "best" of a head are
// neighbours, another range for each head, so that slots really differ between heads.
int RowOf(const LayerEdit& edit, int prompt_tokens, int kept, int head, int slot) {
  if (kept == prompt_tokens) return slot;
  if (const auto* best = std::get_if<KeepBest>(&edit)) {
    if (slot >= best->best) return prompt_tokens - best->recent + (slot - best->best);
    const int candidates = prompt_tokens - best->recent;
    return (head * 7) % (candidates - best->best + 1) + slot;
  }
  if (const auto* ring = std::get_if<KeepRing>(&edit)) {
    return slot < ring->sinks ? slot : prompt_tokens - kept + slot;
  }
  return slot;
}

int KeptTokens(const LayerEdit& edit, int prompt_tokens) {
  if (const auto* best = std::get_if<KeepBest>(&edit)) {
    return std::min(prompt_tokens, best->best + best->recent);
  }
  if (const auto* ring = std::get_if<KeepRing>(&edit)) {
    return std::min(prompt_tokens, ring->sinks + ring->recent);
  }
  return prompt_tokens;
}

void SleepMicroseconds(int64_t us) {
  if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
}

}  // namespace

int32_t StubNextToken(int32_t token, int position, int vocab_size) {
  const int half = vocab_size / 2;
  return half + static_cast<int32_t>(Mix(token, position) % (vocab_size - half));
}

std::vector<int32_t> StubGreedyTokens(const StubModelOptions& options,
                                      absl::Span<const int32_t> prompt, int count) {
  std::vector<int32_t> tokens;
  int32_t token = prompt.back();
  for (int i = 0; i < count; ++i) {
    const int position = static_cast<int>(prompt.size()) - 1 + i;
    token = options.next_token ? options.next_token(token, position)
                               : StubNextToken(token, position, options.shape.vocab_size);
    tokens.push_back(token);
  }
  return tokens;
}

StubModel::StubModel(StubModelOptions options) : options_(std::move(options)) {
  if (!options_.control) options_.control = std::make_shared<StubControl>();
}

size_t StubModel::WorkspaceBytes(int tokens, int window_rows) const {
  const ModelShape& shape = options_.shape;
  const size_t q = size_t{4} * shape.num_q_heads * shape.head_dim;
  const size_t kv = size_t{8} * shape.num_kv_heads * shape.head_dim;
  return tokens * (size_t{4} * shape.hidden_size + q + kv) + window_rows * q;
}

size_t StubModel::workspace_capacity_bytes() const {
  return WorkspaceBytes(options_.max_prefill_tokens, options_.max_prefill_tokens);
}

absl::Status StubModel::BeginPrefill(absl::Span<const PrefillPrompt> prompts) {
  if (!batch_.empty()) return absl::InternalError("stub model: a prefill batch is under way");
  if (pool_.base == nullptr) return absl::InternalError("stub model: no pool attached");
  int tokens = 0;
  int window_rows = 0;
  for (const PrefillPrompt& prompt : prompts) {
    batch_.push_back({{prompt.token_ids.begin(), prompt.token_ids.end()}, next_tag_++});
    tokens += static_cast<int>(prompt.token_ids.size());
    window_rows += prompt.window_rows;
  }
  if (tokens > options_.max_prefill_tokens) {
    batch_.clear();
    return absl::InternalError(absl::StrCat("stub model: ", tokens, " tokens in a prefill batch"));
  }
  next_layer_ = 0;
  workspace_high_water_ = std::max(workspace_high_water_, WorkspaceBytes(tokens, window_rows));
  return absl::OkStatus();
}

absl::Status StubModel::PrefillLayer(int layer, absl::Span<const LayerWrite> writes) {
  if (layer != next_layer_ || writes.size() != batch_.size()) {
    return absl::InternalError(absl::StrCat("stub model: layer ", layer, " of ", writes.size(),
                                            " prompts where layer ", next_layer_, " of ",
                                            batch_.size(), " was due"));
  }
  SleepMicroseconds(options_.control->prefill_layer_delay_us);
  for (size_t i = 0; i < writes.size(); ++i) {
    if (writes[i].view.empty()) continue;  // its request has gone
    if (absl::Status status = WriteLayer(layer, batch_[i], writes[i]); !status.ok()) return status;
  }
  ++next_layer_;
  ++options_.control->prefill_layers;
  return absl::OkStatus();
}

absl::Status StubModel::WriteLayer(int layer, const Prompt& prompt, const LayerWrite& write) {
  const int prompt_tokens = static_cast<int>(prompt.tokens.size());
  const int kept = KeptTokens(write.edit, prompt_tokens);
  for (const SegmentView& segment : write.view) {
    if (segment.num_slots != kept) {
      return absl::InternalError(absl::StrCat("stub model: layer ", layer, " has ",
                                              segment.num_slots, " slots for ", kept, " tokens"));
    }
    for (int g = 0; g < segment.num_kv_heads; ++g) {
      const int head = segment.first_kv_head + g;
      for (int slot = 0; slot < kept; ++slot) {
        const int row = RowOf(write.edit, prompt_tokens, kept, head, slot);
        Record record{.tag = prompt.tag, .position = row, .token = prompt.tokens[row]};
        record.checksum = Checksum(record, layer, head);
        Write(Locate(pool_, segment, options_.shape.head_dim, g, slot), record);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status StubModel::FinishPrefill(float* logits) {
  if (next_layer_ != options_.shape.num_layers) {
    return absl::InternalError(absl::StrCat("stub model: finished after ", next_layer_, " layers"));
  }
  for (const Prompt& prompt : batch_) {
    FillLogits(prompt.tokens.back(), static_cast<int>(prompt.tokens.size()) - 1, logits);
    logits += options_.shape.vocab_size;
  }
  batch_.clear();
  return absl::OkStatus();
}

absl::Status StubModel::Decode(absl::Span<const DecodeInput> inputs, float* logits) {
  StubControl& control = *options_.control;
  SleepMicroseconds(control.decode_delay_us);
  if (control.fail_decode) return absl::InternalError("stub model: told to fail");
  for (const DecodeInput& input : inputs) {
    if (static_cast<int>(input.layers.size()) != options_.shape.num_layers) {
      return absl::InternalError("stub model: a decode input lacks layers");
    }
    uint32_t tag = 0;  // found in the first slot read, then the same everywhere
    for (int layer = 0; layer < options_.shape.num_layers; ++layer) {
      if (absl::Status status = DecodeLayer(layer, input, &tag); !status.ok()) return status;
    }
    FillLogits(input.token_id, input.position, logits);
    logits += options_.shape.vocab_size;
  }
  ++control.decode_steps;
  control.decoded_tokens += static_cast<int64_t>(inputs.size());
  control.largest_batch =
      std::max<int>(control.largest_batch.load(), static_cast<int>(inputs.size()));
  return absl::OkStatus();
}

absl::Status StubModel::DecodeLayer(int layer, const DecodeInput& input, uint32_t* tag) {
  const DecodeInput::Layer& at = input.layers[layer];
  for (int s = 0; s < static_cast<int>(at.view.size()); ++s) {
    const SegmentView& segment = at.view[s];
    const int new_slot = s == at.segment ? at.slot : -1;
    if (new_slot >= segment.num_slots) return Wrong("no such slot", layer, 0, new_slot);
    for (int g = 0; g < segment.num_kv_heads; ++g) {
      const int head = segment.first_kv_head + g;
      seen_.assign(input.position, false);
      for (int slot = 0; slot < segment.num_slots; ++slot) {
        if (slot == new_slot) continue;
        uint32_t key_word = 0;
        const Record record =
            Read(Locate(pool_, segment, options_.shape.head_dim, g, slot), &key_word);
        if (record.checksum != Checksum(record, layer, head) || key_word != record.checksum) {
          return Wrong("the record is damaged", layer, head, slot);
        }
        if (*tag == 0) *tag = record.tag;
        if (record.tag != *tag) return Wrong("another sequence's record", layer, head, slot);
        if (record.position < 0 || record.position >= input.position) {
          return Wrong(absl::StrCat("position ", record.position, " in step ", input.position),
                       layer, head, slot);
        }
        if (seen_[record.position]) return Wrong("a position twice", layer, head, slot);
        seen_[record.position] = true;
      }
      if (new_slot < 0) continue;
      Record record{.tag = *tag, .position = input.position, .token = input.token_id};
      record.checksum = Checksum(record, layer, head);
      Write(Locate(pool_, segment, options_.shape.head_dim, g, new_slot), record);
    }
  }
  return absl::OkStatus();
}

void StubModel::FillLogits(int32_t token, int position, float* logits) const {
  const int vocab_size = options_.shape.vocab_size;
  const uint32_t seed = Mix(token, position);
  for (int i = 0; i < vocab_size; ++i) {
    logits[i] = static_cast<float>(((seed ^ i) * 0x9E3779B1u) >> 24) / 256.0f;
  }
  const int32_t next = options_.next_token ? options_.next_token(token, position)
                                           : StubNextToken(token, position, vocab_size);
  logits[next] = 4.0f;
}

}  // namespace ziggurat
