// Decode attention: every level against the reference, the reference against a plain softmax.

#include <functional>

#include "tests/attention/decode_batch.h"

namespace ziggurat {
namespace {

/// Of codes for a model in bf16: products of 16 bits. With outliers the numbers beside them
/// have fewer.
constexpr double kRoundedTolerance = 5e-4, kOutlierTolerance = 3e-3;
/// The same for the output of AMD's levels, which round weights of grouped codes to bf16.
double RoundedOutTolerance(CpuLevel level, Encoding encoding) {
  const bool rounds_weights = level == CpuLevel::kZen4 || level == CpuLevel::kZen5;
  return rounds_weights && IsGrouped(encoding) ? 4e-3 : kRoundedTolerance;
}

/// Compares every level, with each number of threads, with the reference: as of a model in f32,
/// and, unless f32 is what is stored, as of one in bf16.
void ExpectTwins(Encoding encoding, AttentionShape shape, const std::vector<DecodeItem>& items,
                 PoolView pool, LargestDeviation* seen,
                 const std::vector<int>& threads_to_try = {1, 2, 3},
                 double rounded_tolerance = kRoundedTolerance,
                 const std::function<void(std::vector<float>*)>& change_queries = {}) {
  std::vector<float> q = Queries(encoding, shape, items.size(), 99);
  if (change_queries) change_queries(&q);
  const Decoded expected = RunDecode(*MakeReferenceBackend(), shape, items, q, pool);
  std::vector<ElementType> elements = {ElementType::kF32};
  if (encoding != Encoding::kF32) elements.push_back(ElementType::kBf16);
  for (ElementType element : elements) {
    shape.element = element;
    const bool is_rounded = element == ElementType::kBf16;
    const double tolerance =
        is_rounded ? std::max(rounded_tolerance, Tolerance(encoding)) : Tolerance(encoding);
    for (CpuLevel level : SupportedCpuLevels()) {
      const double out_tolerance =
          is_rounded ? std::max(tolerance, RoundedOutTolerance(level, encoding)) : tolerance;
      for (int threads : threads_to_try) {
        auto backend = *MakeCpuBackend(level, threads);
        const Decoded actual = RunDecode(*backend, shape, items, q, pool);
        const double out = Deviation(actual.out, expected.out);
        const double lse = Deviation(actual.lse, expected.lse);
        seen->See(std::max(out, lse));
        EXPECT_LE(out, out_tolerance) << backend->name() << " threads " << threads << " heads "
                                      << shape.num_q_heads << "/" << shape.num_kv_heads;
        EXPECT_LE(lse, tolerance) << backend->name() << " threads " << threads;
      }
    }
  }
}

/// Every format, for a model in f32 and for one in bf16.
std::vector<std::pair<CacheFormat, ElementType>> FormatsAndElements(int head_dim) {
  std::vector<std::pair<CacheFormat, ElementType>> both;
  for (const CacheFormat& format : EncodedFormats(head_dim)) {
    both.push_back({format, ElementType::kF32});
    both.push_back({format, ElementType::kBf16});
  }
  return both;
}

class DecodeTwins : public testing::TestWithParam<std::tuple<Encoding, int>> {
 protected:
  Encoding encoding() const { return std::get<0>(GetParam()); }
  int head_dim() const { return std::get<1>(GetParam()); }
  /// The formats of this encoding: grouped ones with every group.
  std::vector<CacheFormat> Formats() const {
    std::vector<CacheFormat> formats = EncodedFormats(head_dim());
    std::erase_if(formats, [this](const CacheFormat& f) { return f.encoding != encoding(); });
    EXPECT_FALSE(formats.empty());
    return formats;
  }
  /// Grouped ones with the smallest and the largest group, and with 32, which levels have kernels
  /// of their own for: the reference takes its time.
  std::vector<CacheFormat> FewFormats() const {
    std::vector<CacheFormat> formats = Formats();
    const CacheFormat first = formats.front(), last = formats.back();
    std::erase_if(formats, [&](const CacheFormat& f) {
      return f.group != first.group && f.group != last.group && f.group != 32;
    });
    return formats;
  }
  std::string Family(const char* what) const {
    return std::string("decode ") + what + " " + std::string(EncodingName(encoding())) +
           " D=" + std::to_string(head_dim());
  }
};

TEST_P(DecodeTwins, AgreeAroundBlockBordersForEveryGroupSize) {
  LargestDeviation seen(Family("short"));
  // A batch of unequal lengths; a sequence without any token is part of it.
  const std::vector<int> lengths = {1,  7,  8,   9,   15,  0,   16,  17,
                                    31, 33, 127, 128, 129, 255, 256, 257};
  const std::vector<int> few = {1, 9, 33, 0, 130, 257};
  for (int group : {1, 2, 4, 8, 3, 7, 12, 16, 17}) {
    for (const CacheFormat& format : group == 4 ? Formats() : FewFormats()) {
      const AttentionShape shape = Shape(2 * group, 2, head_dim());
      Batch batch(format, shape, IsPlain(encoding()) ? lengths : few);
      ExpectTwins(encoding(), shape, batch.items, batch.pool.view(), &seen,
                  IsPlain(encoding()) ? std::vector<int>{1, 2, 3} : std::vector<int>{1});
    }
  }
}

TEST_P(DecodeTwins, AgreeOnLongSequencesThatAreSplitAndMerged) {
  LargestDeviation seen(Family("long"));
  std::vector<int> lengths = {1000, 1023, 1024, 1025, 4095, 4096, 4097};
  if (!IsPlain(encoding())) lengths = {1023, 4097};
  if (kSlowBuild) lengths = {1025, 2049};
  for (const CacheFormat& format : FewFormats()) {
    for (int group : IsPlain(encoding()) ? std::vector<int>{1, 4, 8} : std::vector<int>{4}) {
      const AttentionShape shape = Shape(group, 1, head_dim());
      Batch batch(format, shape, lengths);
      ExpectTwins(encoding(), shape, batch.items, batch.pool.view(), &seen, {1, 3});
    }
  }
}

TEST_P(DecodeTwins, AgreeOnSeveralSegmentsMerged) {
  LargestDeviation seen(Family("segments"));
  const AttentionShape shape = Shape(8, 2, head_dim());
  for (const CacheFormat& format : Formats()) {
    std::vector<SegmentSpec> specs;
    for (int slots : {4, 0, 250, 1030, 1, 129}) specs.push_back({format, slots});
    Batch batch(shape, {specs});
    batch.items.push_back({absl::MakeSpan(batch.segments[0]).subspan(1, 2)});
    ExpectTwins(encoding(), shape, batch.items, batch.pool.view(), &seen, {1});
  }
}

TEST_P(DecodeTwins, SeeTokensThatCameSinceTheViewWasTaken) {
  LargestDeviation seen(Family("stale view"));
  AttentionShape shape = Shape(4, 2, head_dim());
  for (const CacheFormat& format : FewFormats()) {
    Batch batch(shape, {{{format, 64}, {format, 33}}});
    // The same segments by views that were taken up to nine tokens before.
    for (const int since : {1, 9}) {
      std::vector<SegmentView> old(batch.segments[0].begin(), batch.segments[0].end());
      old[1].num_slots -= since;
      const TokenTarget target = {1, 32};
      const DecodeItem stale = {old, {&target, 1}};
      const std::vector<float> q = Queries(encoding(), shape, 1, 5);
      for (CpuLevel level : SupportedCpuLevels()) {
        auto backend = *MakeCpuBackend(level, 2);
        for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
          shape.element = element;
          const Decoded now = RunDecode(*backend, shape, {batch.items[0]}, q, batch.pool.view());
          EXPECT_EQ(RunDecode(*backend, shape, {stale}, q, batch.pool.view()).out, now.out);
        }
      }
      ExpectTwins(encoding(), shape, {stale}, batch.pool.view(), &seen, {1});
    }
  }
}

TEST_P(DecodeTwins, AgreeOnHeadGroupsWithDifferentCounts) {
  LargestDeviation seen(Family("head groups"));
  const int kv_heads = 3;
  const AttentionShape shape = Shape(2 * kv_heads, kv_heads, head_dim());
  for (const CacheFormat& format : Formats()) {
    std::vector<SegmentSpec> specs;
    for (int head = 0; head < kv_heads; ++head) specs.push_back({format, 37 + 400 * head, head, 1});
    specs.push_back({format, 21});
    // Two of the three heads, which do not divide the block, where they may.
    if (IsPlain(encoding()) && head_dim() % 32 == 0) specs.push_back({format, 50, 1, 2});
    Batch batch(shape, {specs});
    if (IsPlain(encoding())) {
      // 16 tokens of all heads in bf16 are 16 * kv_heads of one head; f32: half as many.
      EXPECT_EQ(batch.segments[0][0].keys.slots_per_block,
                kv_heads * (encoding() == Encoding::kBf16 ? 16u : 8u));
    }
    ExpectTwins(encoding(), shape, batch.items, batch.pool.view(), &seen, {1});
  }
}

TEST_P(DecodeTwins, AgreeOnMergedDirectionsWithTheNormsOfEitherLayer) {
  LargestDeviation seen(Family("merged"));
  for (const CacheFormat& format : FewFormats()) {
    for (int group : {1, 7}) {
      const AttentionShape shape = Shape(2 * group, 2, head_dim());
      Batch batch(shape, {{{Merged(format), 333}}, {{Merged(format), 40}, {format, 70}}});
      const SegmentView upper = UpperView(batch.segments[0][0]);
      batch.items.push_back({{&upper, 1}});
      ExpectTwins(encoding(), shape, batch.items, batch.pool.view(), &seen, {1});
    }
  }
}

TEST_P(DecodeTwins, AgreeForAnySlotsPerBlock) {
  LargestDeviation seen(Family("odd blocks"));
  const AttentionShape shape = Shape(5, 1, head_dim());
  for (const CacheFormat& format : FewFormats()) {
    for (int slots : {8, 24, 40, 5, 13, 32, 48, 64, 128}) {
      // Codes and scales in blocks of the same size: the scales' need not be whole in them.
      const size_t unit = PlanesOf(format, 1, head_dim()).planes[0].unit_bytes;
      size_t block_bytes = unit * slots;
      if (IsGrouped(encoding())) block_bytes = size_t{8} * head_dim() * slots;
      Batch batch(format, shape, {333}, block_bytes);
      ExpectTwins(encoding(), shape, batch.items, batch.pool.view(), &seen, {1});
    }
  }
}

std::string CaseName(const testing::TestParamInfo<std::tuple<Encoding, int>>& instance) {
  return std::string(EncodingName(std::get<0>(instance.param))) + "_" +
         std::to_string(std::get<1>(instance.param));
}
INSTANTIATE_TEST_SUITE_P(Plain, DecodeTwins,
                         testing::Combine(testing::Values(Encoding::kF32, Encoding::kBf16),
                                          testing::Values(8, 16, 24, 32, 40, 64, 80, 96, 128, 256)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Coded, DecodeTwins,
                         testing::Combine(testing::Values(Encoding::kInt8, Encoding::kFp8,
                                                          Encoding::kInt4),
                                          testing::Values(8, 16, 24, 32, 40, 64, 80, 96, 128, 256)),
                         CaseName);
// 16 channels fill a cell.
INSTANTIATE_TEST_SUITE_P(Int2, DecodeTwins,
                         testing::Combine(testing::Values(Encoding::kInt2),
                                          testing::Values(16, 32, 64, 80, 96, 128, 256)),
                         CaseName);

// More heads than a job takes, of a number that its jobs do not share evenly.
TEST(DecodeAttention, AgreesOnMoreHeadsThanAreTakenAtATime) {
  LargestDeviation seen("decode many heads");
  for (const CacheFormat& format :
       {CacheFormat{Encoding::kF32}, CacheFormat{Encoding::kBf16}, CacheFormat{Encoding::kInt8},
        CacheFormat{Encoding::kInt4, 32}}) {
    for (const auto& [heads, group, head_dim] : {std::tuple{5, 4, 128}, {11, 1, 32}, {18, 2, 32}}) {
      const AttentionShape shape = Shape(heads * group, heads, head_dim);
      const int slots = RoundUp(77, format.UnitTokens());
      Batch batch(shape, {{{format, slots}}, {{format, slots, 1, heads - 1}}});
      ExpectTwins(format.encoding, shape, batch.items, batch.pool.view(), &seen, {1, 2});
    }
  }
}

// What a layer of a composed policy holds: any formats side by side.
TEST(DecodeAttention, AgreesOnEveryFormatInOneLayer) {
  LargestDeviation seen("decode all formats in one layer");
  for (int head_dim : {32, 128}) {
    for (int group : {1, 4, 8}) {
      const AttentionShape shape = Shape(2 * group, 2, head_dim);
      std::vector<SegmentSpec> specs;
      for (const CacheFormat& format : EncodedFormats(head_dim)) {
        specs.push_back({format, 100 + 7 * static_cast<int>(specs.size())});
        specs.push_back({Merged(format), 60});
        specs.push_back({Scored(format), 20, 0, 1});
      }
      std::vector<SegmentSpec> reversed(specs.rbegin(), specs.rend());
      Batch batch(shape, {specs, reversed});
      ExpectTwins(Encoding::kBf16, shape, batch.items, batch.pool.view(), &seen);
    }
  }
}

// A group of channels that is no whole number of vectors, and one of tokens that spans blocks.
TEST(DecodeAttention, AgreesOnOddQuantizationGroups) {
  LargestDeviation seen("decode odd quantization groups");
  for (Encoding encoding : {Encoding::kInt4, Encoding::kInt2}) {
    for (uint16_t code_group : {2, 4, 5, 10, 20, 40, 80, 160}) {
      const AttentionShape shape = Shape(4, 2, 160);
      Batch batch({encoding, code_group}, shape, {1, 170, 330});
      ExpectTwins(encoding, shape, batch.items, batch.pool.view(), &seen, {1});
    }
  }
  const AttentionShape shape = Shape(8, 1, 128);
  const CacheFormat spanning = {Encoding::kInt4, 128};
  Batch batch(spanning, shape, {1, 129, 700});
  EXPECT_EQ(batch.segments[0][0].keys.slots_per_block, 64u);
  ExpectTwins(Encoding::kInt4, shape, batch.items, batch.pool.view(), &seen);
}

// Scales of as many groups of channels as a head can have: kernels load them by the vector.
TEST(DecodeAttention, AgreesOnAnyNumberOfGroupsOfChannels) {
  LargestDeviation seen("decode groups of channels");
  for (Encoding encoding : {Encoding::kInt4, Encoding::kInt2}) {
    for (int head_dim : {160, 192, 224}) {
      const AttentionShape shape = Shape(6, 1, head_dim);
      Batch batch({encoding, 32}, shape, {32, 160, 288});
      ExpectTwins(encoding, shape, batch.items, batch.pool.view(), &seen, {1});
    }
  }
}

// A query between two numbers of bf16, of a model in f32, over keys in bf16.
TEST(DecodeAttention, TakesQueriesForTheNearestNumbers) {
  constexpr int kDim = 32;
  const float query = 1 + 1.5f / 256, key = 64;
  for (int group : {1, 4}) {
    AttentionShape shape = Shape(group, 1, kDim);
    shape.scale = 1;
    Batch batch(CacheFormat::kBf16, shape, {1});
    for (int c = 0; c < kDim; ++c) {
      std::byte* const to = KeyAddress(batch.pool.view(), batch.segments[0][0], 0, 0, c);
      Put(ElementType::kBf16, to, c == 7 ? key : 0);
    }
    for (auto& backend : AllBackends()) {
      const std::vector<float> q(size_t{1} * group * kDim, query);
      const Decoded decoded = RunDecode(*backend, shape, batch.items, q, batch.pool.view());
      for (const float lse : decoded.lse) {
        EXPECT_NEAR(lse, query * key, key / 512 + 1e-4) << backend->name();
      }
    }
  }
}

/// Random keys and values, which change(i, &k, &v) may change at place i of [slots, heads,
/// head_dim], in the batch's first segment.
template <class Change>
void WriteChanged(const AttentionShape& shape, int slots, Batch* batch, Change change) {
  const size_t floats = size_t{1} * slots * shape.num_kv_heads * shape.head_dim;
  Tensor k = RandomTensor(ElementType::kF32, floats, 5);
  Tensor v = RandomTensor(ElementType::kF32, floats, 6);
  for (size_t i = 0; i < floats; ++i) change(i, &k, &v);
  MakeReferenceBackend()->WriteTokens(shape, {ElementType::kF32, k.data(), v.data()},
                                      TokenChoice::From(0, slots), batch->pool.view(),
                                      batch->segments[0][0], 0);
}

// A key channel and a group of value channels that are 40 times as large as the others, as models
// have them, leave few bits of a common fixed point for the rest; so does another channel of the
// queries.
TEST(DecodeAttention, AgreesOnCodesWithOutliers) {
  LargestDeviation seen("decode outliers");
  constexpr int kSlots = 352;
  for (Encoding encoding : {Encoding::kInt4, Encoding::kInt2}) {
    for (int head_dim : {64, 128, 256}) {
      const AttentionShape shape = Shape(8, 2, head_dim);
      Batch batch({encoding, 32}, shape, {kSlots});
      WriteChanged(shape, kSlots, &batch, [head_dim](size_t i, Tensor* k, Tensor* v) {
        const size_t c = i % head_dim;
        if (c == 37) k->set(i, k->at(i) * 40);
        if (c / 32 == 1) v->set(i, v->at(i) * 40);
      });
      for (const float factor : {1, 20}) {
        ExpectTwins(encoding, shape, batch.items, batch.pool.view(), &seen, {1, 2},
                    kOutlierTolerance, [&](std::vector<float>* q) {
                      for (size_t i = 5; i < q->size(); i += head_dim) (*q)[i] *= factor;
                    });
      }
    }
  }
}

// The largest score of a chunk lies a little, or much, above or below that of the chunks before, or
// far below; for two of three query heads that share keys the other way round.
TEST(DecodeAttention, AgreesWhenTheLargestScoreMovesFromChunkToChunk) {
  LargestDeviation seen("decode moving maximum");
  constexpr int kChunk = 128, kDim = 64;
  constexpr float kLevels[] = {0, 5, 9, 40, -65, 31, 44};  // powers of two
  for (const CacheFormat& format :
       {CacheFormat{Encoding::kF32}, CacheFormat{Encoding::kBf16}, CacheFormat{Encoding::kInt8},
        CacheFormat{Encoding::kFp8}, CacheFormat{Encoding::kInt4, 32},
        CacheFormat{Encoding::kInt2, 32}}) {
    const int slots = 6 * kChunk + (format.group > 0 ? format.group : 37);
    for (int group : {1, 3, 4, 5, 8, 12}) {
      const AttentionShape shape = Shape(2 * group, 2, kDim);
      Batch batch(format, shape, {slots});
      WriteChanged(shape, slots, &batch, [&](size_t i, Tensor* k, Tensor* /*v*/) {
        const size_t slot = i / (2 * kDim);
        k->set(i, i % kDim == 0 ? kLevels[slot / kChunk] : k->at(i) / 4);
      });
      ExpectTwins(format.encoding, shape, batch.items, batch.pool.view(), &seen, {1},
                  kOutlierTolerance, [&](std::vector<float>* q) {
                    for (int head = 0; head < shape.num_q_heads; ++head) {
                      const float one = std::log(2.0f) / shape.scale;  // 2^1 a level
                      const float rounded = Bf16ToFloat(FloatToBf16(one));
                      (*q)[head * kDim] = head % 3 == 0 ? rounded : -rounded;
                    }
                  });
    }
  }
}

// As the first token of a text often does: it has nearly all of the attention, and values so small
// that the other tokens of its chunk make the output.
TEST(DecodeAttention, AgreesWhenATokenOfSmallValuesDrawsTheAttention) {
  LargestDeviation seen("decode sink");
  constexpr int kSlots = 128, kDim = 64;
  for (Encoding encoding : {Encoding::kInt4, Encoding::kInt2}) {
    const AttentionShape shape = Shape(8, 2, kDim);
    Batch batch({encoding, 32}, shape, {kSlots});
    WriteChanged(shape, kSlots, &batch, [](size_t i, Tensor* k, Tensor* v) {
      const bool is_sink = i / (2 * kDim) == 0;
      k->set(i, i % kDim == 0 ? (is_sink ? 16 : 0) : k->at(i) / 4);
      if (is_sink) v->set(i, v->at(i) / 1000);
    });
    ExpectTwins(encoding, shape, batch.items, batch.pool.view(), &seen, {1}, 2 * kRoundedTolerance,
                [&](std::vector<float>* q) {
                  for (size_t i = 0; i < q->size(); i += kDim) {
                    (*q)[i] = Bf16ToFloat(FloatToBf16(10 / 16.0f / shape.scale));  // e^10 as much
                  }
                });
  }
}

// Every number that e4m3 has, the subnormal ones among them, as key and as value.
TEST(DecodeAttention, AgreesOnEveryFp8Code) {
  const AttentionShape shape = Shape(3, 1, 32);
  Batch batch({Encoding::kFp8}, shape, {400});
  const SegmentView& segment = batch.segments[0][0];
  for (int slot = 0; slot < 400; ++slot) {
    // Near 448 or near 0, so that neither hides the other behind a tolerance.
    Put(ElementType::kF32, EntryAddress(batch.pool.view(), segment, segment.key_scales, 0, slot),
        slot % 2 == 0 ? 0.01f : 100.0f);
    Put(ElementType::kF32, EntryAddress(batch.pool.view(), segment, segment.value_scales, 0, slot),
        slot % 2 == 0 ? 0.01f : 100.0f);
    for (int c = 0; c < 32; ++c) {
      int code = (slot * 32 + c) % 256;
      if (slot % 2 == 1) code %= 12;  // subnormal, and the smallest that are not
      if (slot % 4 == 1) code |= 0x80;
      if ((code & 0x7f) == 0x7f) code = 0;
      *KeyAddress(batch.pool.view(), segment, 0, slot, c) = std::byte(code);
      *ValueAddress(batch.pool.view(), segment, 0, slot, c, 32) = std::byte(code);
    }
  }
  LargestDeviation seen("decode every fp8 code");
  ExpectTwins(Encoding::kFp8, shape, batch.items, batch.pool.view(), &seen);
}

// The reference itself, and then every level, against a softmax written out over the kept pairs.
TEST(DecodeAttention, EqualsAPlainSoftmaxOverTheKeptPairs) {
  constexpr int kPrompt = 300, kHeads = 2, kGroup = 3, kDim = 16;
  const AttentionShape shape = Shape(kHeads * kGroup, kHeads, kDim);
  const std::vector<float> k = RandomTensor(ElementType::kF32, kPrompt * kHeads * kDim, 1).floats();
  const std::vector<float> v = RandomTensor(ElementType::kF32, kPrompt * kHeads * kDim, 2).floats();
  const std::vector<float> q = Queries(Encoding::kF32, shape, 1, 3);
  // Each head keeps other tokens, in no order.
  constexpr int kKept = 101;
  std::vector<std::vector<int>> kept(kHeads, std::vector<int>(kPrompt));
  TestPool pool(CacheGeometry::DefaultBlockBytes(kHeads, kDim), 40);
  const SegmentView segment = TakeSegment(pool, ElementType::kF32, 0, kHeads, kDim, kKept);
  for (int g = 0; g < kHeads; ++g) {
    std::iota(kept[g].begin(), kept[g].end(), 0);
    std::shuffle(kept[g].begin(), kept[g].end(), std::mt19937(g));
    for (int slot = 0; slot < kKept; ++slot) {
      for (int c = 0; c < kDim; ++c) {
        const size_t from = (static_cast<size_t>(kept[g][slot]) * kHeads + g) * kDim + c;
        Put(ElementType::kF32, KeyAddress(pool.view(), segment, g, slot, c), k[from]);
        Put(ElementType::kF32, ValueAddress(pool.view(), segment, g, slot, c, kDim), v[from]);
      }
    }
  }
  std::vector<float> expected(q.size()), expected_lse(shape.num_q_heads);
  for (int h = 0; h < shape.num_q_heads; ++h) {
    const int g = h / kGroup;
    std::vector<bool> is_kept(kPrompt);
    for (int slot = 0; slot < kKept; ++slot) is_kept[kept[g][slot]] = true;
    double sum = 0;
    std::vector<double> mean(kDim);
    for (int j = 0; j < kPrompt; ++j) {
      if (!is_kept[j]) continue;
      double dot = 0;
      for (int c = 0; c < kDim; ++c)
        dot += double{q[h * kDim + c]} * k[(j * kHeads + g) * kDim + c];
      const double weight = std::exp(dot / std::sqrt(double{kDim}));
      sum += weight;
      for (int c = 0; c < kDim; ++c) mean[c] += weight * v[(j * kHeads + g) * kDim + c];
    }
    for (int c = 0; c < kDim; ++c) expected[h * kDim + c] = static_cast<float>(mean[c] / sum);
    expected_lse[h] = static_cast<float>(std::log(sum));
  }
  for (auto& backend : BackendsWith(2)) {
    const Decoded actual = RunDecode(*backend, shape, {{{&segment, 1}}}, q, pool.view());
    EXPECT_LE(Deviation(actual.out, expected), 2e-6) << backend->name();
    EXPECT_LE(Deviation(actual.lse, expected_lse), 2e-6) << backend->name();
  }
}

TEST(DecodeAttention, GivesTheSameBitsAloneInACrowdAndWithAnyThreads) {
  AttentionShape shape = Shape(8, 2, 64);
  for (const auto& [format, element] : FormatsAndElements(64)) {
    shape.element = element;
    const CacheFormat tail = CacheFormat::kBf16;
    Batch batch(shape, {{{format, 2500}, {tail, 31}},
                        {{format, 3}},
                        {{tail, 700}, {Merged(format), 1100}},
                        {{format, 640}}});
    const std::vector<float> q = Queries(format.encoding, shape, 4, 5);
    const size_t row = q.size() / 4;
    for (CpuLevel level : SupportedCpuLevels()) {
      const Decoded crowd =
          RunDecode(**MakeCpuBackend(level, 3), shape, batch.items, q, batch.pool.view());
      for (size_t i = 0; i < 4; ++i) {
        const std::vector<float> own(q.begin() + i * row, q.begin() + (i + 1) * row);
        const Decoded alone =
            RunDecode(**MakeCpuBackend(level, 1), shape, {batch.items[i]}, own, batch.pool.view());
        EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(), crowd.out.begin() + i * row))
            << Name(format) << " item " << i;
        EXPECT_TRUE(std::equal(alone.lse.begin(), alone.lse.end(), crowd.lse.begin() + i * 8))
            << Name(format) << " item " << i;
      }
    }
  }
}

// A key that is no number shows in what its head gives, and in no other's.
TEST(DecodeAttention, ShowsAKeyThatIsNoNumber) {
  constexpr int kSlots = 300, kDim = 64;
  for (Encoding encoding : {Encoding::kF32, Encoding::kBf16}) {
    for (int group : {1, 4, 8}) {
      AttentionShape shape = Shape(2 * group, 2, kDim);
      for (ElementType element : {ElementType::kF32, ElementType::kBf16}) {
        shape.element = element;
        for (int slot : {0, 150, kSlots - 1}) {
          Batch batch({encoding}, shape, {kSlots});
          Put(QueryElement(encoding),
              KeyAddress(batch.pool.view(), batch.segments[0][0], 1, slot, 9), NAN);
          const std::vector<float> q = Queries(encoding, shape, 1, 5);
          for (auto& backend : AllBackends()) {
            const Decoded decoded = RunDecode(*backend, shape, batch.items, q, batch.pool.view());
            for (size_t i = 0; i < q.size(); ++i) {
              ASSERT_EQ(std::isnan(decoded.out[i]), i >= q.size() / 2)
                  << backend->name() << " group " << group << " slot " << slot;
            }
          }
        }
      }
    }
  }
}

// Scores in the hundreds: the weights of all but the best keys underflow, nothing overflows.
TEST(DecodeAttention, SurvivesLargeScores) {
  for (const auto& [format, element] : FormatsAndElements(64)) {
    AttentionShape shape = Shape(4, 1, 64);
    shape.element = element;
    shape.scale = 20;
    Batch batch(format, shape, {1500});
    const std::vector<float> q = Queries(format.encoding, shape, 1, 5);
    const Decoded expected =
        RunDecode(*MakeReferenceBackend(), shape, batch.items, q, batch.pool.view());
    for (CpuLevel level : SupportedCpuLevels()) {
      const Decoded actual =
          RunDecode(**MakeCpuBackend(level, 2), shape, batch.items, q, batch.pool.view());
      // The scores themselves, about 600, carry a rounding error of 2^-24 of their size and more.
      const bool is_bf16 = element == ElementType::kBf16;
      const double out = format.encoding == Encoding::kBf16 ? 1e-2
                         : is_bf16 ? RoundedOutTolerance(level, format.encoding)
                                   : kRoundedTolerance;
      EXPECT_LE(Deviation(actual.out, expected.out), out) << Name(format);
      // Of queries of 16 bits 2^-15 of theirs.
      const bool is_rounded =
          is_bf16 && (IsGrouped(format.encoding) || format.encoding == Encoding::kInt8);
      EXPECT_LE(Deviation(actual.lse, expected.lse), is_rounded ? 1e-4 : 1e-5) << Name(format);
    }
  }
}

}  // namespace
}  // namespace ziggurat
