// Similarities to groups, on matrices made by hand and at random, and into a file and back.
#include "compression/pod_calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace ziggurat {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

/// 1 on the diagonal and `elsewhere` beside it.
LayerSimilarity Similarity(int layers, int heads, double elsewhere) {
  LayerSimilarity similarity{layers, heads, {}};
  similarity.values.assign(static_cast<size_t>(heads) * layers * layers, elsewhere);
  for (int head = 0; head < heads; ++head) {
    for (int layer = 0; layer < layers; ++layer) similarity.At(head, layer, layer) = 1;
  }
  return similarity;
}

void Set(LayerSimilarity& similarity, int head, int layer, int other, double value) {
  similarity.At(head, layer, other) = similarity.At(head, other, layer) = value;
}

LayerSimilarity RandomSimilarity(int layers, int heads, std::mt19937& random) {
  LayerSimilarity similarity = Similarity(layers, heads, 0);
  std::uniform_real_distribution<double> any(0, 1);
  for (int head = 0; head < heads; ++head) {
    for (int layer = 0; layer < layers; ++layer) {
      for (int other = 0; other < layer; ++other) {
        // Layers that are near each other are more alike, so that groups of all sizes come up.
        Set(similarity, head, layer, other, std::pow(any(random), 0.25 * (layer - other)));
      }
    }
  }
  return similarity;
}

TEST(GroupLayers, EqualLayersAreOneGroup) {
  const PodGroups groups = GroupLayers(Similarity(5, 2, 1), 1);
  EXPECT_EQ(groups.num_layers, 5);
  EXPECT_EQ(groups.num_kv_heads, 2);
  EXPECT_THAT(groups.lowest, ElementsAreArray(std::vector<int>(10, 0)));
  EXPECT_TRUE(groups.IsSameForAllHeads());
}

TEST(GroupLayers, LayersOfNoLikenessStandAlone) {
  EXPECT_THAT(GroupLayers(Similarity(4, 1, 0.49), 0.5).lowest, ElementsAre(0, 1, 2, 3));
}

TEST(GroupLayers, ExactlyDeltaIsEnough) {
  EXPECT_THAT(GroupLayers(Similarity(3, 1, 0.5), 0.5).lowest, ElementsAre(0, 0, 0));
}

TEST(GroupLayers, EveryLayerOfTheGroupMustBeAlikeNotOnlyTheOneBelow) {
  LayerSimilarity chain = Similarity(5, 1, 0.1);
  for (int layer = 1; layer < 5; ++layer) Set(chain, 0, layer, layer - 1, 0.9);
  EXPECT_THAT(GroupLayers(chain, 0.5).lowest, ElementsAre(0, 0, 2, 2, 4));
}

TEST(GroupLayers, LikenessAcrossAStrangerGroupsNothing) {
  LayerSimilarity apart = Similarity(3, 1, 0.1);
  Set(apart, 0, 2, 0, 0.95);
  EXPECT_THAT(GroupLayers(apart, 0.5).lowest, ElementsAre(0, 1, 2));
}

TEST(GroupLayers, HeadsAreGroupedForThemselvesUnlessAveraged) {
  LayerSimilarity similarity = Similarity(3, 2, 0.2);
  Set(similarity, 0, 1, 0, 0.9);
  Set(similarity, 1, 2, 1, 0.7);
  EXPECT_THAT(GroupLayers(similarity, 0.5).lowest, ElementsAre(0, 0, 0, 1, 2, 1));
  const LayerSimilarity mean = MeanOverHeads(similarity);
  EXPECT_DOUBLE_EQ(mean.At(0, 1, 0), 0.55);
  EXPECT_DOUBLE_EQ(mean.At(1, 2, 1), 0.45);
  EXPECT_DOUBLE_EQ(mean.At(1, 1, 1), 1);
  EXPECT_THAT(GroupLayers(mean, 0.5).lowest, ElementsAre(0, 0, 0, 0, 2, 2));
}

TEST(GroupLayers, ANumberThatIsNoneGroupsNothing) {
  EXPECT_THAT(GroupLayers(Similarity(2, 1, NAN), 0).lowest, ElementsAre(0, 1));
}

TEST(GroupLayers, GroupsAreAlikeThroughoutAndNoneCouldHaveGrown) {
  std::mt19937 random(3);
  int shared = 0;
  for (int round = 0; round < 300; ++round) {
    const LayerSimilarity similarity = RandomSimilarity(12, 3, random);
    const double delta = std::uniform_real_distribution<double>(0, 1)(random);
    const PodGroups groups = GroupLayers(similarity, delta);
    for (int head = 0; head < 3; ++head) {
      for (int layer = 1; layer < 12; ++layer) {
        const int lowest = groups.Lowest(layer, head);
        const bool begins = lowest == layer;
        const int below = begins ? groups.Lowest(layer - 1, head) : lowest;
        double least = 1;
        for (int other = below; other < layer; ++other) {
          least = std::min(least, similarity.At(head, layer, other));
        }
        EXPECT_EQ(least < delta, begins) << "layer " << layer << ": " << least << ", " << delta;
        shared += groups.IsShared(layer, head);
      }
    }
    ASSERT_TRUE(ParsePodGroups("g", FormatPodGroups(groups)).ok());
  }
  EXPECT_GT(shared, 1000);
}

TEST(SavedShare, IsHalfACellForEachLayerAboveTheLowest) {
  PodGroups groups{.name = "", .num_layers = 4, .num_kv_heads = 2, .lowest = {}, .origin = {}};
  groups.lowest = {0, 0, 1, 0, 2, 0, 3, 0};
  EXPECT_DOUBLE_EQ(SavedShare(groups), 3 / 16.0);
  groups.lowest = {0, 0, 1, 1, 2, 2, 3, 3};
  EXPECT_EQ(SavedShare(groups), 0);
}

TEST(PodOriginFile, ComesBackAsItWasWritten) {
  PodGroups groups = GroupLayers(Similarity(3, 2, 0.6), 0.5);
  groups.origin = {.model = "llama \"3\" ü", .delta = 0.1, .q = 64, .samples = 7};
  const std::string text = FormatPodGroups(groups);
  const auto read = ParsePodGroups("name", text);
  ASSERT_TRUE(read.ok()) << read.status() << "\n" << text;
  EXPECT_EQ((*read)->lowest, groups.lowest);
  EXPECT_EQ((*read)->origin.model, groups.origin.model);
  EXPECT_EQ((*read)->origin.delta, 0.1);
  EXPECT_EQ((*read)->origin.q, 64);
  EXPECT_EQ((*read)->origin.samples, 7);
  EXPECT_EQ(FormatPodGroups(**read), text);
}

TEST(PodOriginFile, MayBeAbsent) {
  const PodGroups groups = GroupLayers(Similarity(3, 2, 0.6), 0.5);
  const std::string text = FormatPodGroups(groups);
  EXPECT_EQ(text.find("delta"), std::string::npos);
  const auto read = ParsePodGroups("name", text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ((*read)->origin.model, "");
  EXPECT_FALSE((*read)->origin.delta.has_value());
  EXPECT_FALSE((*read)->origin.q.has_value());
  EXPECT_FALSE((*read)->origin.samples.has_value());
}

TEST(PodOriginFile, IsRefusedWhereItMakesNoSense) {
  const auto refusal = [](const std::string& field) {
    const auto groups = ParsePodGroups(
        "g", R"({"format":"ziggurat-pod-groups","version":1,"num_layers":1,"num_kv_heads":1,)" +
                 field + R"(,"lowest":[[0]]})");
    return groups.ok() ? std::string("was accepted") : std::string(groups.status().message());
  };
  EXPECT_THAT(refusal(R"("model":3)"), HasSubstr("model must be a string, not 3"));
  EXPECT_THAT(refusal(R"("delta":1.5)"), HasSubstr("delta must be a number from 0 to 1, not 1.5"));
  EXPECT_THAT(refusal(R"("delta":"a")"), HasSubstr("delta must be a number from 0 to 1"));
  EXPECT_THAT(refusal(R"("q":0)"), HasSubstr("q must be an integer of at least 1, not 0"));
  EXPECT_THAT(refusal(R"("samples":2.5)"), HasSubstr("samples must be an integer of at least 1"));
}

}  // namespace
}  // namespace ziggurat
