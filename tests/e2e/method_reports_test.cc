// The report of every method at settings at which it acts: it names lazy layers, merged pairs,
// shared keys and formats, and its blocks are those that the definitions come to.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/cache_arithmetic.h"
#include "tests/e2e/pod_groups_file.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

constexpr int kLayers = 8;  // needle-llama
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 32;
constexpr int kBlockBytes = 64 * kKvHeads * kHeadDim;
constexpr int kPrompt = 400;
constexpr int kNew = 40;
constexpr int kSeen = kPrompt + kNew - 1;  ///< the last token is never fed back

struct Dtype {
  std::string name;
  int bits;
};
void PrintTo(const Dtype& dtype, std::ostream* out) { *out << dtype.name; }
const Dtype kDtypes[] = {{"f32", 32}, {"bf16", 16}};

/// What is known beforehand of a layer.
struct Layer {
  std::map<std::string, int> formats = {};  ///< tokens by format
  int blocks = 0;
  int kept_of_prompt = kPrompt;
  int evicted = 0;
  int merged = 0;
  int distant = 0;
  int quantized = 0;
  bool lazy = false;
  std::optional<uint32_t> merged_with = {};
  std::vector<uint32_t> keys_of = {};

  /// Adds a segment; one of another layer holds tokens here and blocks there.
  Layer& Hold(const std::string& format, const SegmentContent& content, bool owned = true) {
    formats[format] += content.tokens;
    if (owned) blocks += SegmentBlocks(content, kKvHeads, kHeadDim, kBlockBytes);
    return *this;
  }
};

void ExpectLayer(const v1::LayerCacheReport& report, const Layer& expected) {
  std::map<std::string, int> formats;
  uint64_t tokens = 0;
  uint64_t blocks = 0;
  for (const v1::FormatOccupancy& format : report.formats()) {
    formats[format.format()] = static_cast<int>(format.tokens());
    tokens += format.tokens();
    blocks += format.blocks();
  }
  EXPECT_EQ(formats, expected.formats);
  EXPECT_EQ(report.tokens(), tokens) << "the formats hold all tokens";
  EXPECT_EQ(report.blocks(), blocks) << "and all blocks";
  EXPECT_EQ(report.blocks(), static_cast<uint64_t>(expected.blocks));
  EXPECT_EQ(report.bytes(), static_cast<uint64_t>(expected.blocks) * kBlockBytes);
  EXPECT_EQ(report.budget_tokens(), static_cast<uint64_t>(expected.kept_of_prompt));
  EXPECT_EQ(report.evicted_tokens(), static_cast<uint64_t>(expected.evicted));
  EXPECT_EQ(report.merged_tokens(), static_cast<uint64_t>(expected.merged));
  EXPECT_EQ(report.distant_tokens(), static_cast<uint64_t>(expected.distant));
  EXPECT_EQ(report.quantized_tokens(), static_cast<uint64_t>(expected.quantized));
  EXPECT_EQ(report.lazy(), expected.lazy);
  EXPECT_EQ(report.has_merged_with() ? std::optional(report.merged_with()) : std::nullopt,
            expected.merged_with);
  EXPECT_EQ(std::vector<uint32_t>(report.keys_of().begin(), report.keys_of().end()),
            expected.keys_of);
  EXPECT_FALSE(report.has_attention_recall()) << "nobody asked for it";
}

void ExpectReport(const v1::CacheReport& report, const std::vector<Layer>& expected,
                  const Dtype& dtype) {
  ASSERT_EQ(report.layers_size(), kLayers);
  uint64_t blocks = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    SCOPED_TRACE(absl::StrCat("layer ", layer));
    ExpectLayer(report.layers(layer), expected[layer]);
    blocks += expected[layer].blocks;
  }
  EXPECT_EQ(report.blocks(), blocks);
  EXPECT_EQ(report.bytes(), blocks * kBlockBytes);
  EXPECT_EQ(report.full_blocks(),
            static_cast<uint64_t>(kLayers) *
                SegmentBlocks({kSeen, dtype.bits}, kKvHeads, kHeadDim, kBlockBytes));
}

class MethodReports : public testing::TestWithParam<Dtype> {
 protected:
  void SetUp() override {
    std::vector<std::string> flags = groups_.Flags();
    flags.push_back("--check-integrity");
    auto daemon = Daemon::Start({.dtype = dtype().name, .flags = flags});
    ASSERT_TRUE(daemon.ok()) << daemon.status().ToString();
    daemon_ = *std::move(daemon);
    prompts_.emplace(*daemon_);
  }
  void TearDown() override {
    if (daemon_ == nullptr) return;
    EXPECT_EMPTY_CACHE(*daemon_);
    EXPECT_THAT(daemon_->LoggedErrors(), testing::IsEmpty());
  }
  const Dtype& dtype() const { return GetParam(); }
  /// A segment of the compute type.
  SegmentContent Plain(int tokens) const { return {tokens, dtype().bits}; }

  v1::CacheReport Ask(const std::string& policy, bool recall = false) {
    std::mt19937 random(5);
    v1::GenerateRequest request = IdRequest(prompts_->Make(kPrompt, random), kNew, AtEos::kGoOn);
    request.set_compression(policy);
    request.set_report_attention_recall(recall);
    const Generation generation = Generate(*daemon_, request);
    EXPECT_TRUE(generation.ok()) << policy << ": " << generation.Describe();
    return generation.ok() ? generation.result->cache() : v1::CacheReport();
  }
  void Expect(const std::string& policy, const std::vector<Layer>& expected) {
    SCOPED_TRACE(policy);
    ExpectReport(Ask(policy), expected, dtype());
  }
  void HoldAll(const std::string& policy, const Layer& expected) {
    Expect(policy, std::vector<Layer>(kLayers, expected));
  }

  PodGroupsFiles groups_;
  std::unique_ptr<Daemon> daemon_;
  std::optional<PromptSource> prompts_;
};

// ---- Which tokens are kept ---------------------------------------------------------------------

TEST_P(MethodReports, H2oHoldsItsSlotsWithScores) {
  SegmentContent slots = Plain(81);
  slots.scored = true;
  Layer layer{.kept_of_prompt = 80, .evicted = kSeen - 81};
  HoldAll("h2o(heavy=50,recent=30)", layer.Hold(dtype().name + "-scored", slots));
}

TEST_P(MethodReports, WindowKvHoldsWholeWindowsTheSameInAGroup) {
  constexpr int kObserve = 12, kReview = 16;
  const v1::CacheReport report =
      Ask("windowkv(budget=100,task=localization,review=16,observe=12,group=3,lambda=2)");
  const std::vector<int> budgets = WindowBudgets(100, kObserve, 3, 2, kLayers);
  ASSERT_EQ(report.layers_size(), kLayers);
  uint64_t blocks = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    SCOPED_TRACE(absl::StrCat("layer ", layer));
    const v1::LayerCacheReport& of_layer = report.layers(layer);
    const auto kept = static_cast<int>(of_layer.budget_tokens());
    EXPECT_LE(kept, budgets[layer]);
    EXPECT_GT(kept, budgets[layer] - kReview);
    EXPECT_EQ(of_layer.budget_tokens(), report.layers(layer / 3 * 3).budget_tokens());
    Layer expected{.kept_of_prompt = kept, .evicted = kPrompt - kept};
    ExpectLayer(of_layer, expected.Hold(dtype().name, Plain(kept + kNew - 1)));
    blocks += expected.blocks;
  }
  EXPECT_EQ(report.blocks(), blocks);
  EXPECT_LT(report.layers(7).budget_tokens(), report.layers(0).budget_tokens());
}

TEST_P(MethodReports, SqueezeSharesItsBudgetBetweenTwoKindsOfLayers) {
  const v1::CacheReport report = Ask("squeeze(budget=100,p=0.4)");
  ASSERT_EQ(report.layers_size(), kLayers);
  int sum = 0, least = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    SCOPED_TRACE(absl::StrCat("layer ", layer));
    const v1::LayerCacheReport& of_layer = report.layers(layer);
    const auto kept = static_cast<int>(of_layer.budget_tokens());
    sum += kept;
    least += kept == 40 ? 1 : 0;
    EXPECT_GE(kept, 40) << "p * budget";
    Layer expected{.kept_of_prompt = kept, .evicted = kSeen - kept};  // a ring
    ExpectLayer(of_layer, expected.Hold(dtype().name, Plain(kept)));
  }
  EXPECT_EQ(sum, 100 * kLayers);
  EXPECT_GT(least, 0);
  EXPECT_LT(least, kLayers);
}

TEST_P(MethodReports, ShapesOfThePyramidSpendTheSameTotal) {
  for (const char* shape : {"linear", "geometric", "exponential", "entropy", "gini"}) {
    const v1::CacheReport report =
        Ask(absl::StrCat("pyramidkv(budget=100,window=12,shape=", shape, ")"));
    ASSERT_EQ(report.layers_size(), kLayers);
    uint64_t sum = 0, blocks = 0;
    for (const v1::LayerCacheReport& layer : report.layers()) {
      SCOPED_TRACE(absl::StrCat(shape, ", layer ", layer.layer()));
      const auto kept = static_cast<int>(layer.budget_tokens());
      sum += layer.budget_tokens();
      Layer expected{.kept_of_prompt = kept, .evicted = kPrompt - kept};
      ExpectLayer(layer, expected.Hold(dtype().name, Plain(kept + kNew - 1)));
      blocks += expected.blocks;
    }
    EXPECT_EQ(sum, 100u * kLayers) << shape;
    EXPECT_EQ(report.blocks(), blocks) << shape;
  }
}

// ---- Lazy layers -------------------------------------------------------------------------------

/// Lazy layers are a ring, the others hold everything; returns how many are lazy.
///   kept_of_prompt  less than `slots` where the first generated token is among them
int ExpectLazyOrAll(const v1::CacheReport& report, const Dtype& dtype, int slots,
                    int kept_of_prompt) {
  int lazy = 0;
  for (const v1::LayerCacheReport& layer : report.layers()) {
    SCOPED_TRACE(absl::StrCat("layer ", layer.layer()));
    Layer expected;
    expected.lazy = layer.lazy();
    if (layer.lazy()) {
      ++lazy;
      expected.kept_of_prompt = kept_of_prompt;
      expected.evicted = kSeen - slots;
      expected.Hold(dtype.name, {slots, dtype.bits});
    } else {
      expected.Hold(dtype.name, {kSeen, dtype.bits});
    }
    ExpectLayer(layer, expected);
  }
  return lazy;
}

TEST_P(MethodReports, SimLayerKvNamesItsLazyLayersAndCountsThem) {
  const auto counted = [&] {
    const MetricSamples metrics = daemon_->Metrics();
    std::vector<double> layers;
    for (int layer = 0; layer < kLayers; ++layer) {
      layers.push_back(
          metrics.at(absl::StrCat("ziggurat_lazy_layers_total{layer=\"", layer, "\"}")));
    }
    return layers;
  };
  EXPECT_EQ(counted(), std::vector<double>(kLayers, 0));
  const v1::CacheReport some = Ask("simlayerkv(threshold=0.6,sinks=4,recent=60)");
  const int lazy = ExpectLazyOrAll(some, dtype(), 64, 64);
  EXPECT_GT(lazy, 0) << "take another threshold";
  EXPECT_LT(lazy, kLayers) << "take another threshold";
  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(counted()[layer], some.layers(layer).lazy() ? 1 : 0) << "layer " << layer;
  }
  EXPECT_EQ(ExpectLazyOrAll(Ask("simlayerkv(threshold=0,sinks=4,recent=60)"), dtype(), 64, 64),
            kLayers);
  EXPECT_EQ(ExpectLazyOrAll(Ask("simlayerkv(threshold=1,sinks=4,recent=60)"), dtype(), 64, 64), 0);
  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(counted()[layer], some.layers(layer).lazy() ? 2 : 1) << "layer " << layer;
  }
}

TEST_P(MethodReports, SimLayerKvThatDecidesAtTheFirstTokenNamesThemToo) {
  v1::CacheReport all = Ask("simlayerkv(threshold=0,sinks=4,recent=60,decide=decode)");
  ASSERT_EQ(all.layers_size(), kLayers);
  EXPECT_EQ(ExpectLazyOrAll(all, dtype(), 64, 63), kLayers);
  EXPECT_EQ(daemon_->Metrics().at("ziggurat_lazy_layers_total{layer=\"3\"}"), 1);
  const v1::CacheReport some = Ask("simlayerkv(threshold=0.5,sinks=4,recent=60,decide=decode)");
  ExpectLazyOrAll(some, dtype(), 64, 63);
}

// ---- Layers that share -------------------------------------------------------------------------

TEST_P(MethodReports, MiniCacheNamesItsPairsAndWhatTheyShare) {
  // Of 400 tokens 40 are retained and 360 merged. Of 39 more, twice 16 are merged, 2 of each
  // retained; 7 wait.
  SegmentContent merged = Plain(360 + 2 * 14);
  merged.merged = true;
  const int retained = 40 + 2 * 2, waiting = 7;
  std::vector<Layer> layers(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    Layer& expected = layers[layer];
    if (layer < 4) {
      expected.Hold(dtype().name, Plain(kSeen));
      continue;
    }
    const bool is_lower = layer % 2 == 0;
    expected.merged = merged.tokens;
    expected.merged_with = is_lower ? layer + 1 : layer - 1;
    expected.Hold(dtype().name + "-merged", merged, is_lower);
    expected.Hold(dtype().name, Plain(retained)).Hold(dtype().name, Plain(waiting));
  }
  Expect("minicache(retain=0.1,tail=16)", layers);
}

TEST_P(MethodReports, AnUnpairedLayerOfMiniCacheStaysAsItIs) {
  const v1::CacheReport report = Ask("minicache(start=5,retain=0.1,tail=1000)");
  ASSERT_EQ(report.layers_size(), kLayers);
  EXPECT_EQ(report.layers(5).merged_with(), 6u);
  EXPECT_EQ(report.layers(6).merged_with(), 5u);
  EXPECT_FALSE(report.layers(7).has_merged_with());
  EXPECT_EQ(report.layers(7).merged_tokens(), 0u);
  EXPECT_EQ(report.layers(5).merged_tokens(), 360u) << "the tail never fills";
}

/// Tokens with a query at the end that are no sinks and at least `recent` away.
int Distant(int sinks, int recent) { return kSeen - recent - sinks; }

TEST_P(MethodReports, PodNamesTheLayersWhoseKeysItUsesAndCountsWhatItLeftOut) {
  const int distant = Distant(4, 60);
  SegmentContent values = Plain(distant);
  values.values_only = true;
  std::vector<Layer> layers(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    Layer& expected = layers[layer];
    expected.Hold(dtype().name, Plain(64));
    if (layer % 4 == 0) {
      expected.Hold(dtype().name, Plain(distant));
    } else {
      expected.distant = distant;
      expected.keys_of = {static_cast<uint32_t>(layer / 4 * 4)};
      expected.Hold(dtype().name + "-values", values);
    }
  }
  Expect("pod(groups=fours,sinks=4,recent=60)", layers);

  // Six layers of two KV heads follow; queries 64 to 438 have distant tokens.
  constexpr uint64_t kAttentions = 6 * 2 * (kSeen - 64);
  const v1::CacheReport never = Ask("pod(groups=fours,sinks=4,recent=60,skip=off)");
  EXPECT_EQ(never.distant_attentions(), kAttentions);
  EXPECT_EQ(never.skipped_attentions(), 0u);
  const v1::CacheReport always = Ask("pod(groups=fours,sinks=4,recent=60,skip=0)");
  EXPECT_EQ(always.distant_attentions(), kAttentions);
  EXPECT_EQ(always.skipped_attentions(), kAttentions);
  const v1::CacheReport some = Ask("pod(groups=fours,sinks=4,recent=60,skip=0.6)");
  EXPECT_EQ(some.distant_attentions(), kAttentions);
  EXPECT_GT(some.skipped_attentions(), 0u);
  EXPECT_LT(some.skipped_attentions(), kAttentions);
  const MetricSamples metrics = daemon_->Metrics();
  EXPECT_EQ(metrics.at("ziggurat_pod_distant_total"), 4 * kAttentions);
  EXPECT_EQ(metrics.at("ziggurat_pod_skipped_total"), kAttentions + some.skipped_attentions());
}

TEST_P(MethodReports, PodGroupsMayDifferBetweenHeads) {
  const v1::CacheReport report = Ask("pod(groups=heads,sinks=4,recent=60)");
  ASSERT_EQ(report.layers_size(), kLayers);
  const int distant = Distant(4, 60);
  const std::vector<std::vector<uint32_t>> keys_of = {{}, {0}, {0}, {0, 2}};
  for (int layer = 0; layer < kLayers; ++layer) {
    SCOPED_TRACE(absl::StrCat("layer ", layer));
    // Head 0 follows in three layers of four, head 1 in every other one. Each has segments of its
    // own.
    int blocks = 0, followers = 0;
    for (const bool follows : {layer % 4 != 0, layer % 2 == 1}) {
      followers += follows ? 1 : 0;
      SegmentContent far = Plain(distant);
      far.values_only = follows;
      blocks += SegmentBlocks(Plain(64), 1, kHeadDim, kBlockBytes) +
                SegmentBlocks(far, 1, kHeadDim, kBlockBytes);
    }
    const v1::LayerCacheReport& of_layer = report.layers(layer);
    EXPECT_EQ(of_layer.blocks(), static_cast<uint64_t>(blocks));
    EXPECT_EQ(of_layer.tokens(), static_cast<uint64_t>(kSeen));
    EXPECT_NEAR(static_cast<double>(of_layer.distant_tokens()), distant * followers / 2.0, 0.5);
    std::vector<uint32_t> expected = keys_of[layer % 4];
    for (uint32_t& lowest : expected) lowest += layer / 4 * 4;
    EXPECT_EQ(std::vector<uint32_t>(of_layer.keys_of().begin(), of_layer.keys_of().end()),
              expected);
  }
}

// ---- Codes -------------------------------------------------------------------------------------

TEST_P(MethodReports, KiviHoldsWholeGroupsInCodesAndTheResidualAsItIs) {
  struct Case {
    int bits, group, residual, coded;
  };
  // Of 400 tokens the prompt codes whole groups beyond the residual; then a group follows as soon
  // as residual + group tokens wait and another comes.
  for (const Case& c :
       {Case{4, 32, 32, 384}, Case{2, 16, 40, 384}, Case{4, 8, 0, 432}, Case{2, 32, 439, 0}}) {
    Layer layer;
    if (c.coded > 0) layer.Hold(absl::StrCat("int", c.bits), {c.coded, c.bits, c.group});
    layer.Hold(dtype().name, Plain(kSeen - c.coded));
    layer.quantized = c.coded;
    HoldAll(absl::StrCat("kivi(bits=", c.bits, ",group=", c.group, ",residual=", c.residual, ")"),
            layer);
  }
}

TEST_P(MethodReports, EightBitsHoldAScaleForEachTokenAndHead) {
  for (const char* name : {"int8", "fp8"}) {
    Layer layer{.quantized = kSeen};
    HoldAll(name, layer.Hold(name, {kSeen, 8}));
  }
}

TEST_P(MethodReports, FormatsOfFinishedRequestsCountNoBlocks) {
  Ask("kivi(bits=4)");
  Ask("minicache(retain=0.1)+int8");
  const MetricSamples metrics = daemon_->Metrics();
  for (const char* format : {"f32", "bf16", "int4", "int8", "int8-merged"}) {
    const auto it =
        metrics.find(absl::StrCat("ziggurat_kv_format_blocks{format=\"", format, "\"}"));
    ASSERT_NE(it, metrics.end()) << format;
    EXPECT_EQ(it->second, 0) << format;
  }
}

// ---- Compositions ------------------------------------------------------------------------------

TEST_P(MethodReports, LazyLayersOfCodesDropWholeGroups) {
  const v1::CacheReport report =
      Ask("simlayerkv(threshold=0,sinks=4,recent=100)+kivi(bits=4,group=32,residual=32)");
  ASSERT_EQ(report.layers_size(), kLayers);
  for (const v1::LayerCacheReport& layer : report.layers()) {
    SCOPED_TRACE(absl::StrCat("layer ", layer.layer()));
    EXPECT_TRUE(layer.lazy());
    const auto tokens = static_cast<int>(layer.tokens());
    EXPECT_GE(tokens, 104);
    EXPECT_LT(tokens, 104 + 32) << "recent to recent + group - 1";
    Layer expected{.kept_of_prompt = 104, .evicted = kSeen - tokens, .quantized = 64, .lazy = true};
    expected.Hold(dtype().name, Plain(4));
    expected.Hold("int4", {64, 4, 32});
    ExpectLayer(layer, expected.Hold(dtype().name, Plain(tokens - 68)));
  }
}

TEST_P(MethodReports, CodesComposeWithEveryKindOfSegment) {
  SegmentContent slots{81, 8};
  slots.scored = true;
  Layer h2o{.kept_of_prompt = 80, .evicted = kSeen - 81, .quantized = 81};
  HoldAll("h2o(heavy=50,recent=30)+int8", h2o.Hold("int8-scored", slots));

  Layer ring{.kept_of_prompt = 64, .evicted = kSeen - 64, .quantized = 64};
  HoldAll("streaming(sinks=4,recent=60)+fp8", ring.Hold("fp8", {64, 8}));

  Layer selected{.kept_of_prompt = 128, .evicted = kPrompt - 128, .quantized = 128};
  selected.Hold("int4", {128, 4, 32}).Hold(dtype().name, Plain(39));
  HoldAll("snapkv(budget=128)+kivi(bits=4)", selected);

  const int distant = Distant(4, 60);
  std::vector<Layer> pod(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    SegmentContent far{distant, 8};
    far.values_only = layer % 4 != 0;
    pod[layer].quantized = kSeen;
    pod[layer].Hold("int8", {64, 8}).Hold(far.values_only ? "int8-values" : "int8", far);
    if (!far.values_only) continue;
    pod[layer].distant = distant;
    pod[layer].keys_of = {static_cast<uint32_t>(layer / 4 * 4)};
  }
  Expect("pod(groups=fours,sinks=4,recent=60)+int8", pod);

  SegmentContent merged{360, 8};
  merged.merged = true;
  std::vector<Layer> pairs(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    Layer& expected = pairs[layer];
    expected.quantized = kSeen;
    if (layer < 4) {
      expected.Hold("int8", {kSeen, 8});
      continue;
    }
    expected.merged = 360;
    expected.merged_with = layer % 2 == 0 ? layer + 1 : layer - 1;
    expected.Hold("int8-merged", merged, layer % 2 == 0)
        .Hold("int8", {40, 8})
        .Hold("int8", {39, 8});
  }
  Expect("minicache(retain=0.1,tail=1000)+int8", pairs);
}

TEST_P(MethodReports, DistantTokensOfCodesAreWholeGroups) {
  // Of 439 tokens 4 are sinks and 375 distant; 11 groups of 32 have left the near window, whose
  // first group is codes, too.
  std::vector<Layer> layers(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    SegmentContent far{352, 4, 32};
    far.values_only = layer % 4 != 0;
    Layer& expected = layers[layer];
    expected.quantized = 352 + 32;
    expected.Hold("int4", {32, 4, 32}).Hold(dtype().name, Plain(kSeen - 384));
    expected.Hold(far.values_only ? "int4-values" : "int4", far);
    if (!far.values_only) continue;
    expected.distant = 352;
    expected.keys_of = {static_cast<uint32_t>(layer / 4 * 4)};
  }
  Expect("pod(groups=fours,sinks=4,recent=60)+kivi(bits=4,group=32,residual=32)", layers);
}

TEST_P(MethodReports, MergedAndRetainedTokensBecomeCodesInWholeGroups) {
  // Merged: 360 of the prompt and twice 14; retained: 40 and twice 2; 7 wait. Of both lists whole
  // groups of 32 are codes.
  SegmentContent coded{384, 4, 32}, open = Plain(4);
  coded.merged = open.merged = true;
  std::vector<Layer> layers(kLayers);
  for (int layer = 0; layer < kLayers; ++layer) {
    Layer& expected = layers[layer];
    if (layer < 4) {
      expected.quantized = 384;
      expected.Hold("int4", {384, 4, 32}).Hold(dtype().name, Plain(kSeen - 384));
      continue;
    }
    const bool is_lower = layer % 2 == 0;
    expected.merged = 388;
    expected.quantized = 384 + 32;
    expected.merged_with = is_lower ? layer + 1 : layer - 1;
    expected.Hold("int4-merged", coded, is_lower).Hold(dtype().name + "-merged", open, is_lower);
    expected.Hold("int4", {32, 4, 32}).Hold(dtype().name, Plain(12)).Hold(dtype().name, Plain(7));
  }
  Expect("minicache(retain=0.1,tail=16)+kivi(bits=4,group=32,residual=32)", layers);
}

TEST_P(MethodReports, PodWithASelectionKeepsTheSameTokensInAllLayersOfAGroup) {
  const v1::CacheReport report = Ask("pod(groups=fours,sinks=4,recent=60)+snapkv(budget=128)");
  ASSERT_EQ(report.layers_size(), kLayers);
  for (const v1::LayerCacheReport& layer : report.layers()) {
    SCOPED_TRACE(absl::StrCat("layer ", layer.layer()));
    EXPECT_EQ(layer.budget_tokens(), 128u);
    EXPECT_EQ(layer.tokens(), 128u + kNew - 1);
    EXPECT_EQ(layer.evicted_tokens(), static_cast<uint64_t>(kPrompt) - 128);
    EXPECT_EQ(layer.distant_tokens() > 0, layer.layer() % 4 != 0);
    const v1::LayerCacheReport& first_follower = report.layers(layer.layer() / 4 * 4 + 1);
    if (layer.layer() % 4 != 0) {
      EXPECT_EQ(layer.distant_tokens(), first_follower.distant_tokens());
    }
  }
  EXPECT_GT(report.compression_ratio(), 2.5);
}

// ---- Attention recall --------------------------------------------------------------------------

TEST_P(MethodReports, AttentionRecallIsReportedWhereItWasAskedFor) {
  const auto recall = [&](const std::string& policy) {
    const v1::CacheReport report = Ask(policy, true);
    std::vector<double> layers;
    for (const v1::LayerCacheReport& layer : report.layers()) {
      layers.push_back(layer.has_attention_recall() ? layer.attention_recall() : -1);
    }
    return layers;
  };
  for (const double value : recall("full")) EXPECT_NEAR(value, 1, 1e-4);
  const std::vector<double> narrow = recall("streaming(sinks=4,recent=40)");
  const std::vector<double> wide = recall("streaming(sinks=4,recent=200)");
  const std::vector<double> best = recall("snapkv(budget=44)");
  double sum_of_narrow = 0, sum_of_best = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    SCOPED_TRACE(absl::StrCat("layer ", layer));
    EXPECT_GT(narrow[layer], 0);
    EXPECT_LT(narrow[layer], wide[layer]) << "more tokens, more attention";
    EXPECT_LT(wide[layer], 1);
    sum_of_narrow += narrow[layer];
    sum_of_best += best[layer];
  }
  EXPECT_GT(sum_of_best, 0.9 * sum_of_narrow);
  const v1::CacheReport lazy = Ask("simlayerkv(threshold=0.6,sinks=4,recent=60)", true);
  for (const v1::LayerCacheReport& layer : lazy.layers()) {
    // The test asks for the same mass, of the same queries.
    EXPECT_EQ(layer.lazy(), layer.attention_recall() < 0.9999) << layer.ShortDebugString();
    EXPECT_GT(layer.attention_recall(), 0.6);
  }
  const std::vector<double> pod = recall("pod(groups=fours,sinks=4,recent=60)+snapkv(budget=128)");
  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(pod[layer] >= 0, layer % 4 == 0) << "the others attended with another layer's keys";
  }
  for (const double value : recall("squeeze(budget=100,p=0.4)")) {
    EXPECT_EQ(value, -1) << "it was measured before anything was dropped";
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, MethodReports, testing::ValuesIn(kDtypes),
                         [](const auto& test) { return test.param.name; });

// ---- The arithmetic itself ---------------------------------------------------------------------

TEST(CacheArithmetic, AgreesWithNumbersWorkedOutByHand) {
  // Blocks of 4 KiB, 2 heads of 32: a token of f32 is 512 bytes, so 8 of them; of int4 64 bytes.
  EXPECT_EQ(SegmentBlocks({81, 32}, 2, 32, 4096), 11);
  EXPECT_EQ(SegmentBlocks({81, 16}, 2, 32, 4096), 6);
  // Codes: 384 / 64 = 6. Scales and zeros: 512 bytes for a group, 12 groups, 8 in a block.
  EXPECT_EQ(SegmentBlocks({384, 4, 32}, 2, 32, 4096), 6 + 2);
  EXPECT_EQ(SegmentBlocks({439, 8}, 2, 32, 4096), 14 + 2);
  SegmentContent merged{388, 32};
  merged.merged = true;  // norms: 32 bytes a token
  EXPECT_EQ(SegmentBlocks(merged, 2, 32, 4096), 49 + 4);
  SegmentContent values{375, 32};
  values.values_only = true;
  EXPECT_EQ(SegmentBlocks(values, 2, 32, 4096), 24);
  SegmentContent scored{81, 32};
  scored.scored = true;
  EXPECT_EQ(SegmentBlocks(scored, 2, 32, 4096), 11 + 1);
  // 88 * 8 = 704 in three groups: mean 234.67, top 117.33, bottom 352; 3, 3 and 2 layers.
  EXPECT_EQ(WindowBudgets(100, 12, 3, 2, 8), (std::vector<int>{129, 129, 129, 90, 90, 90, 70, 70}));
}

}  // namespace
}  // namespace ziggurat::e2e
