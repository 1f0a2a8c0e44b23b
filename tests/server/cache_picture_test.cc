#include "server/cli/cache_picture.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/layer_text.h"

namespace ziggurat {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Columns of a line: every byte that does not continue a UTF-8 character.
int Width(const std::string& line) {
  return static_cast<int>(
      std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

int Count(const std::string& line, const std::string& cell) {
  int count = 0;
  for (size_t at = line.find(cell); at != std::string::npos; at = line.find(cell, at + 1)) ++count;
  return count;
}

v1::GetCacheResponse Pyramid() {
  v1::GetCacheResponse cache;
  cache.set_block_bytes(1024);
  cache.set_total_blocks(1000);
  for (uint32_t i = 0; i < 4; ++i) {
    v1::LayerOccupancy* layer = cache.add_layers();
    layer->set_layer(i);
    layer->set_used_blocks(40 - 10 * i);
    layer->set_reserved_blocks(i == 0 ? 10 : 0);
  }
  cache.set_used_blocks(100);
  cache.set_reserved_blocks(10);
  cache.set_free_blocks(890);
  cache.set_running(1);
  v1::RequestOccupancy* request = cache.add_requests();
  request->set_request_id(std::string(128, 'r'));
  request->set_state("decoding");
  request->set_blocks(100);
  return cache;
}

TEST(CachePictureTest, DrawsAFloorForEveryLayerTheLastOneOnTop) {
  const std::vector<std::string> lines = absl::StrSplit(DrawCache(Pyramid(), 80), '\n');
  std::vector<int> floors;
  for (const std::string& line : lines) {
    if (line.size() > 5 && line[4] >= '0' && line[4] <= '3' && line[5] == ' ') {
      floors.push_back(Count(line, "█"));
    }
  }
  ASSERT_EQ(floors.size(), 4u);
  EXPECT_TRUE(std::is_sorted(floors.begin(), floors.end())) << "not a pyramid";
  EXPECT_NEAR(floors[3], 4 * floors[0], 4);  // 40 blocks to 10, in whole cells
}

TEST(CachePictureTest, FitsTheTerminal) {
  for (const int columns : {60, 80, 132}) {
    const std::vector<std::string> lines = absl::StrSplit(DrawCache(Pyramid(), columns), '\n');
    for (const std::string& line : lines) {
      EXPECT_LE(Width(line), columns) << line;
    }
  }
}

TEST(CachePictureTest, CentresEveryFloor) {
  const std::vector<std::string> lines = absl::StrSplit(DrawCache(Pyramid(), 80), '\n');
  for (const std::string& line : lines) {
    if (line.size() <= 5 || line[4] < '1' || line[4] > '3' || line[5] != ' ') continue;
    const size_t begin = line.find("█");
    const int left = static_cast<int>(begin) - 6;
    const int right = 80 - 22 - left - Count(line, "█");
    EXPECT_LE(std::abs(left - right), 1) << line;
  }
}

TEST(CachePictureTest, ShowsAnEmptyPool) {
  v1::GetCacheResponse cache;
  cache.set_block_bytes(1024);
  cache.set_total_blocks(10);
  cache.set_free_blocks(10);
  cache.add_layers();
  EXPECT_THAT(DrawCache(cache, 60), HasSubstr("0 used"));
}

TEST(CachePictureTest, DrawsAReportAgainstWhatFullWouldHold) {
  v1::CacheReport report;
  report.set_block_bytes(1024);
  report.set_full_blocks(80);
  for (uint32_t i = 0; i < 2; ++i) {
    v1::LayerCacheReport* layer = report.add_layers();
    layer->set_layer(i);
    layer->set_blocks(i == 0 ? 40 : 10);
  }
  const std::vector<std::string> lines = absl::StrSplit(DrawReport(report, 60), '\n');
  ASSERT_GE(lines.size(), 3u);
  EXPECT_EQ(Count(lines[1], "█"), 10) << "layer 1: a quarter of a bar of 40 cells";
  EXPECT_EQ(Count(lines[2], "█"), 40) << "layer 0: all that full would hold";
  EXPECT_THAT(lines[1], HasSubstr("10 of 40"));
  EXPECT_EQ(DrawReport({}, 60), "");
}

// ---- In words ----------------------------------------------------------------------------------

void AddFormat(v1::LayerCacheReport* layer, const std::string& format, uint64_t tokens) {
  v1::FormatOccupancy* entry = layer->add_formats();
  entry->set_format(format);
  entry->set_blocks((tokens + 15) / 16);
  entry->set_tokens(tokens);
}

// A layer of each kind, from 0 up: plain, lazy, a merged pair, keys of others, codes.
v1::CacheReport AllKinds() {
  v1::CacheReport report;
  report.set_compression("all(kinds=1)");
  report.set_block_bytes(1024);
  report.set_full_blocks(6 * 130);
  for (uint32_t i = 0; i < 6; ++i) report.add_layers()->set_layer(i);
  const auto layer = [&](int i) { return report.mutable_layers(i); };
  AddFormat(layer(0), "bf16", 2048);
  layer(1)->set_lazy(true);
  AddFormat(layer(1), "bf16", 1024);
  layer(1)->set_evicted_tokens(1024);
  for (const int i : {2, 3}) {
    layer(i)->set_merged_with(5 - i);
    AddFormat(layer(i), "bf16", 148);
    AddFormat(layer(i), "bf16-merged", 1900);
    layer(i)->set_merged_tokens(1900);
  }
  layer(4)->add_keys_of(0);
  layer(4)->add_keys_of(2);
  AddFormat(layer(4), "bf16", 40);
  AddFormat(layer(4), "bf16-values", 2008);
  layer(4)->set_distant_tokens(2008);
  AddFormat(layer(5), "bf16", 40);
  AddFormat(layer(5), "int4", 1984);
  AddFormat(layer(5), "int8", 0);
  layer(5)->set_evicted_tokens(24);
  layer(5)->set_quantized_tokens(1984);
  layer(5)->set_attention_recall(0.98749);
  return report;
}

TEST(LayerTextTest, NamesWhatALayerIsAndHoldsAndLeavesOutWhatIsZero) {
  const v1::CacheReport report = AllKinds();
  EXPECT_EQ(DescribeLayer(report.layers(0)), "bf16 2048");
  EXPECT_EQ(DescribeLayer(report.layers(1)), "lazy, bf16 1024, 1024 evicted");
  EXPECT_EQ(DescribeLayer(report.layers(2)),
            "merged with layer 3, bf16-merged 1900 + bf16 148, 1900 merged");
  EXPECT_EQ(DescribeLayer(report.layers(3)),
            "merged with layer 2, bf16-merged 1900 + bf16 148, 1900 merged");
  EXPECT_EQ(DescribeLayer(report.layers(4)),
            "keys of layers 0 and 2, bf16-values 2008 + bf16 40, 2008 distant");
  EXPECT_EQ(DescribeLayer(report.layers(5)),
            "int4 1984 + bf16 40, 24 evicted, 1984 quantized, recall 0.987");
  EXPECT_EQ(DescribeLayer({}), "");
}

TEST(LayerTextTest, PutsNeighboursOfWhichTheSameIsTrueOnOneLine) {
  v1::CacheReport report;
  for (uint32_t i = 0; i < 12; ++i) {
    v1::LayerCacheReport* layer = report.add_layers();
    layer->set_layer(i);
    AddFormat(layer, "f32", i == 7 ? 30 : 40);
  }
  EXPECT_EQ(DescribeLayers(report.layers(), 80),
            "layers 8-11  f32 40\n"
            "layer 7      f32 30\n"
            "layers 0-6   f32 40\n");
  EXPECT_EQ(DescribeLayers({}, 80), "");
}

TEST(LayerTextTest, SummarizesLayersInAFewWords) {
  EXPECT_EQ(SummarizeLayers(AllKinds().layers()),
            "lazy 1; merged 2+3; keys of 0 in 4; keys of 2 in 4; "
            "bf16-merged 238 + bf16 218 + bf16-values 126 + int4 124 blocks; evicted 0-1024; "
            "merged tokens 0-1900; distant 0-2008; quantized 0-1984");
  v1::CacheReport lazy;
  for (const uint32_t i : {0, 1, 2, 3, 4, 5}) {
    v1::LayerCacheReport* layer = lazy.add_layers();
    layer->set_layer(i);
    layer->set_lazy(i != 3);
    layer->set_evicted_tokens(7);
    AddFormat(layer, "bf16", 20);
  }
  EXPECT_EQ(SummarizeLayers(lazy.layers()), "lazy 0-2 4-5; evicted 7");
}

TEST(LayerTextTest, SaysNothingOfLayersThatHoldAllTokensAsTheyAre) {
  v1::CacheReport full;
  for (int i = 0; i < 4; ++i) AddFormat(full.add_layers(), "bf16", 300);
  EXPECT_EQ(SummarizeLayers(full.layers()), "");
  EXPECT_EQ(SummarizeLayers({}), "");
}

TEST(LayerTextTest, BreaksLinesBetweenPartsAndIndentsThem) {
  EXPECT_EQ(WrapParts("one, two; three", 80, 4), "one, two; three\n");
  EXPECT_EQ(WrapParts("one, two; three", 15, 4), "one, two; three\n");
  EXPECT_EQ(WrapParts("one, two; three", 14, 4), "one, two;\n    three\n");
  EXPECT_EQ(WrapParts("one, two; three", 9, 4), "one, two;\n    three\n");
  EXPECT_EQ(WrapParts("one, two; three", 8, 2), "one,\n  two;\n  three\n");
  EXPECT_EQ(WrapParts("int8 30 + int4 10", 13, 2), "int8 30 +\n  int4 10\n");
  EXPECT_EQ(WrapParts("abcdefghij", 6, 2), "abcdef\n  ghij\n") << "no place to break";
  EXPECT_EQ(WrapParts("a(b=1,c=2)+d(e=3)", 12, 2), "a(b=1,c=2)+\n  d(e=3)\n");
  EXPECT_EQ(WrapParts("a(b=1,c=2)+d(e=3)", 9, 2), "a(b=1,\n  c=2)+\n  d(e=3)\n");
}

TEST(CachePictureTest, SaysBelowTheBarsWhatEachLayerOfAReportHolds) {
  v1::CacheReport report = AllKinds();
  const std::string picture = DrawReport(report, 100);
  EXPECT_THAT(picture, HasSubstr("\nlayer 1      lazy, bf16 1024, 1024 evicted\n"));
  EXPECT_THAT(picture, HasSubstr("\nlayer 3      merged with layer 2, "));
  EXPECT_THAT(picture, HasSubstr("\nlayer 4      keys of layers 0 and 2, "));
  EXPECT_THAT(picture, HasSubstr("recall 0.987"));
  EXPECT_THAT(picture, Not(HasSubstr("attentions")));
  report.set_distant_attentions(8000);
  EXPECT_THAT(DrawReport(report, 100), HasSubstr("distant      8000 attentions\n"));
  report.set_skipped_attentions(3000);
  EXPECT_THAT(DrawReport(report, 100),
              HasSubstr("distant      8000 attentions, 3000 of them (37.5 %) left out\n"));
}

TEST(CachePictureTest, ReportsFitTheTerminal) {
  v1::CacheReport report = AllKinds();
  report.set_distant_attentions(12345678);
  report.set_skipped_attentions(2345678);
  for (const std::string& policy : {std::string("full"), "snapkv(" + std::string(150, 'x') + ")"}) {
    report.set_compression(policy);
    for (const int columns : {60, 78, 100}) {
      const std::string picture = DrawReport(report, columns);
      for (const std::string& line : std::vector<std::string>(absl::StrSplit(picture, '\n'))) {
        EXPECT_LE(Width(line), columns) << line;
      }
    }
  }
}

TEST(CachePictureTest, NamesTheFormatsOfLayersWhereTheyAreNotOnePlainOne) {
  v1::GetCacheResponse cache = Pyramid();
  for (int i = 0; i < 4; ++i) {
    v1::FormatOccupancy* format = cache.mutable_layers(i)->add_formats();
    format->set_format("bf16");
    format->set_blocks(10);
  }
  EXPECT_THAT(DrawCache(cache, 80), Not(HasSubstr("by format")));
  for (const int i : {2, 3}) {
    v1::FormatOccupancy* format = cache.mutable_layers(i)->add_formats();
    format->set_format("int4");
    format->set_blocks(3);
  }
  EXPECT_THAT(DrawCache(cache, 80), HasSubstr("\nblocks by format\n"
                                              "layers 2-3   bf16 10 + int4 3\n"
                                              "layers 0-1   bf16 10\n"));
}

TEST(CachePictureTest, SaysUnderARequestWhatItsLayersAre) {
  v1::GetCacheResponse cache = Pyramid();
  *cache.mutable_requests(0)->mutable_layers() = AllKinds().layers();
  for (const int columns : {60, 80, 132}) {
    const std::string picture = DrawCache(cache, columns);
    EXPECT_THAT(picture, AllOf(HasSubstr("\n           lazy 1; merged 2+3;"),
                               HasSubstr("keys of 0 in 4"), HasSubstr("quantized 0-1984")));
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(picture, '\n'))) {
      EXPECT_LE(Width(line), columns) << line;
    }
  }
}

}  // namespace
}  // namespace ziggurat
