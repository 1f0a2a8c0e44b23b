#include "server/config.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/byte_size.h"

namespace ziggurat {
namespace {

using ::testing::HasSubstr;

TEST(ByteSizeTest, ReadsTheUnitsPeopleWrite) {
  const std::pair<const char*, size_t> cases[] = {{"4096", 4096},
                                                  {"0", 0},
                                                  {"512MiB", 512u << 20},
                                                  {"2GiB", size_t{2} << 30},
                                                  {"1GB", 1'000'000'000},
                                                  {"1.5 KiB", 1536},
                                                  {"3mb", 3'000'000},
                                                  {"7B", 7},
                                                  {"5kB", 5000},
                                                  {"2TB", 2'000'000'000'000},
                                                  {"1TiB", size_t{1} << 40}};
  for (const auto& [text, bytes] : cases) {
    const auto parsed = ParseByteSize(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ByteSizeTest, RefusesWhatIsNoSizeAndQuotesIt) {
  for (const char* text : {"", "MiB", "-1", "5 apples", "1e3", "nan", "99999999TiB", "1GiBx"}) {
    const auto parsed = ParseByteSize(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(std::string("'") + text + "'"));
  }
}

TEST(ByteSizeTest, WritesSizesForPeople) {
  EXPECT_EQ(FormatByteSize(17), "17 B");
  EXPECT_EQ(FormatByteSize(1536), "1.5 KiB");
  EXPECT_EQ(FormatByteSize(size_t{512} << 20), "512 MiB");
  EXPECT_EQ(FormatByteSize(1023), "1023 B");
  EXPECT_EQ(FormatByteSize(1048575), "1.0 MiB");  // rounded, it would be 1024 KiB
}

TEST(EndpointTest, ReadsHostsAndPorts) {
  EXPECT_EQ(ParseEndpoint("127.0.0.1:65535")->port, 65535);
  EXPECT_EQ(ParseEndpoint("localhost:0")->host, "localhost");
  EXPECT_EQ(ParseEndpoint("[::1]:9400")->host, "::1");
  EXPECT_EQ(FormatEndpoint({"::1", 9400}), "[::1]:9400");
  EXPECT_EQ(FormatEndpoint({"0.0.0.0", 1}), "0.0.0.0:1");
  for (const char* text :
       {"", "50051", "host:", ":50051", "host:65536", "host:-1", "::1:50051", "host:12x"}) {
    EXPECT_FALSE(ParseEndpoint(text).ok()) << text;
  }
}

TEST(PrefillTokensTest, AreByDeviceUnlessNamed) {
  ServeConfig config;
  config.prefill_tokens = *ParsePrefillTokens("auto");
  EXPECT_EQ(config.PrefillTokens(/*is_cpu=*/true), 1024);
  EXPECT_EQ(config.PrefillTokens(/*is_cpu=*/false), 8192);
  EXPECT_EQ(config.WorkspaceTokens(5000, /*is_cpu=*/true), 4999);
  EXPECT_EQ(config.WorkspaceTokens(5000, /*is_cpu=*/false), 8192);
  config.prefill_tokens = *ParsePrefillTokens("300");
  EXPECT_EQ(config.PrefillTokens(/*is_cpu=*/true), 300);
  EXPECT_EQ(config.PrefillTokens(/*is_cpu=*/false), 300);
  for (const char* text : {"", "0", "-1", "Auto", "1e3", "12 x", "1073741825", "99999999999"}) {
    const absl::StatusOr<int> parsed = ParsePrefillTokens(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(std::string("'") + text + "'"));
  }
}

TEST(DeviceTest, ReadsDevicesAndShares) {
  EXPECT_TRUE(ParseDevice("auto")->is_auto);
  EXPECT_EQ(ParseDevice("cpu")->ordinal, DeviceChoice::kCpu);
  EXPECT_EQ(ParseDevice("cuda:3")->ordinal, 3);
  EXPECT_FALSE(ParseDevice("cuda:3")->is_auto);
  for (const char* text : {"", "gpu", "cuda", "cuda:", "cuda:-1", "cuda:1x", "CPU"}) {
    EXPECT_FALSE(ParseDevice(text).ok()) << text;
  }
  EXPECT_DOUBLE_EQ(*ParseMemoryShare("90%"), 0.9);
  EXPECT_DOUBLE_EQ(*ParseMemoryShare("100%"), 1);
  EXPECT_DOUBLE_EQ(*ParseMemoryShare("12.5%"), 0.125);
  for (const char* text : {"0%", "100.5%", "-1%", "nan%", "%", "90", "9 %"}) {
    EXPECT_FALSE(ParseMemoryShare(text).ok()) << text;
  }
}

ServeConfig Valid() {
  ServeConfig config;
  config.model = "models/any";
  return config;
}

TEST(ConfigTest, DefaultsAreValidOnceThereIsAModel) {
  EXPECT_TRUE(Validate(Valid()).ok()) << Validate(Valid());
  EXPECT_FALSE(Validate(ServeConfig{}).ok());
}

TEST(ConfigTest, TheLargestValuesAreTaken) {
  ServeConfig config = Valid();
  config.max_running = 65536;
  config.max_queue = config.max_streams = 1 << 20;
  config.max_queue_time = absl::Hours(1);
  config.prefill_slice = absl::Minutes(1);
  config.drain_timeout = absl::Hours(24);
  config.max_message_bytes = config.max_prompt_tokens = 1 << 30;
  EXPECT_TRUE(Validate(config).ok()) << Validate(config);
}

TEST(ConfigTest, StreamsAreTwiceAsManyAsRequestsUnlessNamed) {
  ServeConfig config;
  config.max_running = 3;
  config.max_queue = 4;
  EXPECT_EQ(config.StreamLimit(), 14);
  config.max_streams = 5;
  EXPECT_EQ(config.StreamLimit(), 5);
}

TEST(ConfigTest, LimitsThatModelAndMachineDoNotAllowAreNamed) {
  ServeConfig config = Valid();
  const auto complaint = [&] {
    return std::string(CheckLimitsOfModel(config, 4096, /*num_layers=*/8, 4096).message());
  };
  config.max_prompt_tokens = 4095;
  EXPECT_EQ(complaint(), "");
  config.max_prompt_tokens = 4096;
  EXPECT_THAT(complaint(), AllOf(HasSubstr("--max-prompt-tokens is 4096"), HasSubstr("4095")));
  config.max_prompt_tokens = 0;
  config.kv_cache_bytes = 32768;
  EXPECT_EQ(complaint(), "");
  config.kv_cache_bytes = 32767;
  EXPECT_THAT(complaint(), AllOf(HasSubstr("--kv-cache-memory is 32767"), HasSubstr("32768")));
  config.kv_cache_bytes = size_t{1} << 50;
  EXPECT_THAT(complaint(), HasSubstr("2^32 - 1 blocks"));
  config.kv_cache_bytes = size_t{2} << 40;
  EXPECT_TRUE(CheckPoolFits(config, size_t{2} << 40).ok());
  EXPECT_THAT(std::string(CheckPoolFits(config, size_t{24} << 30).message()),
              AllOf(HasSubstr("--kv-cache-memory is 2 TiB"), HasSubstr("24 GiB")));
}

void ExpectRefused(const ServeConfig& config, const std::string& flag, const std::string& value) {
  const absl::Status status = Validate(config);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << flag;
  EXPECT_THAT(std::string(status.message()), HasSubstr(flag));
  EXPECT_THAT(std::string(status.message()), HasSubstr(value));
}

TEST(ConfigTest, NamesTheFlagAndTheValueThatIsWrong) {
  ServeConfig config = Valid();
  config.max_running = 0;
  ExpectRefused(config, "--max-running", "0");
  config = Valid();
  config.metrics_compat = "other";
  ExpectRefused(config, "--metrics-compat", "other");
  config = Valid();
  config.max_queue = -1;
  ExpectRefused(config, "--max-queue", "-1");
  config = Valid();
  config.threads = -2;
  ExpectRefused(config, "--threads", "-2");
  config = Valid();
  config.default_max_tokens = 0;
  ExpectRefused(config, "--default-max-tokens", "0");
  config = Valid();
  config.max_streams = -1;
  ExpectRefused(config, "--max-streams", "-1");
  config = Valid();
  config.max_message_bytes = 1023;
  ExpectRefused(config, "--max-message-bytes", "1023");
  config = Valid();
  config.prefill_tokens = -5;
  ExpectRefused(config, "--prefill-tokens", "-5");
  config = Valid();
  config.short_prefill_tokens = -1;
  ExpectRefused(config, "--short-prefill-tokens", "-1");
  config = Valid();
  config.max_queue_time = absl::Seconds(3601);
  ExpectRefused(config, "--max-queue-time", "3601");
  config = Valid();
  config.prefill_slice = absl::Seconds(61);
  ExpectRefused(config, "--prefill-slice", "61");
  config = Valid();
  config.drain_timeout = absl::Seconds(-3);
  ExpectRefused(config, "--drain-timeout", "-3");
  config = Valid();
  config.kv_cache_bytes = 0;
  ExpectRefused(config, "--kv-cache-memory", "0");
  config = Valid();
  config.log_level = "loud";
  ExpectRefused(config, "--log-level", "loud");
  config = Valid();
  config.compression = "snapkv(budget=0)";
  ExpectRefused(config, "--compression", "column");
  config = Valid();
  config.allow_compression = {"full", "zip"};
  ExpectRefused(config, "--allow-compression", "zip");
  config = Valid();
  config.http = config.grpc = {"127.0.0.1", 50051};
  ExpectRefused(config, "--http", "--listen");
  config.http = config.grpc = {"127.0.0.1", 0};  // two free ones
  EXPECT_TRUE(Validate(config).ok());
  config = Valid();
  config.kv_cache_share = 0.9;
  EXPECT_TRUE(Validate(config).ok()) << "auto: there may be a GPU";
  config.device = "cpu";
  ExpectRefused(config, "--kv-cache-memory", "share");
}

TEST(ConfigTest, ReadsElementTypes) {
  EXPECT_EQ(*ParseElementType("bf16"), ElementType::kBf16);
  EXPECT_EQ(*ParseElementType("f32"), ElementType::kF32);
  EXPECT_FALSE(ParseElementType("fp16").ok());
}

}  // namespace
}  // namespace ziggurat
