#include "server/cli/settings.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/settings_file.h"
#include "tests/support/files.h"

namespace ziggurat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

/// Of this process.
const TemporaryFolder& Folder() {
  static const TemporaryFolder folder;
  return folder;
}

/// A command with one flag of each kind.
struct Example {
  explicit Example(const std::string& name = "config.yaml") : path((Folder() / name).string()) {
    app.add_option("--config", config)->configurable(false);
    app.add_flag("--print-config", print)->configurable(false);
    app.add_option("--kv-cache-memory", memory)->capture_default_str();
    app.add_option("--max-running", running)->check(CLI::Range(1, 100))->capture_default_str();
    app.add_option("--allow-compression", allowed)->delimiter(',');
    app.add_option("--groups", groups)->allow_extra_args(false);
    app.add_flag("--check-integrity", check);
    app.add_option("--dtype", dtype);
    app.add_option("--page", page)->type_name("on|off");
  }
  ~Example() { std::remove(path.c_str()); }

  absl::StatusOr<Settings> Read(std::vector<std::string> arguments,
                                const std::vector<std::string>& environment = {},
                                const std::string& file = "") {
    if (!file.empty()) {
      WriteFile(path, file);
      arguments.insert(arguments.end(), {"--config", path});
    }
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    app.parse(arguments);
    return Settings::Complete(app, environment);
  }
  std::string Refusal(const std::vector<std::string>& environment, const std::string& file) {
    const auto settings = Read({}, environment, file);
    return settings.ok() ? "it was taken" : std::string(settings.status().message());
  }

  CLI::App app{"example"};
  std::string path, config, memory = "512MiB", dtype;
  std::vector<std::string> allowed, groups;
  int running = 7;
  bool print = false, check = false, page = true;
};

std::map<std::string, std::string> SourcesOf(const Settings& settings) {
  std::map<std::string, std::string> sources;
  for (const Setting& setting : settings.all()) sources[setting.key] = setting.source;
  return sources;
}

TEST(SettingsTest, AFlagComesBeforeAVariableBeforeTheFileBeforeTheDefault) {
  const std::string file =
      "kv-cache-memory: 1GiB\nmax-running: 11\nallow-compression: [full, snapkv]\n";
  const std::vector<std::string> environment = {"ZIGGURAT_KV_CACHE_MEMORY=2GiB",
                                                "ZIGGURAT_MAX_RUNNING=22", "PATH=/bin"};
  Example example;
  const auto settings = example.Read({"--kv-cache-memory=3GiB"}, environment, file);
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(example.memory, "3GiB");
  EXPECT_EQ(example.running, 22);
  EXPECT_THAT(example.allowed, ElementsAre("full", "snapkv"));
  EXPECT_EQ(example.dtype, "");
  auto sources = SourcesOf(*settings);
  EXPECT_EQ(sources["kv-cache-memory"], "command line");
  EXPECT_EQ(sources["max-running"], "ZIGGURAT_MAX_RUNNING");
  EXPECT_EQ(sources["allow-compression"], example.path + ":3");
  EXPECT_EQ(sources["dtype"], "default");
  EXPECT_THAT(settings->warnings(), IsEmpty());
}

TEST(SettingsTest, ListsAndSwitchesAreReadEverywhere) {
  Example by_variable;
  ASSERT_TRUE(by_variable
                  .Read({}, {"ZIGGURAT_ALLOW_COMPRESSION=full,h2o", "ZIGGURAT_CHECK_INTEGRITY=yes",
                             "ZIGGURAT_GROUPS=a=1"})
                  .ok());
  EXPECT_THAT(by_variable.allowed, ElementsAre("full", "h2o"));
  EXPECT_THAT(by_variable.groups, ElementsAre("a=1"));
  EXPECT_TRUE(by_variable.check);
  Example by_file;
  ASSERT_TRUE(by_file
                  .Read({}, {},
                        "allow-compression: full,h2o\ngroups:\n  - a=1\n  - b=2\n"
                        "check-integrity: off\n")
                  .ok());
  EXPECT_THAT(by_file.allowed, ElementsAre("full", "h2o"));
  EXPECT_THAT(by_file.groups, ElementsAre("a=1", "b=2"));
  EXPECT_FALSE(by_file.check);
}

TEST(SettingsTest, AnEmptyVariableIsAsGoodAsNone) {
  Example example;
  const auto settings = example.Read({}, {"ZIGGURAT_MAX_RUNNING="}, "max-running: 11");
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(example.running, 11);
}

TEST(SettingsTest, AnEmptyVariableLeavesNoDoorOpen) {
  std::string path;
  Example example;
  example.app.add_option("--auth-token-file", path)->type_name("FILE");
  EXPECT_EQ(example.Refusal({"ZIGGURAT_AUTH_TOKEN_FILE="}, ""),
            "ZIGGURAT_AUTH_TOKEN_FILE: --auth-token-file: has no value");
}

TEST(SettingsTest, AVariableNamesTheFileAndAFlagAnother) {
  Example named, other("other.yaml");
  WriteFile(named.path, "max-running: 11\n");
  const std::vector<std::string> environment = {"ZIGGURAT_CONFIG=" + named.path};
  ASSERT_TRUE(named.Read({}, environment).ok());
  EXPECT_EQ(named.running, 11);
  ASSERT_TRUE(other.Read({}, environment, "max-running: 12\n").ok());
  EXPECT_EQ(other.running, 12);
  Example absent;
  EXPECT_THAT(absent.Refusal({"ZIGGURAT_CONFIG=/no/such.yaml"}, ""),
              AllOf(StartsWith("ZIGGURAT_CONFIG: "), HasSubstr("/no/such.yaml")));
  const auto folder = Example().Read({"--config", "/tmp"});
  EXPECT_THAT(std::string(folder.status().message()), HasSubstr("--config: cannot read /tmp"));
}

TEST(SettingsTest, WhatIsWrongIsNamedWithItsPlace) {
  const std::string here = Example().path + ":2: ";
  const std::pair<std::string, std::vector<std::string>> cases[] = {
      {"\nkv-cache-memroy: 1", {here, "'kv-cache-memroy'", "nearest is 'kv-cache-memory'"}},
      {"\nkv_cache_memory: 1", {here, "nearest is 'kv-cache-memory'"}},
      {"\nprint-config: yes", {here, "'print-config' is no setting"}},
      {"\ncolour: red", {here, "'colour' is no setting; `ziggurat serve --help`"}},
      {"\nmax-running: many", {here, "--max-running", "many"}},
      {"\npage: maybe", {here, "--page: 'maybe' is no switch: must be on or off"}},
      {"\nmax-running: 0", {here, "--max-running", "0"}},
      {"\nmax-running: [1, 2]", {here, "--max-running: takes one value, no list"}},
      {"\ngroups: []", {here, "--groups: the list is empty: leave it out"}},
      {"\ncheck-integrity: perhaps", {here, "neither true nor false"}},
      {"\ncheck-integrity: [true, false]", {here, "--check-integrity", "no list"}},
      {"\nmax-running:", {here, "has no value"}},
      {"\nmax-running:\n\nkv-cache-memory: 1", {here, "has no value"}},
      {"\nmax-running: \"\"", {here, "has no value"}},
      {"\ncheck-integrity: ''", {here, "has no value"}},
      {"\ngroups: [a=1, '']", {here, "has no value"}},
      {"\nmax-running: {a: 1}", {here, "keys of its own"}},
      {"\ngroups: [[a]]", {here, "no list of plain values"}},
      {"max-running: 1\nmax-running: 2", {here, "line 1 already"}},
      {"\n  - max-running", {here, "no mapping"}},
      {"max-running: 3\n\"x: [", {here, "no YAML"}},
      {"\ngroups: \"a=1\nmax-running: 3\n", {here, "a quote that never ends"}},
      {"\ngroups: \"a\\\"\n", {here, "a quote that never ends"}},
      {"\ngroups: 'a''b\n", {here, "a quote that never ends"}},
      {"\n\"groups: a\n", {here, "no YAML"}},
      {"\ngroups: !!str &x \"a\n", {here, "a quote that never ends"}},
      {"\xEF\xBB\xBF\ngroups: \"a\n", {here, "a quote that never ends"}},
      {"max-running: 3\n---\nmax-running: 3", {"second document"}},
      {"\n,", {here, "no YAML: a comma outside of brackets"}},
      {"{max-running: 3},", {"no YAML: a comma outside of brackets"}},
      {"\n, max-running: 3", {"no YAML: a comma"}}};
  for (const auto& [file, words] : cases) {
    for (const std::string& word : words) {
      EXPECT_THAT(Example().Refusal({}, file), HasSubstr(word)) << file;
    }
  }
  EXPECT_THAT(Example().Refusal({"ZIGGURAT_MAX_RUNNING=many"}, ""),
              StartsWith("ZIGGURAT_MAX_RUNNING: "));
  EXPECT_THAT(Example().Refusal({}, "# nothing but a remark\n"), "it was taken");
}

TEST(SettingsTest, QuotedValuesMayBeAnywhereAndOfSeveralLines) {
  for (const char* file :
       {"\xEF\xBB\xBFgroups: ['a=1', \"b=2\"]\n", "groups:\n- 'a=1'\n- !!str \"b=2\"\n",
        "'groups': [\"a\\\n  =1\", &x 'b=2']  # it's \"b\n"}) {
    Example example;
    const auto settings = example.Read({}, {}, file);
    ASSERT_TRUE(settings.ok()) << settings.status() << file;
    EXPECT_THAT(example.groups, ElementsAre("a=1", "b=2")) << file;
  }
}

TEST(SettingsTest, AnEmptyFlagIsNoNumberAndNoName) {
  for (const char* flag : {"--kv-cache-memory", "--groups"}) {
    const auto settings = Example().Read({flag, ""});
    EXPECT_EQ(std::string(settings.status().message()), std::string(flag) + ": has no value");
  }
}

TEST(SettingsTest, MessagesAboutAFlagSayWhereItCameFrom) {
  Example example;
  const auto settings = example.Read({"--max-running=5"}, {"ZIGGURAT_DTYPE=f8"},
                                     "# a remark\nkv-cache-memory: lots\n");
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(settings->Locate("--dtype: 'f8' is no dtype"),
            "ZIGGURAT_DTYPE: --dtype: 'f8' is no dtype");
  EXPECT_EQ(settings->Locate("--kv-cache-memory 'lots': no"),
            example.path + ":2: --kv-cache-memory 'lots': no");
  EXPECT_EQ(settings->Locate("--max-running is 5"), "--max-running is 5");
  EXPECT_EQ(settings->Locate("the model is odd"), "the model is odd");
}

TEST(SettingsTest, UnknownVariablesAreWarnedOfAndThoseOfServicesAndClientsAreNot) {
  Example example;
  const auto settings = example.Read(
      {}, {"ZIGGURAT_MAX_RUNING=3", "ZIGGURAT_COLOUR=red", "ZIGGURAT_PORT=tcp://10.0.0.1:50051",
           "ZIGGURAT_SERVICE_HOST=10.0.0.1", "ZIGGURAT_SERVICE_PORT=50051",
           "ZIGGURAT_SERVICE_PORT_GRPC=50051", "ZIGGURAT_PORT_50051_TCP=tcp://10.0.0.1:50051",
           "ZIGGURAT_PORT_50051_TCP_PROTO=tcp", "ZIGGURAT_PORT_50051_TCP_PORT=50051",
           "ZIGGURAT_PORT_50051_TCP_ADDR=10.0.0.1", "ZIGGURAT_METRICS_SERVICE_HOST=10.0.0.2",
           "ZIGGURAT_PICKER_PORT_9002_UDP_ADDR=10.0.0.3", "ZIGGURAT_TOKEN=a-token-0123456789"});
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_THAT(settings->warnings(),
              ElementsAre("the variable ZIGGURAT_COLOUR sets nothing",
                          AllOf(HasSubstr("ZIGGURAT_MAX_RUNING "),
                                HasSubstr("the nearest that does is ZIGGURAT_MAX_RUNNING"))));
  EXPECT_EQ(example.running, 7);
}

TEST(SettingsTest, WhatIsPrintedConfiguresTheSame) {
  Example example;
  const auto settings = example.Read({"--dtype", "# no: comment"}, {"ZIGGURAT_CHECK_INTEGRITY=1"},
                                     "groups: ['a=x, y', b]\nmax-running: 9\n");
  ASSERT_TRUE(settings.ok()) << settings.status();
  const std::string yaml = settings->ToYaml();
  EXPECT_THAT(yaml, HasSubstr("# command line\n"));
  EXPECT_THAT(yaml, HasSubstr("# ZIGGURAT_CHECK_INTEGRITY\n"));
  EXPECT_THAT(yaml, HasSubstr(example.path + ":2\n"));
  EXPECT_THAT(yaml, HasSubstr("# allow-compression: "));
  Example again("again.yaml");
  const auto read = again.Read({}, {}, yaml);
  ASSERT_TRUE(read.ok()) << read.status() << "\n" << yaml;
  EXPECT_EQ(again.dtype, "# no: comment");
  EXPECT_EQ(again.groups, example.groups);
  EXPECT_EQ(again.running, 9);
  EXPECT_TRUE(again.check);
  EXPECT_EQ(again.memory, "512MiB");
}

}  // namespace
}  // namespace ziggurat
