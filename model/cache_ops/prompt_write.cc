// How the tokens of a prompt that stay get into segments.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/cache_ops/prompt_layer.h"

namespace ziggurat {
namespace {

absl::Status CheckRange(const TokenRange& range, LayerView view, int tokens) {
  const bool fits = range.segment >= 0 && range.segment < static_cast<int>(view.size()) &&
                    range.count >= 0 && range.first_slot >= 0 && range.first_token >= 0 &&
                    range.first_slot + range.count <= view[range.segment].num_slots &&
                    range.first_token + range.count <= tokens;
  if (fits) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("tokens ", range.first_token, " .. ", range.first_token + range.count, " of ",
                   tokens, " do not fit slots ", range.first_slot, " .. ",
                   range.first_slot + range.count, " of segment ", range.segment));
}

}  // namespace

absl::Status PromptLayers::CheckWrite(const LayerWrite& write) const {
  const bool merges = !write.lower.empty();
  if (merges && write.lower.size() != write.view.size()) {
    return absl::InternalError("the two layers of a pair have different segments");
  }
  const auto check = [&](absl::Span<const TokenRange> ranges, int tokens) {
    absl::Status status;
    for (const TokenRange& range : ranges) {
      status.Update(CheckRange(range, write.view, tokens));
      if (merges) status.Update(CheckRange(range, write.lower, tokens));
    }
    return status;
  };
  absl::Status status = check(write.ranges, merges ? tokens_ - retained_ : last_.kept_tokens);
  status.Update(check(write.retained, retained_));
  return status;
}

absl::Status PromptLayers::Write(const PromptTensors& at, PoolView pool, const LayerWrite& write) {
  if (absl::Status status = CheckWrite(write); !status.ok()) return status;
  if (!write.lower.empty()) return WriteMergedPair(at, pool, write);
  for (const TokenRange& range : write.ranges) {
    WriteRange(at, pool, write.view[range.segment], range);
  }
  return absl::OkStatus();
}

void PromptLayers::WriteRange(const PromptTensors& at, PoolView pool, const SegmentView& segment,
                              const TokenRange& range) {
  KeyValues tokens = at.key_values();
  if (segment.use == SegmentUse::kBorrowedKeys) tokens.k = nullptr;
  const int kept = last_.kept_tokens, end = range.first_token + range.count;
  TokenChoice rows;
  std::vector<int32_t> over;
  if (selection_stands_) {
    rows = TokenChoice::Listed(
        buffers_.selection + static_cast<size_t>(segment.first_kv_head) * kept + range.first_token,
        kept, range.count);
  } else if (end <= last_.first_tokens || range.first_token >= last_.first_tokens) {
    rows = TokenChoice::From(
        end <= last_.first_tokens ? range.first_token : tokens_ - kept + range.first_token,
        range.count);
  } else {  // from the first tokens over to the last ones
    for (int i = range.first_token; i < end; ++i) {
      over.push_back(last_.PositionOf(0, i, tokens_));
    }
    int32_t* listed = LendIndices(over.size());
    backend_->Upload(over.data(), over.size() * sizeof(int32_t), listed);
    rows = TokenChoice::Listed(listed, 0, range.count);
  }
  backend_->WriteTokens(shape_, tokens, rows, pool, segment, range.first_slot);
  if (segment.scores.blocks != nullptr) {
    backend_->WriteScores(shape_, buffers_.scores, tokens_, rows, pool, segment, range.first_slot);
  }
}

absl::Status PromptLayers::WriteMergedPair(const PromptTensors& at, PoolView pool,
                                           const LayerWrite& write) {
  const size_t heads = shape_.num_kv_heads, merged = tokens_ - retained_;
  const int32_t* merged_tokens = buffers_.selection + heads * retained_;
  const KeyValues lower = {at.element, buffers_.lower_k, buffers_.lower_v}, upper = at.key_values();
  for (const TokenRange& range : write.ranges) {
    const auto rows = TokenChoice::Listed(merged_tokens + range.first_token, merged, range.count);
    backend_->WriteMerged(shape_, lower, upper, rows, plan_->merge->t, pool,
                          write.lower[range.segment], write.view[range.segment], range.first_slot);
  }
  for (const TokenRange& range : write.retained) {
    const auto rows =
        TokenChoice::Listed(buffers_.selection + range.first_token, retained_, range.count);
    backend_->WriteTokens(shape_, lower, rows, pool, write.lower[range.segment], range.first_slot);
    backend_->WriteTokens(shape_, upper, rows, pool, write.view[range.segment], range.first_slot);
  }
  return absl::OkStatus();
}

}  // namespace ziggurat
