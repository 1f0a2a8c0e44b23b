#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/reference/reference_backend.h"
#include "attention/reference/softmax.h"
#include "attention/reference/stored_segment.h"

namespace ziggurat::reference {
namespace {

/// A slot of one KV head, decoded.
struct Token {
  SegmentUse use;
  std::vector<double> key;
  std::vector<double> value;
};

std::vector<Token> DecodeTokens(const AttentionShape& shape, PoolView pool, const DecodeItem& item,
                                int kv_head) {
  std::vector<Token> tokens;
  for (int s = 0; s < static_cast<int>(item.segments.size()); ++s) {
    const SegmentView& view = item.segments[s];
    const StoredSegment segment(pool, view, shape.head_dim);
    if (!segment.covers(kv_head)) continue;
    const int slots = LiveSlots(item, s);
    for (int slot = 0; slot < slots; ++slot) {
      tokens.push_back({view.use, segment.DecodedVector(Side::kKeys, kv_head, slot),
                        segment.DecodedVector(Side::kValues, kv_head, slot)});
    }
  }
  return tokens;
}

bool HasUse(LayerView segments, int kv_head, SegmentUse use) {
  return std::any_of(segments.begin(), segments.end(), [&](const SegmentView& s) {
    return s.use == use && kv_head >= s.first_kv_head && kv_head < s.first_kv_head + s.num_kv_heads;
  });
}

double Score(const AttentionShape& shape, const float* q, const std::vector<double>& key) {
  double dot = 0;
  for (int c = 0; c < shape.head_dim; ++c) dot += q[c] * key[c];
  return shape.scale * dot;
}

/// Log-sum-exp of the scores of the tokens for which `takes(use)` holds.
template <typename Takes>
double LogSumExpOf(const std::vector<Token>& tokens, const std::vector<double>& scores,
                   Takes takes) {
  std::vector<double> taken;
  for (size_t t = 0; t < tokens.size(); ++t) {
    if (takes(tokens[t].use)) taken.push_back(scores[t]);
  }
  return LogSumExp(taken);
}

/// softmax(scores) over all tokens together, nothing to merge; returns the log-sum-exp.
double Attend(const std::vector<Token>& tokens, std::vector<double> scores, int head_dim,
              float* out) {
  const double lse = Softmax(&scores);
  for (int c = 0; c < head_dim; ++c) {
    double sum = 0;
    for (size_t t = 0; t < tokens.size(); ++t) sum += scores[t] * tokens[t].value[c];
    out[c] = static_cast<float>(sum);
  }
  return lse;
}

/// The query heads of one KV head of one item; `out` and `lse` (may be null) are rows of the item.
void AttendHead(const AttentionShape& shape, PoolView pool, const DecodeItem& item, int kv_head,
                const float* q, float* out, float* lse) {
  const int dim = shape.head_dim, group = shape.group_size();
  std::vector<Token> tokens = DecodeTokens(shape, pool, item, kv_head);
  const auto is_borrowed = [](SegmentUse use) { return use == SegmentUse::kBorrowedKeys; };
  const bool borrows =
      std::any_of(tokens.begin(), tokens.end(), [&](const Token& t) { return is_borrowed(t.use); });
  std::vector<std::vector<double>> scores(group);
  bool skips = borrows;
  for (int j = 0; j < group; ++j) {
    const int head = kv_head * group + j;
    const float* query = q + static_cast<size_t>(head) * dim;
    for (const Token& token : tokens) {
      const float* asking =
          is_borrowed(token.use) ? item.low_q + static_cast<size_t>(head) * dim : query;
      scores[j].push_back(Score(shape, asking, token.key));
    }
    if (HasUse(item.segments, kv_head, SegmentUse::kDistantKeys)) {
      std::copy_n(query, dim, item.low_q + static_cast<size_t>(head) * dim);
      item.distant_lse[head] = static_cast<float>(LogSumExpOf(
          tokens, scores[j], [](SegmentUse use) { return use == SegmentUse::kDistantKeys; }));
    }
    if (borrows) {
      const double near =
          LogSumExpOf(tokens, scores[j], [&](SegmentUse use) { return !is_borrowed(use); });
      skips = skips && NearShare(near, item.distant_lse[head]) >= item.skip;
    }
  }
  if (borrows && item.counts != nullptr) ++(skips ? item.counts->skipped : item.counts->attended);
  for (int j = 0; j < group; ++j) {
    for (size_t t = 0; t < tokens.size(); ++t) {
      if (skips && is_borrowed(tokens[t].use)) scores[j][t] = -INFINITY;
    }
    const int head = kv_head * group + j;
    const double head_lse = Attend(tokens, scores[j], dim, out + static_cast<size_t>(head) * dim);
    if (lse != nullptr) lse[head] = static_cast<float>(head_lse);
  }
}

/// Mean over the query heads of a KV head of the attention that a slot receives.
double GroupAttention(const AttentionShape& shape, const StoredSegment& segment, int kv_head,
                      int slot, const float* q, const float* lse) {
  const std::vector<double> key = segment.DecodedVector(Side::kKeys, kv_head, slot);
  double sum = 0;
  for (int h = kv_head * shape.group_size(); h < (kv_head + 1) * shape.group_size(); ++h) {
    sum += std::exp(Score(shape, q + static_cast<size_t>(h) * shape.head_dim, key) - lse[h]);
  }
  return sum / shape.group_size();
}

}  // namespace

void ReferenceBackend::DecodeAttention(const AttentionShape& shape,
                                       absl::Span<const DecodeItem> items, const float* q,
                                       PoolView pool, float* out, float* lse) {
  for (size_t i = 0; i < items.size(); ++i) {
    const size_t row = i * shape.num_q_heads, first = row * shape.head_dim;
    for (int g = 0; g < shape.num_kv_heads; ++g) {
      AttendHead(shape, pool, items[i], g, q + first, out + first,
                 lse == nullptr ? nullptr : lse + row);
    }
  }
}

void ReferenceBackend::AccumulateScores(const AttentionShape& shape,
                                        absl::Span<const DecodeItem> items, const float* q,
                                        const float* lse, PoolView pool) {
  for (size_t i = 0; i < items.size(); ++i) {
    for (int s = 0; s < static_cast<int>(items[i].segments.size()); ++s) {
      const SegmentView& view = items[i].segments[s];
      const StoredSegment segment(pool, view, shape.head_dim);
      if (!segment.is_scored()) continue;
      const int slots = LiveSlots(items[i], s);
      for (int g = view.first_kv_head; g < view.first_kv_head + view.num_kv_heads; ++g) {
        for (int slot = 0; slot < slots; ++slot) {
          const double received =
              GroupAttention(shape, segment, g, slot, q + i * shape.num_q_heads * shape.head_dim,
                             lse + i * shape.num_q_heads);
          segment.SetScore(g, slot, static_cast<float>(segment.Score(g, slot) + received));
        }
      }
    }
  }
}

double ReferenceBackend::SlotMass(const AttentionShape& shape, const SegmentView& view, int begin,
                                  int end, const float* q, const float* lse, PoolView pool) {
  const StoredSegment segment(pool, view, shape.head_dim);
  double sum = 0;
  for (int g = 0; g < shape.num_kv_heads; ++g) {
    for (int slot = begin; slot < end; ++slot) {
      sum += GroupAttention(shape, segment, g, slot, q, lse);
    }
  }
  return sum / shape.num_kv_heads;
}

}  // namespace ziggurat::reference
