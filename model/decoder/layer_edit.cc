#include "model/decoder/layer_edit.h"

#include <algorithm>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"

namespace ziggurat {
namespace {

template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

class LayerEditor {
 public:
  LayerEditor(AttentionBackend& backend, const AttentionShape& shape, ElementType element,
              PoolView pool, const AttendedPrompt& prompt, const LayerWrite& write)
      : backend_(backend),
        shape_(shape),
        element_(element),
        pool_(pool),
        prompt_(prompt),
        write_(write) {}

  absl::Status Apply() {
    return std::visit(Overloaded{[this](const KeepAll&) { return Keep(prompt_.tokens, 0); },
                                 [this](const KeepBest& edit) { return ApplyBest(edit); },
                                 [this](const KeepRing& edit) { return ApplyRing(edit); }},
                      write_.edit);
  }

 private:
  /// The first `first` tokens and the last `last`, for all heads.
  absl::Status Keep(int first, int last) {
    if (absl::Status status = CheckSegments(first + last); !status.ok()) return status;
    Write(nullptr, 0, first, 0);
    Write(nullptr, prompt_.tokens - last, last, first);
    return absl::OkStatus();
  }

  absl::Status ApplyRing(const KeepRing& edit) {
    if (edit.sinks < 0 || edit.recent < 0) {
      return absl::InternalError(
          absl::StrCat("a ring of ", edit.sinks, " sinks and ", edit.recent, " recent tokens"));
    }
    const int sinks = std::min(edit.sinks, prompt_.tokens);
    return Keep(sinks, std::min(edit.recent, prompt_.tokens - sinks));
  }

  absl::Status ApplyBest(const KeepBest& edit) {
    const int n = prompt_.tokens;
    if (edit.best < 0 || edit.recent < 0) {
      return absl::InternalError(
          absl::StrCat("keeping ", edit.best, " best and ", edit.recent, " recent tokens"));
    }
    if (edit.best + edit.recent >= n) return Keep(n, 0);
    if (edit.best == 0) return Keep(0, edit.recent);
    const auto* statistic = std::get_if<WindowScoreStatistic>(&write_.statistic);
    if (statistic == nullptr) return absl::InternalError("keeping the best without a statistic");
    const int window = statistic->window;
    if (window != edit.recent || window < 1 || window > prompt_.window_rows) {
      return absl::InternalError(
          absl::StrCat("keeping ", edit.recent, " recent tokens by the scores of a window of ",
                       window, " queries, of which ", prompt_.window_rows, " are there"));
    }
    if (absl::Status status = CheckSegments(edit.best + edit.recent); !status.ok()) return status;

    const size_t row_bytes =
        ElementBytes(element_) * static_cast<size_t>(shape_.num_q_heads) * shape_.head_dim;
    const auto* window_q = static_cast<const std::byte*>(prompt_.window_q) +
                           static_cast<size_t>(prompt_.window_rows - window) * row_bytes;
    const float* lse = prompt_.lse + static_cast<size_t>(n - window) * shape_.num_q_heads;
    backend_.WindowScores(shape_, element_, window_q, lse, prompt_.k, n, window, statistic->kernel,
                          statistic->pooling, prompt_.scores);
    backend_.SelectBest(prompt_.scores, shape_.num_kv_heads, n - window, edit.best,
                        prompt_.selection);
    Write(prompt_.selection, 0, edit.best, 0);
    Write(nullptr, n - edit.recent, edit.recent, edit.best);
    return absl::OkStatus();
  }

  /// Each KV head must have exactly one segment, with room for `slots` tokens.
  absl::Status CheckSegments(int slots) const {
    int next_head = 0;
    for (const SegmentView& segment : write_.view) {
      if (segment.first_kv_head != next_head || segment.num_slots < slots ||
          segment.element != element_) {
        return absl::InternalError(absl::StrCat(
            "a prompt's layer keeps ", slots, " tokens, but the segment of KV heads ",
            segment.first_kv_head, "..", segment.first_kv_head + segment.num_kv_heads - 1, " has ",
            segment.num_slots, " slots of ", std::string(ElementTypeName(segment.element)),
            " and KV head ", next_head, " is next"));
      }
      next_head += segment.num_kv_heads;
    }
    if (next_head != shape_.num_kv_heads) {
      return absl::InternalError(
          absl::StrCat("segments for ", next_head, " of ", shape_.num_kv_heads, " KV heads"));
    }
    return absl::OkStatus();
  }

  /// `indices` [G, count] or null, as AttentionBackend::WriteTokens has it, for every segment.
  void Write(const int32_t* indices, int first_row, int count, int first_slot) {
    if (count == 0) return;
    for (const SegmentView& segment : write_.view) {
      const int32_t* of_segment =
          indices == nullptr ? nullptr
                             : indices + static_cast<size_t>(segment.first_kv_head) * count;
      backend_.WriteTokens(shape_, element_, prompt_.k, prompt_.v, of_segment, first_row, count,
                           pool_, segment, first_slot);
    }
  }

  AttentionBackend& backend_;
  const AttentionShape& shape_;
  const ElementType element_;
  const PoolView pool_;
  const AttendedPrompt& prompt_;
  const LayerWrite& write_;
};

}  // namespace

absl::Status ApplyLayerEdit(AttentionBackend& backend, const AttentionShape& shape,
                            ElementType element, PoolView pool, const AttendedPrompt& prompt,
                            const LayerWrite& write) {
  return LayerEditor(backend, shape, element, pool, prompt, write).Apply();
}

}  // namespace ziggurat
