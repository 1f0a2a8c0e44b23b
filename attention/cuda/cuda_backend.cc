#include "attention/cuda/cuda_backend.h"

#include <algorithm>
#include <numeric>

#include "attention/cuda/edit_batches.h"
#include "attention/cuda/elementwise.h"
#include "attention/cuda/statistics.h"
#include "attention/cuda/writes.h"
#include "block_manager/check.h"

namespace ziggurat::cuda {
namespace {

/// Tokens that a copy or a merge stages at once where it goes in pieces.
constexpr int kStagedTokens = 4096;
/// Of a table for copies or merges: little enough to stay in the host's cache.
constexpr size_t kToldAtOnce = size_t{96} << 10;

/// Pieces of a call that stages tokens: as many tokens as the scratch memory holds, in whole
/// groups.
template <typename Piece>
void InPieces(int count, int unit, size_t token_bytes, size_t scratch_bytes, Piece piece) {
  const int most = static_cast<int>(std::min<size_t>(count, scratch_bytes / token_bytes));
  const int step = std::max(most / unit * unit, unit);
  for (int done = 0; done < count; done += step) piece(done, std::min(step, count - done));
}

/// What a library allocates for the longest prompt serves the others after it.
std::vector<int> LongestFirst(const PackedSequences& sequences) {
  std::vector<int> order(sequences.num_sequences());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return sequences.length(a) > sequences.length(b); });
  return order;
}

/// The same tensors from a token on.
PromptTensors TensorsFrom(const AttentionShape& shape, const PromptTensors& t, size_t token) {
  const size_t head_bytes = shape.head_dim * ElementBytes(t.element);
  const size_t q = token * shape.num_q_heads * head_bytes;
  const size_t kv = token * shape.num_kv_heads * head_bytes;
  return {t.element,
          static_cast<const std::byte*>(t.q) + q,
          static_cast<const std::byte*>(t.k) + kv,
          static_cast<const std::byte*>(t.v) + kv,
          static_cast<std::byte*>(t.out) + q,
          t.lse + token * shape.num_q_heads};
}

DeviceIndices IndicesFrom(const TokenChoice& tokens, int skipped = 0) {
  return {tokens.of_head == nullptr ? nullptr : tokens.of_head + skipped, tokens.stride,
          tokens.first + skipped};
}

}  // namespace

size_t ScratchBytesFor(const AttentionShape& shape, int tokens) {
  // A group of codes, which is no larger than a head, goes in one piece however few tokens there
  // are.
  const int heads = shape.num_kv_heads;
  const int count = std::max(std::min(tokens, kStagedTokens), shape.head_dim);
  return std::max({DistantScratchBytes(shape, tokens), WindowScoresScratchBytes(shape, tokens, 0),
                   // Windows of any length together are less than twice as long as their tokens.
                   SelectWindowsScratchBytes(2 * tokens, tokens), CosineSumScratchBytes(tokens),
                   CopyScratchBytes(heads, count, shape.head_dim),
                   MergeScratchBytes(heads, count, shape.head_dim)}) +
         256;
}

absl::StatusOr<std::unique_ptr<CudaBackend>> CudaBackend::Create(
    std::shared_ptr<Stream> stream, const CudaBackendOptions& options,
    std::unique_ptr<PromptLibrary> prompts) {
  std::unique_ptr<CudaBackend> backend(new CudaBackend(std::move(stream), std::move(prompts)));
  auto uploads = UploadRing::Create(backend->stream_.get(), options.upload_bytes);
  if (!uploads.ok()) return uploads.status();
  backend->uploads_ = *std::move(uploads);
  struct Part {
    DeviceMemory* memory;
    size_t bytes;
    const char* what;
  };
  for (const Part& part : {Part{&backend->scratch_, options.scratch_bytes, "scratch memory"},
                           Part{&backend->lent_, options.lend_bytes, "memory of edits"},
                           Part{&backend->numbers_, 256, "results"}}) {
    auto memory = DeviceMemory::Allocate(MemoryKind::kDevice, part.bytes, part.what);
    if (!memory.ok()) return memory.status();
    *part.memory = *std::move(memory);
  }
  return backend;
}

void* CudaBackend::Scratch(size_t bytes) {
  CheckThat(bytes <= scratch_.bytes(), "a call needs more scratch memory than there is");
  return scratch_.data();
}

DeviceCache CudaBackend::Cache(PoolView pool, const TableImage& image) {
  const auto* table = uploads_->Place(absl::MakeConstSpan(image.words()));
  return {reinterpret_cast<unsigned char*>(pool.base), pool.block_bytes, table};
}

BatchLimits CudaBackend::LimitsOfBatches() const {
  // Table and records of a batch lie in the ring together until it is launched.
  return {scratch_.bytes(), std::min(uploads_->most_bytes() / 4, kToldAtOnce)};
}

// ---- Memory -------------------------------------------------------------------------------------

void* CudaBackend::Lend(size_t bytes) {
  CheckThat(bytes <= lent_.bytes(), "more memory is borrowed than there is to lend");
  return lent_.data();
}

void CudaBackend::Upload(const void* host, size_t bytes, void* to) {
  uploads_->Upload(host, bytes, to);
}

void CudaBackend::Download(const void* from, size_t bytes, void* host) const {
  if (bytes > 0) stream_->Copy(host, from, bytes);
  stream_->Synchronize();
}

void CudaBackend::CopyRows(const void* from, size_t from_stride, size_t row_bytes, size_t rows,
                           void* to, size_t to_stride) {
  if (row_bytes == 0 || rows == 0) return;
  if (rows == 1) return stream_->Copy(to, from, row_bytes);
  stream_->CopyRows(to, to_stride, from, from_stride, row_bytes, rows);
}

void CudaBackend::KeepSelected(const int32_t* best_of, size_t stride, int heads, int best,
                               int first_recent, int recent, int32_t* kept) {
  LaunchKeepSelected(best_of, stride, heads, best, first_recent, recent, kept, at());
}

void CudaBackend::Complement(const int32_t* chosen, int heads, int count, int n, int32_t* rest) {
  LaunchComplement(chosen, heads, count, n, rest, at());
}

void CudaBackend::EmbedTokens(ElementType element, const void* table, absl::Span<const int32_t> ids,
                              int width, float* out) {
  // Those of many prompts together may be more than the ring takes at once.
  const size_t most = uploads_->most_bytes() / sizeof(int32_t);
  for (size_t done = 0; done < ids.size(); done += most) {
    const absl::Span<const int32_t> piece = ids.subspan(done, most);
    LaunchEmbedTokens(element, table, uploads_->Place(piece), static_cast<int>(piece.size()), width,
                      out + done * width, at());
  }
}

void CudaBackend::FillAngles(absl::Span<const float> inverse_frequencies, int first, int count,
                             float* cos, float* sin) {
  LaunchFillAngles(first, count, uploads_->Place(inverse_frequencies),
                   static_cast<int>(inverse_frequencies.size()), cos, sin, at());
}

// ---- Prompts ------------------------------------------------------------------------------------

void CudaBackend::PrefillAttention(const AttentionShape& shape, const PackedSequences& sequences,
                                   const PromptTensors& prompts) {
  if (prompts_ == nullptr || !prompts_->Serves(shape, prompts.element)) {
    return AttendToPrompts(shape, sequences.offsets, prompts);
  }
  for (const int i : LongestFirst(sequences)) {
    const int n = sequences.length(i);
    const PromptTensors own = TensorsFrom(shape, prompts, sequences.offsets[i]);
    if (n == 0 || prompts_->Attend(shape, n, own, at())) continue;
    const int offsets[] = {0, n};
    AttendToPrompts(shape, offsets, own);
  }
}

void CudaBackend::AttendToPrompts(const AttentionShape& shape, absl::Span<const int> offsets,
                                  const PromptTensors& tensors) {
  LaunchPrefillAttention(shape, tensors, uploads_->Place(offsets),
                         static_cast<int>(offsets.size()) - 1, offsets.back(), at());
}

void CudaBackend::PrefillDistantAttention(const AttentionShape& shape, int n,
                                          const PromptTensors& prompt,
                                          const DistantPrefill& distant, DistantCounts* counts) {
  auto* counted = numbers_.as<unsigned long long>();
  stream_->Zero(counted, 2 * sizeof(*counted));
  const absl::Span<const uint8_t> borrows(distant.borrows, shape.num_kv_heads);
  const DeviceDistant of_device = {distant.sinks,
                                   distant.recent,
                                   static_cast<float>(distant.skip),
                                   uploads_->Place(borrows),
                                   distant.low_q,
                                   distant.low_k,
                                   counted,
                                   static_cast<float*>(Scratch(DistantScratchBytes(shape, n)))};
  LaunchPrefillDistantAttention(shape, prompt, n, of_device, at());
  if (counts == nullptr) return;
  unsigned long long both[2];
  Download(counted, sizeof(both), both);
  counts->attended += both[0];
  counts->skipped += both[1];
}

void CudaBackend::WindowScores(const AttentionShape& shape, const PromptTail& tail, int kernel,
                               WindowPooling pooling, float* scores) {
  LaunchWindowScores(shape, tail, kernel, pooling, scores,
                     Scratch(WindowScoresScratchBytes(shape, tail.n, tail.rows)), at());
}

void CudaBackend::ColumnSums(const AttentionShape& shape, const PromptTail& tail, int begin,
                             int end, ScoreRows score_rows, float* sums, size_t stride) {
  LaunchColumnSums(shape, tail, begin, end, score_rows == ScoreRows::kQueryHeads, sums, stride,
                   Scratch(ColumnSumsScratchBytes()), at());
}

void CudaBackend::SelectBest(const float* scores, size_t stride, int num_heads, int candidates,
                             int best, int32_t* indices) {
  LaunchSelectBest(scores, stride, num_heads, candidates, best, indices, at());
}

int CudaBackend::SelectWindows(const float* scores, int num_heads, int candidates, int review,
                               int best, int budget, int32_t* indices) {
  auto* count = numbers_.as<int32_t>();
  LaunchSelectWindows(scores, num_heads, candidates, review, best, budget, indices, count,
                      Scratch(SelectWindowsScratchBytes(candidates, review)), at());
  return Fetch(count);
}

double CudaBackend::CosineSum(const float* a, const float* b, int rows, int width) {
  auto* sum = numbers_.as<double>();
  LaunchCosineSum(a, b, rows, width, sum, Scratch(CosineSumScratchBytes(rows)), at());
  return Fetch(sum);
}

// ---- Writing and moving tokens ------------------------------------------------------------------

void CudaBackend::WriteTokens(const AttentionShape& shape, const KeyValues& tokens,
                              const TokenChoice& rows, PoolView pool, const SegmentView& segment,
                              int first_slot) {
  TableImage image;
  const TargetSegment target = image.AddTarget(segment);
  LaunchWriteTokens(shape, tokens, IndicesFrom(rows), rows.count, Cache(pool, image), target,
                    first_slot, at());
}

void CudaBackend::WriteScores(const AttentionShape& /*shape*/, const float* sums, int n,
                              const TokenChoice& rows, PoolView pool, const SegmentView& segment,
                              int first_slot) {
  TableImage image;
  const TargetSegment target = image.AddTarget(segment);
  LaunchWriteScores(sums, n, IndicesFrom(rows), rows.count, Cache(pool, image), target, first_slot,
                    at());
}

void CudaBackend::CopyTokens(const AttentionShape& shape, PoolView pool, const SegmentView& from,
                             const TokenChoice& slots, const SegmentView& to, int first_slot) {
  TableImage image;
  const uint32_t source = image.AddSegment(from);
  const TargetSegment target = image.AddTarget(to);
  const DeviceCache cache = Cache(pool, image);
  InPieces(slots.count, target.unit, CopyScratchBytes(target.heads, 1, shape.head_dim),
           scratch_.bytes(), [&](int done, int piece) {
             const CopyRecord copy = {source, target.word, IndicesFrom(slots, done), piece,
                                      first_slot + done};
             const CopyRecord* const record = uploads_->Place(absl::MakeConstSpan(&copy, 1));
             const StreamTimer::Span timed(edits_);
             LaunchCopyTokens(shape, cache, record, 1,
                              {.heads = target.heads,
                               .count = piece,
                               .units = piece / target.unit,
                               .is_staged = true,
                               .has_attributes = HasAttributes(from, to)},
                              Scratch(CopyScratchBytes(target.heads, piece, shape.head_dim)), at());
           });
}

void CudaBackend::CopyAll(const AttentionShape& shape, PoolView pool,
                          absl::Span<const TokenCopy> copies) {
  CopyBatch batch(shape, LimitsOfBatches());
  const auto launch = [&] {
    const DeviceCache cache = Cache(pool, batch.image());
    const CopyRecord* const records = uploads_->Place(batch.records());
    const StreamTimer::Span timed(edits_);
    LaunchCopyTokens(shape, cache, records, static_cast<int>(batch.records().size()), batch.most(),
                     Scratch(batch.scratch_bytes()), at());
    batch.Clear();
  };
  InBatches(copies, batch, launch, [&](const TokenCopy& copy) {
    CopyTokens(shape, pool, *copy.from, TokenChoice::From(copy.first, copy.count), *copy.to,
               copy.first_slot);
  });
}

void CudaBackend::ReadTokens(const AttentionShape& shape, PoolView pool, const SegmentView& segment,
                             int first, int count, float* k, float* v) {
  TableImage image;
  const uint32_t source = image.AddSegment(segment);
  LaunchReadTokens(shape, Cache(pool, image), source, first, count, k, v, at());
}

void CudaBackend::MergeAngles(const AttentionShape& shape, ElementType element, const void* k0,
                              const void* k1, int m, float* angles) {
  LaunchMergeAngles(shape, element, k0, k1, m, angles, at());
}

void CudaBackend::WriteMerged(const AttentionShape& shape, const KeyValues& lower_tokens,
                              const KeyValues& upper_tokens, const TokenChoice& rows, double t,
                              PoolView pool, const SegmentView& lower, const SegmentView& upper,
                              int first_slot) {
  TableImage image;
  const MergedSegment merged = {image.AddTarget(lower), image.AddSegment(upper)};
  const DeviceCache cache = Cache(pool, image);
  const int heads = merged.lower.heads;
  InPieces(rows.count, merged.lower.unit, MergeScratchBytes(heads, 1, shape.head_dim),
           scratch_.bytes(), [&](int done, int piece) {
             LaunchWriteMerged(shape, lower_tokens, upper_tokens, IndicesFrom(rows, done), piece, t,
                               cache, merged, first_slot + done,
                               Scratch(MergeScratchBytes(heads, piece, shape.head_dim)), at());
           });
}

void CudaBackend::MergeTails(const AttentionShape& shape, PoolView pool,
                             absl::Span<const TailMerge> merges) {
  MergeBatch batch(shape, LimitsOfBatches());
  const auto launch = [&] {
    const DeviceCache cache = Cache(pool, batch.image());
    const TailMergeRecord* const records = uploads_->Place(batch.records());
    const StreamTimer::Span timed(edits_);
    LaunchMergeTails(shape, cache, records, static_cast<int>(batch.records().size()), batch.each(),
                     Scratch(batch.scratch_bytes()), at());
    batch.Clear();
  };
  InBatches(merges, batch, launch, [&](const TailMerge& merge) {
    PromptBackend::MergeTails(shape, pool, {&merge, 1});
  });
}

// ---- Between the GEMMs --------------------------------------------------------------------------

void CudaBackend::RmsNorm(const float* x, const float* weight, float epsilon, int rows, int width,
                          ElementType element, void* out) {
  LaunchRmsNorm(x, weight, epsilon, rows, width, element, out, at());
}

void CudaBackend::SplitAndRotate(const AttentionShape& shape, ElementType element, const void* qkv,
                                 const float* cos, const float* sin, int rows,
                                 ElementType out_element, void* q, void* k, void* v) {
  LaunchSplitAndRotate(shape, element, qkv, cos, sin, rows, out_element, q, k, v, at());
}

void CudaBackend::SwiGlu(ElementType element, const void* gate_up, int rows, int width, void* out) {
  LaunchSwiGlu(element, gate_up, rows, width, out, at());
}

}  // namespace ziggurat::cuda
