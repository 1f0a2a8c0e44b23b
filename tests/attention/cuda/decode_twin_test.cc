// Decode attention of the GPU's kernels against the reference.

#include <cstring>
#include <tuple>

#include "attention/bfloat16.h"
#include "tests/attention/cuda/device_twin.h"
#include "tests/attention/distant_layers.h"

namespace ziggurat::cuda {
namespace {

/// Queries that are bf16 numbers, as a bf16 model has them, for both kinds of kernels.
void ExpectTwins(const AttentionShape& shape, Batch& batch, ElementType compute,
                 LargestDeviation* seen, const std::string& what, int multiprocessors = 1) {
  const std::vector<float> q = Queries(Encoding::kBf16, shape, batch.items.size(), 99);
  const Decoded expected =
      RunDecode(*MakeReferenceBackend(), shape, batch.items, q, batch.pool.view());
  DeviceTwin twin(compute, multiprocessors);
  const Decoded actual = RunDecode(twin, shape, batch.items, q, batch.pool.view());
  const double out = Deviation(actual.out, expected.out);
  const double lse = Deviation(actual.lse, expected.lse);
  seen->See(std::max(out, lse));
  EXPECT_LE(out, Tolerance(compute)) << what;
  EXPECT_LE(lse, Tolerance(compute)) << what;
}

/// The smallest and the largest group of grouped encodings, and what else is of `encoding`.
std::vector<CacheFormat> FormatsOf(Encoding encoding, int head_dim) {
  std::vector<CacheFormat> formats = EncodedFormats(head_dim);
  std::erase_if(formats, [&](const CacheFormat& f) { return f.encoding != encoding; });
  if (formats.size() > 2) formats.erase(formats.begin() + 1, formats.end() - 1);
  return formats;
}

// Tests of other files ask for a CPU's backend, and here get the GPU's kernels.
TEST(CudaTwin, IsTheBackendOfThisBinary) {
  ASSERT_EQ(SupportedCpuLevels().size(), 1u);
  EXPECT_EQ((*MakeCpuBackend(SupportedCpuLevels()[0], 1))->name(), "cuda-f32");
}

// Fewer warps than there is work for, more, and as many as a large card has.
TEST(CudaDecodeWork, IsCutForAnyNumberOfMultiprocessors) {
  LargestDeviation seen("cuda decode on many multiprocessors");
  for (const int head_dim : {64, 80, 128, 256}) {
    const AttentionShape shape = Shape(8, 2, head_dim);
    for (int multiprocessors : {1, 5, 132}) {
      if (head_dim != 64 && multiprocessors == 5) continue;
      for (const CacheFormat& format : {CacheFormat{Encoding::kBf16}, {Encoding::kInt4, 16}}) {
        Batch batch(format, shape, {1, 33, 0, 1500, 700, 64});
        for (ElementType compute : {ElementType::kF32, ElementType::kBf16}) {
          ExpectTwins(shape, batch, compute, &seen,
                      absl::StrCat(Name(format), " on ", multiprocessors), multiprocessors);
        }
      }
    }
  }
}

// Of a kernel of which few fit, while others have theirs.
TEST(CudaDecodeWork, HasNoMoreWarpsThanADeviceHoldsAtOnce) {
  constexpr DecodeKernel kPlain = DecodeKernel::Plain();
  constexpr DecodeKernel kTensor = DecodeKernel::Tensor(Encoding::kBf16);
  DecodeBucket bucket;
  bucket.shape = Shape(8, 2, 64);
  bucket.max_items = bucket.max_runs = 4;
  bucket.workers = DecodeWorkers::Alike(24);
  bucket.kernels = kPlain.bit() | kTensor.bit();
  const size_t bytes = DecodeScratchBytes(bucket);
  bucket.workers.of_kernel[kPlain.index()] = 8;
  EXPECT_LT(DecodeScratchBytes(bucket), bytes);
  size_t unused = 0;
  const DecodePlans plans = LayOutPlans(bucket, 0, nullptr, &unused);
  ASSERT_EQ(plans.count, 2);
  EXPECT_EQ(plans.plans[0].workers, 8);
  EXPECT_EQ(plans.plans[1].workers, 24);

  for (const int head_dim : {64, 80, 128, 256}) {
    const DecodeWorkers found = FindDecodeWorkers(Shape(8, 2, head_dim), 3);
    EXPECT_EQ(found.most, 36);
    for (const DecodeKernel kernel : {kPlain, kTensor, DecodeKernel::Tensor(Encoding::kInt4)}) {
      const int workers = found.of_kernel[kernel.index()];
      EXPECT_GT(workers, 0) << head_dim;
      EXPECT_LE(workers, found.most) << head_dim;
      EXPECT_EQ(workers % 3, 0) << head_dim;
    }
  }
}

// Long enough for every warp to go round its stages in shared memory, with a rest behind; and
// groups in every relation to the 32 slots of a chunk.
TEST(CudaDecodeWork, GoesThroughManyChunksOfCodes) {
  LargestDeviation seen("cuda decode of many chunks");
  for (const int head_dim : {64, 128}) {
    const AttentionShape shape = Shape(8, 2, head_dim);
    for (const CacheFormat& format : {CacheFormat{Encoding::kInt8},
                                      {Encoding::kFp8},
                                      {Encoding::kInt4, 32},
                                      {Encoding::kInt4, 64},
                                      {Encoding::kInt4, 128},
                                      {Encoding::kInt4, 16},
                                      {Encoding::kInt2, 32},
                                      {Encoding::kInt2, 64}}) {
      if (format.group > head_dim) continue;
      Batch batch(format, shape, {2500, 777, 96});
      ExpectTwins(shape, batch, ElementType::kBf16, &seen,
                  absl::StrCat(Name(format), " D=", head_dim));
    }
  }
}

// A lane of the tensor-core kernels takes a piece of some channels of a value, and its scales of
// that piece's groups.
TEST(CudaDecodeWork, TakesGroupsThatEndWithinWhatALaneLoads) {
  LargestDeviation seen("cuda decode of groups that end within pieces");
  const auto agrees = [&](int head_dim, Encoding encoding, int group) {
    const AttentionShape shape = Shape(4, 2, head_dim);
    const CacheFormat format{encoding, static_cast<uint16_t>(group)};
    Batch batch(format, shape, {2 * group, 5 * group});
    ExpectTwins(shape, batch, ElementType::kBf16, &seen,
                absl::StrCat(Name(format), " D=", head_dim));
  };
  for (const auto& [head_dim, group] : {std::pair{80, 40},
                                        {80, 16},
                                        {96, 24},
                                        {96, 48},
                                        {112, 56},
                                        {120, 40},
                                        {160, 40},
                                        {160, 80},
                                        {192, 48},
                                        {224, 112}}) {
    agrees(head_dim, Encoding::kInt4, group);
    if (group % 16 == 0) agrees(head_dim, Encoding::kInt2, group);
  }
}

/// Every scale (zeros stay) of a plane of grouped codes becomes one of `scales`, in turn.
void SetScales(TestPool& pool, const PlaneView& plane, const SegmentView& segment, int head_dim,
               const std::vector<float>& scales) {
  const PoolView view = pool.view();
  const uint32_t units = plane.slots_per_block / segment.group;
  for (int slot = 0; slot < segment.num_slots; slot += segment.group) {
    const uint32_t unit = slot / segment.group;
    for (int head = 0; head < segment.num_kv_heads; ++head) {
      std::byte* entry = view.base + plane.blocks[unit / units] * view.block_bytes +
                         size_t{plane.head_stride_bytes} * head + plane.offset_bytes +
                         size_t{plane.unit_bytes} * (unit % units);
      for (int i = 0; i < head_dim; ++i) {
        const uint16_t scale = FloatToBf16(scales[(i + unit) % scales.size()]);
        std::memcpy(entry + 2 * i, &scale, 2);
      }
    }
  }
}

// Channels that are constant, nearly so, and far apart.
TEST(CudaDecodeWork, TakesScalesOfAnySize) {
  LargestDeviation seen("cuda decode of scales of any size");
  for (const int head_dim : {64, 128}) {
    const AttentionShape shape = Shape(8, 2, head_dim);
    for (const Encoding encoding : {Encoding::kInt4, Encoding::kInt2}) {
      Batch batch({encoding, 32}, shape, {320, 96});
      for (const auto& list : batch.segments) {
        SetScales(batch.pool, list[0].key_scales, list[0], head_dim, {0, 1e-39F, 1e-20F, 0.1F});
        SetScales(batch.pool, list[0].value_scales, list[0], head_dim, {0, 1e-39F, 1e4F, 1e-3F});
      }
      ExpectTwins(shape, batch, ElementType::kBf16, &seen,
                  absl::StrCat(Name({encoding, 32}), " D=", head_dim));
    }
  }
}

TEST(CudaDecodeWork, GivesZerosWhereNothingIsHeld) {
  const AttentionShape shape = Shape(8, 2, 64);
  TestPool pool(CacheGeometry::DefaultBlockBytes(2, 64), 1);
  for (const ElementType compute : {ElementType::kF32, ElementType::kBf16}) {
    DeviceTwin twin(compute, 1);
    const Decoded actual =
        RunDecode(twin, shape, {DecodeItem{}}, std::vector<float>(8 * 64, 1), pool.view());
    EXPECT_EQ(actual.out, std::vector<float>(8 * 64, 0));
    EXPECT_EQ(actual.lse, std::vector<float>(8, -INFINITY));
  }
}

class CudaDecode : public testing::TestWithParam<std::tuple<Encoding, int, ElementType>> {
 protected:
  Encoding encoding() const { return std::get<0>(GetParam()); }
  int head_dim() const { return std::get<1>(GetParam()); }
  ElementType compute() const { return std::get<2>(GetParam()); }
  std::string Family(const char* what) const {
    return std::string("cuda decode ") + what + " " + std::string(EncodingName(encoding())) +
           " D=" + std::to_string(head_dim()) + " in " + Name(compute());
  }
};

TEST_P(CudaDecode, AgreesOnUnequalLengthsForGroups) {
  LargestDeviation seen(Family("lengths"));
  for (int group : {1, 4, 7, 11}) {
    const AttentionShape shape = Shape(2 * group, 2, head_dim());
    for (const CacheFormat& format : FormatsOf(encoding(), head_dim())) {
      Batch batch(format, shape, {1, 33, 0, 130, 8});
      ExpectTwins(shape, batch, compute(), &seen, Name(format) + " x " + std::to_string(group));
    }
  }
}

TEST_P(CudaDecode, AgreesOnSegmentsHeadGroupsAndNorms) {
  LargestDeviation seen(Family("segments"));
  const AttentionShape shape = Shape(8, 2, head_dim());
  for (const CacheFormat& format : FormatsOf(encoding(), head_dim())) {
    Batch batch(shape, {{{format, 40, 0, 1},
                         {Merged(format), 65},
                         {format, 100, 1, 1},
                         {CacheFormat::kBf16, 0},
                         {Scored(format), 31},
                         {CacheFormat::kF32, 5}},
                        {{format, 7}}});
    batch.items.push_back({absl::MakeSpan(batch.segments[0]).subspan(1, 2)});
    ExpectTwins(shape, batch, compute(), &seen, Name(format));
  }
}

TEST_P(CudaDecode, SeesTokensThatCameSinceTheViewWasTaken) {
  LargestDeviation seen(Family("stale view"));
  const AttentionShape shape = Shape(4, 2, head_dim());
  for (const CacheFormat& format : FormatsOf(encoding(), head_dim())) {
    Batch batch(shape, {{{format, 64}, {format, 33}}});
    std::vector<SegmentView> old(batch.segments[0].begin(), batch.segments[0].end());
    old[1].num_slots -= 9;
    const TokenTarget target = {1, 32};
    batch.items.push_back({old, {&target, 1}});
    ExpectTwins(shape, batch, compute(), &seen, Name(format));
  }
}

class CudaDistantDecode : public CudaDecode {};

TEST_P(CudaDistantDecode, AgreesWhateverIsSkipped) {
  LargestDeviation seen(Family("distant"));
  DistantCounts all;
  for (const CacheFormat& format : FormatsOf(encoding(), head_dim())) {
    for (int group : {2, 9}) {
      const AttentionShape shape = Shape(TwoLayers::kHeads * group, TwoLayers::kHeads, head_dim());
      TwoLayers layers(shape, format, 40, 70);
      // Where 0.5 is skipped and where not would be a matter of rounding in bf16.
      for (double skip : compute() == ElementType::kF32 ? std::vector<double>{2.0, 0.5, 0.0}
                                                        : std::vector<double>{2.0, 0.0}) {
        const auto run = [&](AttentionBackend& backend) {
          return RunLayers(backend, shape, {&layers, &layers}, layers.pool.view(), Encoding::kBf16,
                           skip)[1];
        };
        const DistantDecoded expected = run(*MakeReferenceBackend());
        for (const int multiprocessors : {1, 132}) {
          DeviceTwin twin(compute(), multiprocessors);
          const DistantDecoded actual = run(twin);
          const double deviation =
              std::max({Deviation(actual.out, expected.out), Deviation(actual.lse, expected.lse),
                        Deviation(Stored(actual.distant_lse), Stored(expected.distant_lse))});
          seen.See(deviation);
          EXPECT_LE(deviation, Tolerance(compute())) << Name(format) << " skip " << skip;
          EXPECT_EQ(Stored(actual.low_q), Stored(expected.low_q));
          EXPECT_EQ(actual.counts.attended, expected.counts.attended);
          EXPECT_EQ(actual.counts.skipped, expected.counts.skipped);
        }
        all.attended += expected.counts.attended;
        all.skipped += expected.counts.skipped;
      }
    }
  }
  EXPECT_GT(all.attended, 0u);
  EXPECT_GT(all.skipped, 0u);
}

std::string CaseName(
    const testing::TestParamInfo<std::tuple<Encoding, int, ElementType>>& instance) {
  return std::string(EncodingName(std::get<0>(instance.param))) + "_" +
         std::to_string(std::get<1>(instance.param)) + "_in_" + Name(std::get<2>(instance.param));
}
INSTANTIATE_TEST_SUITE_P(All, CudaDecode,
                         testing::Combine(testing::Values(Encoding::kF32, Encoding::kBf16,
                                                          Encoding::kInt8, Encoding::kFp8,
                                                          Encoding::kInt4, Encoding::kInt2),
                                          testing::Values(16, 32, 64, 80, 96, 128, 256),
                                          testing::Values(ElementType::kF32, ElementType::kBf16)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(All, CudaDistantDecode,
                         testing::Combine(testing::Values(Encoding::kF32, Encoding::kBf16,
                                                          Encoding::kInt8, Encoding::kFp8,
                                                          Encoding::kInt4, Encoding::kInt2),
                                          testing::Values(64),
                                          testing::Values(ElementType::kF32, ElementType::kBf16)),
                         CaseName);

}  // namespace
}  // namespace ziggurat::cuda
