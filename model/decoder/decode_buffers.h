// Activations of one decode step.
#pragma once

#include <cstddef>

#include "model/decoder/aligned_bytes.h"
#include "model/decoder/prefill_workspace.h"

namespace ziggurat {

/// Made for the largest batch seen so far; grows by at least half, never shrinks. A few KiB to a
/// few hundred KiB per sequence, and apart from the prefill workspace, since steps run between
/// slices.
class DecodeBuffers {
 public:
  /// Pointers to the activations of `rows` sequences; valid until the next call.
  /// With b = rows and the words of PrefillLayout:
  struct Pointers {
    float* residual;     ///< [b, h]
    void* normed;        ///< [b, h] e
    void* wide;          ///< [b, max((H + 2G) D, 2f)] e
    void* gated;         ///< [b, f] e
    float* q;            ///< [b, H, D]
    float* k;            ///< [b, G, D], as the next two for the host's steps alone
    float* v;            ///< [b, G, D]
    float* attended;     ///< [b, H, D]
    float* lse;          ///< [b, H]
    float* low_q;        ///< [b, H, D]: PoD, DecodeItem::low_q
    float* distant_lse;  ///< [b, H]
    void* converted;     ///< [b, H, D] e
    float* cos;          ///< [b, D/2]
    float* sin;          ///< [b, D/2]
  };
  Pointers For(const WorkspaceShape& shape, int rows);

  /// The same in memory of the caller's, of BytesFor(shape, rows) bytes.
  static Pointers Over(const WorkspaceShape& shape, int rows, std::byte* base);
  static size_t BytesFor(const WorkspaceShape& shape, int rows);

 private:
  AlignedBytes memory_;
  int capacity_rows_ = 0;
};

}  // namespace ziggurat
