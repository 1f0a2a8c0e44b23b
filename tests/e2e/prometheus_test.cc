// A real Prometheus server scrapes the daemon, and what it answers is what the cache holds.
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "httplib.h"
#include "tests/e2e/cache_arithmetic.h"
#include "tests/e2e/secure_client.h"
#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

using nlohmann::json;

constexpr const char* kPrometheus = "/usr/bin/prometheus";
constexpr int kLayers = 8;

/// A Prometheus server on a free port, with a folder of its own.
class Prometheus {
 public:
  static std::unique_ptr<Prometheus> Start(const std::string& target) {
    auto server = std::make_unique<Prometheus>();
    WriteFile(server->folder_ / "prometheus.yml",
              absl::StrCat("global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n"
                           "scrape_configs:\n"
                           "  - job_name: ziggurat\n"
                           "    static_configs: [{targets: ['",
                           target, "']}]\n"));
    auto process = ChildProcess::Start(
        {kPrometheus, absl::StrCat("--config.file=", (server->folder_ / "prometheus.yml").string()),
         absl::StrCat("--storage.tsdb.path=", (server->folder_ / "data").string()),
         "--web.listen-address=127.0.0.1:0", "--log.level=info"});
    if (!process.ok()) return nullptr;
    server->process_ = *std::move(process);
    if (!PollUntil(absl::Seconds(30), [&] { return server->FindPort() && server->IsReady(); })) {
      std::fprintf(stderr, "%s\n", server->process_->stderr_text().c_str());
      return nullptr;
    }
    return server;
  }

  /// The result of an instant query: labels -> value.
  std::vector<std::pair<json, double>> Query(const std::string& expression) const {
    httplib::Client client("127.0.0.1", port_);
    const httplib::Params parameters = {{"query", expression}};
    const httplib::Result result = client.Post("/api/v1/query", parameters);
    std::vector<std::pair<json, double>> samples;
    if (!result) return samples;
    const json answer = json::parse(result->body, nullptr, false);
    if (answer.is_discarded() || answer.value("status", "") != "success") {
      ADD_FAILURE() << expression << ": " << result->body;
      return samples;
    }
    for (const json& sample : answer["data"]["result"]) {
      samples.emplace_back(sample["metric"], std::stod(sample["value"][1].get<std::string>()));
    }
    return samples;
  }
  /// Of a query with one result; NaN where there is none.
  double QueryOne(const std::string& expression) const {
    const auto samples = Query(expression);
    return samples.size() == 1 ? samples.front().second : std::nan("");
  }
  /// [layers]: of a query whose results are told apart by the label `layer`.
  std::vector<double> QueryLayers(const std::string& expression) const {
    std::vector<double> layers(kLayers, std::nan(""));
    for (const auto& [labels, value] : Query(expression)) {
      layers.at(std::stoul(labels.value("layer", "99"))) = value;
    }
    return layers;
  }

 private:
  /// Its log says which port it got.
  bool FindPort() {
    static const std::regex kListens(R"(msg="Listening on".*?\baddress=127\.0\.0\.1:(\d+))");
    const std::string log = process_->stderr_text();
    std::smatch found;
    if (!std::regex_search(log, found, kListens)) return false;
    port_ = std::stoi(found[1]);
    return true;
  }
  bool IsReady() const {
    httplib::Client client("127.0.0.1", port_);
    const httplib::Result result = client.Get("/-/ready");
    return result && result->status == 200;
  }

  TemporaryFolder folder_;
  std::unique_ptr<ChildProcess> process_;
  int port_ = 0;
};

/// Requests that run until they are told to end.
class LongRequests {
 public:
  LongRequests(Daemon& daemon, const std::vector<v1::GenerateRequest>& requests) {
    for (const v1::GenerateRequest& request : requests) {
      threads_.emplace_back([this, &daemon, request] {
        Generate(daemon, request, {.on_message = [this](const Generation&) { return !is_over_; }});
      });
    }
  }
  ~LongRequests() { End(); }
  void End() {
    is_over_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::atomic<bool> is_over_ = false;
  std::vector<std::thread> threads_;
};

TEST(PrometheusServer, AnswersTheOccupancyOfEveryLayer) {
  if (!std::filesystem::exists(kPrometheus)) {
    GTEST_SKIP() << kPrometheus << " is absent (Debian's package prometheus)";
  }
  START_DAEMON(daemon, {.dtype = "bf16"});
  const auto prometheus = Prometheus::Start(daemon.http_address());
  ASSERT_NE(prometheus, nullptr);
  ASSERT_TRUE(PollUntil(absl::Seconds(30), [&] { return prometheus->QueryOne("up") == 1; }));

  // A few requests that end, for the counters and histograms.
  const PromptSource prompts(daemon);
  std::mt19937 random(2);
  constexpr int kShort = 3;
  for (int i = 0; i < kShort; ++i) {
    ASSERT_TRUE(Generate(daemon, IdRequest(prompts.Make(100, random), 10, AtEos::kGoOn)).ok());
  }

  // While these run: rings stand still, so every layer holds 7 blocks of each, a known number;
  // the pyramid's layers differ, by the blocks that GetCache shows.
  constexpr int kRings = 3;
  std::vector<v1::GenerateRequest> requests;
  for (int i = 0; i < kRings; ++i) {
    requests.push_back(IdRequest(prompts.Make(200, random), 3800, AtEos::kGoOn));
    requests.back().set_compression("streaming(sinks=4,recent=108)");
  }
  {
    LongRequests rings(daemon, requests);
    const std::vector<double> expected(kLayers, 7 * kRings);
    std::vector<double> seen;
    EXPECT_TRUE(PollUntil(absl::Seconds(20),
                          [&] {
                            seen = prometheus->QueryLayers("ziggurat_kv_blocks{state=\"used\"}");
                            return seen == expected;
                          }))
        << "blocks by layer: " << testing::PrintToString(seen);
    EXPECT_EQ(prometheus->QueryOne("sum(ziggurat_kv_blocks{state=\"used\"})"),
              7 * kRings * kLayers);
    EXPECT_EQ(prometheus->QueryOne("ziggurat_requests_running"), kRings);
    EXPECT_EQ(prometheus->QueryOne("ziggurat_pool_blocks_used"), 7 * kRings * kLayers);
    EXPECT_EQ(prometheus->QueryOne("ziggurat_pool_blocks_total"), daemon.GetCache().total_blocks());
  }
  ASSERT_EQ(WaitUntilEmpty(daemon).used_blocks(), 0u);

  // A pyramid: each layer between its budget and what it may grow to.
  constexpr int kNewTokens = 1500;
  const std::vector<int> budgets = PyramidBudgets(512, 32, 20, kLayers, 2000);
  requests = {IdRequest(prompts.Make(2000, random), kNewTokens, AtEos::kGoOn)};
  requests.back().set_compression("pyramidkv(budget=512,window=32)");
  {
    LongRequests pyramid(daemon, requests);
    std::vector<double> seen;
    const auto is_pyramid = [&] {
      seen = prometheus->QueryLayers("ziggurat_kv_blocks{state=\"used\"}");
      for (int l = 0; l < kLayers; ++l) {
        if (!(seen[l] >= CeilDiv(budgets[l], 16) &&
              seen[l] <= CeilDiv(budgets[l] + kNewTokens, 16)))
          return false;
      }
      return true;
    };
    EXPECT_TRUE(PollUntil(absl::Seconds(30), is_pyramid)) << testing::PrintToString(seen);
    std::printf("blocks by layer: %s\n", testing::PrintToString(seen).c_str());
    EXPECT_TRUE(std::is_sorted(seen.rbegin(), seen.rend())) << testing::PrintToString(seen);
    EXPECT_GT(seen.front() - seen.back(), 50);
  }

  // Afterwards: empty, and the counters say what happened.
  ASSERT_EQ(WaitUntilEmpty(daemon).used_blocks(), 0u);
  EXPECT_TRUE(PollUntil(absl::Seconds(20), [&] {
    return prometheus->QueryOne("sum(ziggurat_kv_blocks)") == 0 &&
           prometheus->QueryOne("ziggurat_requests_running") == 0;
  })) << prometheus->QueryOne("sum(ziggurat_kv_blocks)");
  EXPECT_EQ(prometheus->QueryLayers("ziggurat_kv_blocks{state=\"used\"}"),
            std::vector<double>(kLayers, 0));
  EXPECT_EQ(prometheus->QueryLayers("ziggurat_kv_blocks{state=\"reserved\"}"),
            std::vector<double>(kLayers, 0));
  EXPECT_EQ(prometheus->QueryOne("ziggurat_pool_blocks_high_water"),
            daemon.GetCache().high_water_blocks());
  EXPECT_EQ(prometheus->QueryOne("ziggurat_requests_finished_total{reason=\"length\"}"), kShort);
  EXPECT_EQ(prometheus->QueryOne("ziggurat_requests_finished_total{reason=\"cancelled\"}"),
            kRings + 1);
  EXPECT_EQ(prometheus->QueryOne("ziggurat_time_to_first_token_seconds_count"),
            kShort + kRings + 1);
  EXPECT_GT(prometheus->QueryOne("histogram_quantile(0.5, ziggurat_inter_token_seconds_bucket)"),
            0);
  EXPECT_EQ(prometheus->QueryOne("ziggurat_prompt_tokens_total"),
            kShort * 100 + kRings * 200 + 2000);
}

TEST(PrometheusServer, FindsEveryMetricThatTheDocumentationNames) {
  // With TLS, of which there is a metric too.
  const CertificateAuthority authority("authority");
  const SecretFolder secret(SecretFolder::Tls(authority.Issue("daemon"), authority));
  START_DAEMON(daemon, {.flags = secret.Flags()});
  const auto stub = v1::Ziggurat::NewStub(TlsChannel(daemon, authority));
  ASSERT_TRUE(Generate(*stub, TextRequest(" The old house", 3, AtEos::kGoOn)).ok());
  httplib::SSLClient client("127.0.0.1", daemon.http_port());
  client.set_ca_cert_path(secret.file("ca.crt").c_str());
  const httplib::Result answer = client.Get("/metrics");
  ASSERT_TRUE(answer);
  const std::string& page = answer->body;
  const std::string docs = ReadFile(std::filesystem::path(ZIGGURAT_SOURCE_DIR) / "docs/metrics.md");
  // Table rows begin with "| `ziggurat_...` |".
  int documented = 0;
  for (size_t at = docs.find("| `ziggurat_"); at != std::string::npos;
       at = docs.find("| `ziggurat_", at + 1)) {
    const size_t start = at + 3;
    const std::string name = docs.substr(start, docs.find('`', start) - start);
    EXPECT_TRUE(absl::StrContains(page, absl::StrCat("# TYPE ", name, " "))) << name;
    ++documented;
  }
  EXPECT_GE(documented, 20);
  // And the other way round.
  for (size_t at = page.find("# TYPE "); at != std::string::npos;
       at = page.find("# TYPE ", at + 1)) {
    const size_t start = at + 7;
    const std::string name = page.substr(start, page.find(' ', start) - start);
    EXPECT_TRUE(absl::StrContains(docs, absl::StrCat("`", name, "`"))) << name;
  }
}

}  // namespace
}  // namespace ziggurat::e2e
