#include "model/checkpoint/safetensors.h"

#include <cstring>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/random_model.h"
#include "model/checkpoint/tensor_conversion.h"
#include "model/checkpoint/weights_layout.h"
#include "tests/model/checkpoint_files.h"

namespace ziggurat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Two tensors; the second begins at an odd address.
const char kHeader[] = R"({"__metadata__": {"format": "pt"},)"
                       R"( "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},)"
                       R"( "b": {"dtype": "F32", "shape": [2, 1], "data_offsets": [3, 11]}})";

std::string TwoFloats() {
  const float values[2] = {1.5f, -2.0f};
  std::string bytes(sizeof(values), '\0');
  std::memcpy(bytes.data(), values, sizeof(values));
  return bytes;
}

std::string GoodFile() { return Safetensors(kHeader, "abc" + TwoFloats()); }

absl::StatusOr<SafetensorsFile> OpenBytes(const TemporaryFolder& dir, const std::string& bytes) {
  WriteFile(dir / "x.safetensors", bytes);
  return SafetensorsFile::Open(dir / "x.safetensors");
}

TEST(SafetensorsFile, ShowsTensorsWhereTheyLie) {
  TemporaryFolder dir;
  auto opened = OpenBytes(dir, GoodFile());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const SafetensorsFile file = *std::move(opened);  // views survive a move
  ASSERT_EQ(file.tensors().size(), 2u);
  const TensorView& b = file.tensors().find("b")->second;
  EXPECT_EQ(b.dtype, DType::kF32);
  EXPECT_THAT(b.shape, ElementsAre(2, 1));
  EXPECT_EQ(b.bytes, 8u);
  float values[2];
  ASSERT_TRUE(ConvertToF32("b", b, absl::MakeSpan(values)).ok());
  EXPECT_THAT(values, ElementsAre(1.5f, -2.0f));
  const TensorView row = b.Rows(1, 1);
  ASSERT_TRUE(ConvertToF32("b", row, absl::MakeSpan(values, 1)).ok());
  EXPECT_EQ(values[0], -2.0f);
}

TEST(SafetensorsFile, EveryTruncationIsDataLoss) {
  TemporaryFolder dir;
  const std::string good = GoodFile();
  for (size_t length = 0; length < good.size(); ++length) {
    const auto file = OpenBytes(dir, good.substr(0, length));
    ASSERT_EQ(file.status().code(), absl::StatusCode::kDataLoss) << "cut to " << length;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("x.safetensors"));
  }
  EXPECT_EQ(OpenBytes(dir, good + "!").status().code(), absl::StatusCode::kDataLoss);
}

struct BadHeader {
  const char* name;
  std::string header;
  const char* reason;
};

class BadHeaders : public ::testing::TestWithParam<BadHeader> {};

TEST_P(BadHeaders, AreDataLossWithAReason) {
  TemporaryFolder dir;
  const auto file = OpenBytes(dir, Safetensors(GetParam().header, std::string(8, '\0')));
  ASSERT_EQ(file.status().code(), absl::StatusCode::kDataLoss) << file.status();
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("x.safetensors"));
  EXPECT_THAT(std::string(file.status().message()), HasSubstr(GetParam().reason));
}

INSTANTIATE_TEST_SUITE_P(
    SafetensorsFile, BadHeaders,
    ::testing::Values(
        BadHeader{"NoJson", "{\"a\": ", "the header is not valid JSON"},
        BadHeader{"Empty", "", "not valid JSON: it does not begin with '{'"},
        BadHeader{"Array", "[1]", "not valid JSON: it does not begin with '{'"},
        BadHeader{"Number", "17", "not valid JSON: it does not begin with '{'"},
        BadHeader{"Blank", " {}", "not valid JSON: it does not begin with '{'"},
        BadHeader{"BytesBehindNul", std::string("{}\0 more", 8), "byte 3 is NUL"},
        BadHeader{"InvalidUtf8", "{\"\xff\": 1}", "not valid JSON"},
        BadHeader{"UnknownDtype", R"({"a": {"dtype": "F7", "shape": [2], "data_offsets": [0, 8]}})",
                  "F7\" (supported are F32, F16 and BF16)"},
        BadHeader{"SpanDisagrees",
                  R"({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}})", "12 bytes"},
        BadHeader{"Backwards", R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}})",
                  "[8, 0)"},
        BadHeader{"BehindTheEnd",
                  R"({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}})", "truncated"},
        BadHeader{"Overlap",
                  R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},)"
                  R"( "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
                  "inside"},
        BadHeader{"Gap",
                  R"({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},)"
                  R"( "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
                  "begins at byte 4"},
        BadHeader{"Negative", R"({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}})",
                  "negative"},
        BadHeader{"Fraction", R"({"a": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}})",
                  "fraction"},
        BadHeader{"Overflow",
                  R"({"a": {"dtype": "F32", "shape": [4294967296, 4294967296],)"
                  R"( "data_offsets": [0, 0]}})",
                  "overflows"},
        BadHeader{"TooBig",
                  R"({"a": {"dtype": "F32", "shape": [18446744073709551615],)"
                  R"( "data_offsets": [0, 8]}})",
                  "2^63"},
        BadHeader{"ThreeOffsets",
                  R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 8]}})",
                  "data_offsets"},
        BadHeader{"NoShape", R"({"a": {"dtype": "F32", "data_offsets": [0, 8]}})", "shape"},
        BadHeader{"Twice",
                  R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},)"
                  R"( "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})",
                  "second entry"},
        BadHeader{"FieldTwice",
                  R"({"a": {"dtype": "F32", "dtype": "F32", "shape": [2],)"
                  R"( "data_offsets": [0, 8]}})",
                  "twice"},
        BadHeader{"Nested", R"({"a": {"dtype": "F32", "shape": [[2]], "data_offsets": [0, 8]}})",
                  "a list"},
        BadHeader{"MetadataNotText", R"({"__metadata__": {"a": 1}})", "a number"},
        BadHeader{"Nothing", "{}", "the file has 8"}),
    [](const auto& test) { return test.param.name; });

TEST(SafetensorsFile, AHeaderNestedDeeplyIsRefusedAtItsFirstLevels) {
  TemporaryFolder dir;
  std::string deep = R"({"a": {"shape": )";
  deep.append(1'000'000, '[');
  EXPECT_EQ(OpenBytes(dir, Safetensors(deep, "")).status().code(), absl::StatusCode::kDataLoss);
}

TEST(SafetensorsFile, AHugeHeaderLengthIsRefused) {
  TemporaryFolder dir;
  EXPECT_EQ(OpenBytes(dir, std::string(64, '\xff')).status().code(), absl::StatusCode::kDataLoss);
}

TEST(SafetensorsFile, NamesAMissingFileAndAFolder) {
  TemporaryFolder dir;
  EXPECT_EQ(SafetensorsFile::Open(dir / "none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsFile::Open(dir.path()).status().code(), absl::StatusCode::kInvalidArgument);
}

/// Reads everything that a loader would read.
void Use(const std::filesystem::path& dir, int* accepted) {
  const auto config = LoadModelConfig(dir);
  const auto checkpoint = Checkpoint::Open(dir);
  if (!checkpoint.ok()) {
    EXPECT_THAT(std::string(checkpoint.status().message()), HasSubstr("model.safetensors"));
    return;
  }
  if (!config.ok() || !CheckWeights(*config, *checkpoint).ok()) return;
  ++*accepted;
  for (const WeightSpec& spec : ExpectedWeights(*config)) {
    const TensorView tensor = *FindWeight(*config, *checkpoint, spec.name);
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    const absl::Status status = ConvertToF32(spec.name, tensor, absl::MakeSpan(values));
    if (!status.ok()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    }
  }
}

TEST(SafetensorsFile, RandomMutationsNeverCrash) {
  TemporaryFolder dir;
  RandomModelOptions options;
  options.hidden_size = 16;
  options.q_heads = 2;
  options.kv_heads = 1;
  options.intermediate_size = 8;
  options.layers = 1;
  ASSERT_TRUE(WriteRandomModel(options, dir.path()).ok());
  const std::string good = ReadFile(dir / "model.safetensors");
  const size_t header = 8 + static_cast<size_t>(static_cast<uint8_t>(good[0])) +
                        256 * static_cast<size_t>(static_cast<uint8_t>(good[1]));
  std::mt19937 random(1);
  const auto below = [&random](size_t n) { return static_cast<size_t>(random()) % n; };
  int accepted = 0;
  int runs = 0;
  for (; runs < 600; ++runs) {
    std::string bytes = good;
    for (size_t change = 0; change <= below(3); ++change) {
      // Mostly the header; digits to digits now and then, so that the JSON stays valid.
      char& at = bytes[below(4) == 0 ? below(bytes.size()) : below(std::min(header, bytes.size()))];
      if (at >= '0' && at <= '9' && below(2) == 0) {
        at = static_cast<char>('0' + below(10));
      } else {
        at = static_cast<char>(at ^ (1 << below(8)));
      }
      if (below(16) == 0) bytes.resize(1 + below(bytes.size()));
    }
    WriteFile(dir / "model.safetensors", bytes);
    Use(dir.path(), &accepted);
  }
  EXPECT_GT(accepted, 0) << "some mutations only change values";
  EXPECT_LT(accepted, runs);
}

class ShardedCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    RandomModelOptions options;
    options.max_shard_bytes = 100'000;
    ASSERT_TRUE(WriteRandomModel(options, dir_.path()).ok());
    ASSERT_TRUE(std::filesystem::exists(dir_ / "model-00001-of-00003.safetensors"));
  }
  void WriteIndex(const std::string& text) {
    WriteFile(dir_ / "model.safetensors.index.json", text);
  }
  absl::Status Open() { return Checkpoint::Open(dir_.path()).status(); }

  TemporaryFolder dir_;
};

TEST_F(ShardedCheckpoint, HoldsTheTensorsOfAllFiles) {
  const auto checkpoint = Checkpoint::Open(dir_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE(CheckWeights(*LoadModelConfig(dir_.path()), *checkpoint).ok());
  EXPECT_EQ(checkpoint->Names().size(), 3u + 2 * 9);
  EXPECT_EQ(checkpoint->Find("nothing"), nullptr);
}

TEST_F(ShardedCheckpoint, NamesTheFileOfATensor) {
  const auto checkpoint = Checkpoint::Open(dir_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  for (const char* shard :
       {"model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"}) {
    const auto file = SafetensorsFile::Open(dir_ / shard);
    ASSERT_TRUE(file.ok()) << file.status();
    for (const auto& [name, tensor] : file->tensors()) {
      EXPECT_EQ(checkpoint->FileOf(*checkpoint->Find(name)), dir_ / shard) << name;
    }
  }
}

TEST_F(ShardedCheckpoint, GivesWayToASingleFile) {
  WriteFile(dir_ / "model.safetensors", GoodFile());
  const auto checkpoint = Checkpoint::Open(dir_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(checkpoint->Names(), ElementsAre("a", "b"));
}

TEST_F(ShardedCheckpoint, NamesAMissingShard) {
  std::filesystem::remove(dir_ / "model-00002-of-00003.safetensors");
  EXPECT_EQ(Open().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Open().message()),
              HasSubstr("model-00002-of-00003.safetensors: no such file, but "
                        "model.safetensors.index.json names it"));
}

TEST_F(ShardedCheckpoint, NamesATensorThatItsShardLacks) {
  WriteIndex(R"({"weight_map": {"ghost": "model-00001-of-00003.safetensors"}})");
  EXPECT_EQ(Open().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(Open().message()), HasSubstr("\"ghost\""));
}

TEST_F(ShardedCheckpoint, RefusesFilesOutsideTheFolder) {
  for (const char* file : {"../x", "/etc/passwd", "sub/x", "..", ".", "", "x\\u0000y"}) {
    WriteIndex(R"({"weight_map": {"a": ")" + std::string(file) + "\"}}");
    EXPECT_EQ(Open().code(), absl::StatusCode::kInvalidArgument) << file;
  }
}

TEST_F(ShardedCheckpoint, RefusesAMalformedIndex) {
  for (const char* text : {"", "[]", "{}", R"({"weight_map": []})", R"({"weight_map": {}})",
                           R"({"weight_map": {"a": 1}})", "{\"weight_map\": "}) {
    WriteIndex(text);
    EXPECT_EQ(Open().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(Open().message()), HasSubstr("index.json"));
  }
}

TEST(Checkpoint, SaysWhatAFolderWithoutWeightsLacks) {
  TemporaryFolder dir;
  auto status = Checkpoint::Open(dir.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("model.safetensors"));
  WriteFile(dir / "pytorch_model.bin", "x");
  status = Checkpoint::Open(dir.path()).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("convert"));
}

}  // namespace
}  // namespace ziggurat
