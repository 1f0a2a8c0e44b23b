#include "server/cli/cache_picture.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ziggurat {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace ziggurat
