// What the bundled model retrieves through the daemon with the policy `full` is what its README
// says.
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/e2e/testing.h"

namespace ziggurat::e2e {
namespace {

using nlohmann::json;

/// A cell of the table in models/needle-llama/README.md: exact match, greedy, full cache.
struct Cell {
  const char* task;
  int length;
  double accuracy;
};
constexpr Cell kCells[] = {
    {"single", 512, 1.00},      {"single", 2048, 1.00},      {"single", 4096, 1.00},
    {"multikey", 512, 1.00},    {"multikey", 2048, 1.00},    {"multikey", 4096, 1.00},
    {"multiquery", 512, .98},   {"multiquery", 2048, 1.00},  {"line", 512, 1.00},
    {"line", 2048, 1.00},       {"cls", 512, 1.00},          {"cls", 2048, 1.00},
    {"agg", 512, 1.00},         {"agg", 2048, 1.00},         {"single3", 512, 1.00},
    {"single3", 2048, 1.00},    {"multikey3", 512, 1.00},    {"multikey3", 2048, 1.00},
    {"multiquery3", 512, 1.00}, {"multiquery3", 2048, 1.00},
};
constexpr double kOnePoint = 0.01;
constexpr int kClients = 8;

/// As the README judges: up to ".", or as many tokens as the answer may have.
int MaxTokens(const std::string& task) {
  if (task == "single" || task == "multikey" || task == "line") return 5;
  if (task == "single3" || task == "multikey3") return 3;
  return 23;
}

std::vector<json> ReadPrompts(const Cell& cell, int count) {
  const auto path = SharedFolder() / "data" / "needle" /
                    (std::string(cell.task) + "_" + std::to_string(cell.length) + ".jsonl");
  std::istringstream lines(ReadFile(path));
  std::vector<json> prompts;
  std::string line;
  while (std::getline(lines, line)) prompts.push_back(json::parse(line));
  // Evenly over the file, whose prompts go through all depths in turn.
  std::vector<json> chosen;
  const size_t wanted = std::min(prompts.size(), static_cast<size_t>(count));
  for (size_t i = 0; i < wanted; ++i) chosen.push_back(prompts[i * prompts.size() / wanted]);
  return chosen;
}

bool IsAnswered(Daemon& daemon, const json& prompt) {
  v1::GenerateRequest request =
      TextRequest(prompt["prompt"].get<std::string>(), MaxTokens(prompt["task"].get<std::string>()),
                  AtEos::kGoOn);
  request.add_stop(".");
  request.set_compression("full");
  const Generation generation = Generate(daemon, request);
  EXPECT_TRUE(generation.ok()) << generation.Describe();
  return generation.text == prompt["answer"].get<std::string>();
}

/// Number of prompts answered exactly.
int CountAnswered(Daemon& daemon, const std::vector<json>& prompts) {
  std::atomic<size_t> next = 0;
  std::atomic<int> answered = 0;
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&] {
      for (size_t i = next++; i < prompts.size(); i = next++) {
        answered += IsAnswered(daemon, prompts[i]) ? 1 : 0;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  return answered;
}

/// Prompts of a cell: all of them in a soak, else enough that the sum over cells means something.
int PromptsOf(const Cell& cell) {
  if (IsSoak()) return 1 << 20;
  return cell.length <= 512 ? 22 : cell.length <= 2048 ? 8 : 3;
}

void ExpectAccuracyOfReadme(const std::string& dtype) {
  if (!std::filesystem::exists(SharedFolder() / "data" / "needle")) {
    GTEST_SKIP() << SharedFolder() / "data" / "needle"
                 << " is absent";
  }
  START_DAEMON(daemon, {.dtype = dtype, .kv_cache_memory = "256MiB"});
  std::printf("dtype %s\n%-12s %6s %8s %8s %8s\n", daemon.GetModel().dtype().c_str(), "task",
              "length", "prompts", "exact", "README");
  double expected = 0;
  int answered = 0;
  int asked = 0;
  for (const Cell& cell : kCells) {
    const std::vector<json> prompts = ReadPrompts(cell, PromptsOf(cell));
    ASSERT_FALSE(prompts.empty());
    const int right = CountAnswered(daemon, prompts);
    const double accuracy = right / static_cast<double>(prompts.size());
    std::printf("%-12s %6d %8zu %8.3f %8.2f\n", cell.task, cell.length, prompts.size(), accuracy,
                cell.accuracy);
    // The README rounds to two digits, so a cell may be off by half a point more.
    if (IsSoak()) {
      EXPECT_NEAR(accuracy, cell.accuracy, kOnePoint + 0.005)
          << cell.task << " at " << cell.length << " tokens";
    }
    answered += right;
    asked += static_cast<int>(prompts.size());
    expected += cell.accuracy * static_cast<double>(prompts.size());
  }
  std::printf("%-12s %6s %8d %8.3f %8.3f\n", "all", "", asked,
              answered / static_cast<double>(asked), expected / asked);
  EXPECT_NEAR(answered / static_cast<double>(asked), expected / asked, kOnePoint);
  EXPECT_EMPTY_CACHE(daemon);
}

TEST(Retrieval, AccuracyIsWithinOnePointOfTheReadme) {
  if (!IsSoak()) return ExpectAccuracyOfReadme("");  // the daemon's choice
  for (const char* dtype : {"bf16", "f32"}) ExpectAccuracyOfReadme(dtype);
}

}  // namespace
}  // namespace ziggurat::e2e
