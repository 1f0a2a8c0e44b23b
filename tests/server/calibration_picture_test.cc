#include "server/cli/calibration_picture.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ziggurat {
namespace {

LayerSimilarity Similarity(int layers, int heads, double elsewhere) {
  LayerSimilarity similarity{layers, heads, {}};
  similarity.values.assign(static_cast<size_t>(heads) * layers * layers, elsewhere);
  return similarity;
}

TEST(CalibrationPicture, ShowsTenthsAndGroupsTheLastLayerOnTop) {
  LayerSimilarity similarity = Similarity(3, 1, 0.04);
  similarity.At(0, 0, 1) = similarity.At(0, 1, 0) = 0.69;
  similarity.At(0, 1, 2) = similarity.At(0, 2, 1) = 1;
  EXPECT_EQ(DrawSimilarity(similarity, GroupLayers(similarity, 0.5), false, 80),
            "KV head 0\n"
            "   2      ■  -\n"
            "   1    ■ 9  0-1\n"
            "   0  ■ 6 ·  0-1\n"
            "      0 1 2\n"
            "\n");
}

TEST(CalibrationPicture, PutsAsManyHeadsSideBySideAsThereIsRoomFor) {
  const LayerSimilarity similarity = Similarity(8, 5, 0.3);
  const PodGroups groups = GroupLayers(similarity, 0.5);
  for (const int columns : {20, 40, 80, 200}) {
    const std::string picture = DrawSimilarity(similarity, groups, false, columns);
    int widest = 0, titles = 0;
    for (const auto& line : std::vector<std::string>(absl::StrSplit(picture, '\n'))) {
      // Every byte that does not continue a UTF-8 character is a column.
      widest = std::max(widest,
                        static_cast<int>(std::count_if(line.begin(), line.end(),
                                                       [](char c) { return (c & 0xC0) != 0x80; })));
      titles += line.find("KV head") != std::string::npos;
    }
    EXPECT_LE(widest, std::max(columns, 29)) << picture;
    EXPECT_EQ(titles, columns < 61 ? 5 : columns < 93 ? 3 : 1) << picture;
    EXPECT_THAT(picture, testing::HasSubstr("KV head 4"));
  }
  const std::string same = DrawSimilarity(similarity, groups, true, 80);
  EXPECT_THAT(same, testing::StartsWith("all heads\n"));
  EXPECT_THAT(same, testing::Not(testing::HasSubstr("KV head")));
}

TEST(CalibrationPicture, NamesTheGroupsOfEachHead) {
  LayerSimilarity similarity = Similarity(4, 2, 0.1);
  EXPECT_EQ(DescribeGroups(GroupLayers(similarity, 0.5)), "all heads: none");
  for (const int layer : {1, 3}) {
    similarity.At(0, layer, layer - 1) = similarity.At(0, layer - 1, layer) = 0.9;
  }
  EXPECT_EQ(DescribeGroups(GroupLayers(similarity, 0.5)), "KV head 0: 0-1, 2-3; KV head 1: none");
  EXPECT_EQ(DescribeGroups(GroupLayers(similarity, 0)), "all heads: 0-3");
}

}  // namespace
}  // namespace ziggurat
