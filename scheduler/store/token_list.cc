#include "scheduler/store/token_list.h"

#include <algorithm>
#include <limits>

#include "scheduler/store/copy_slots.h"

namespace ziggurat {

namespace {

/// The most of `tokens` tokens that are ever open.
size_t MaxOpenTokens(const StoreFormat& format, size_t tokens, size_t burst) {
  if (!format.coded) return tokens;
  return std::min(tokens, size_t{0} + format.residual + format.coded->group - 1 + burst);
}

}  // namespace

size_t TokenList::MaxBlocks(const CacheGeometry& geometry, const StoreFormat& format, int kv_heads,
                            size_t tokens, size_t burst) {
  const size_t open =
      geometry.BlocksFor(format.open, kv_heads, MaxOpenTokens(format, tokens, burst));
  if (!format.coded) return open;
  const size_t coded = format.CodedTokens(static_cast<int>(tokens));
  return geometry.BlocksFor(*format.coded, kv_heads, coded) + open;
}

void TokenList::Reserve(size_t tokens) {
  if (coded_ >= 0) {
    table_->ReserveLists(coded_, format_.CodedTokens(static_cast<int>(tokens)));
  }
  table_->ReserveLists(open_, MaxOpenTokens(format_, tokens, 1));
}

void TokenList::Open(int first_kv_head, int num_kv_heads) {
  const auto add = [&](const CacheFormat& format) {
    return table_->AddSegment(
        {.format = format, .first_kv_head = first_kv_head, .num_kv_heads = num_kv_heads});
  };
  if (format_.coded) coded_ = add(*format_.coded);
  open_ = add(format_.open);
}

void TokenList::Share(LayerBlockTable& lower_table, const TokenList& lower) {
  if (lower.coded_ >= 0) coded_ = table_->ShareSegment(lower_table, lower.coded_);
  open_ = table_->ShareSegment(lower_table, lower.open_);
}

absl::Status TokenList::Fill(int tokens, int first_token, std::vector<TokenRange>* ranges) {
  const int coded = format_.CodedTokens(tokens);
  if (coded > 0) {
    if (absl::Status status = table_->Extend(coded_, coded); !status.ok()) return status;
    ranges->push_back({coded_, 0, first_token, coded});
  }
  if (absl::Status status = table_->Extend(open_, tokens - coded); !status.ok()) return status;
  if (tokens > coded) ranges->push_back({open_, 0, first_token + coded, tokens - coded});
  return absl::OkStatus();
}

absl::Status TokenList::Extend(int tokens, int* first_slot) {
  *first_slot = open_tokens();
  return table_->Extend(open_, tokens);
}

absl::Status TokenList::Flush(std::vector<CacheEdit>* edits) {
  if (!format_.coded) return absl::OkStatus();
  const int count = format_.CodedTokens(open_tokens());
  if (count == 0) return absl::OkStatus();
  const int first_slot = table_->view()[coded_].num_slots;
  if (absl::Status status = table_->Extend(coded_, count); !status.ok()) return status;
  edits->push_back(CopySlots(*table_, open_, 0, count, coded_, first_slot));
  flushed_.Order(*table_, open_, count, /*others_move=*/false, edits);
  return absl::OkStatus();
}

int TokenList::TokensBeforeFlush() const {
  if (!format_.coded) return std::numeric_limits<int>::max();
  return std::max(0, format_.residual + format_.group() - open_tokens());
}

void TokenList::FinishFlush() { flushed_.Finish(table_, open_); }

void TokenList::RefreshShared(const LayerBlockTable& lower_table, const TokenList& lower) {
  if (coded_ >= 0) table_->RefreshShared(coded_, lower_table, lower.coded_);
  table_->RefreshShared(open_, lower_table, lower.open_);
}

absl::Status TokenList::Append(TokenTarget* target) {
  absl::StatusOr<int> slot = table_->AppendSlot(open_);
  if (!slot.ok()) return slot.status();
  *target = {open_, *slot};
  return absl::OkStatus();
}

}  // namespace ziggurat
