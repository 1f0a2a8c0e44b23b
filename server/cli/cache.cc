// `ziggurat cache`: the KV cache of a daemon, drawn in the terminal.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "nlohmann/json.hpp"
#include "server/cli/cache_picture.h"
#include "server/cli/client.h"
#include "server/cli/command.h"
#include "server/cli/layer_json.h"

namespace ziggurat {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kExamples[] = R"(Examples:
  ziggurat cache
  ziggurat cache --watch
  ziggurat cache --json | jq '.layers[].used_blocks')";

constexpr char kClearScreen[] = "\033[H\033[2J";

struct CacheFlags {
  std::string server = kDefaultServer;
  bool watch = false;
  bool json = false;
  double interval_seconds = 1;
};

int TerminalColumns() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const int wanted = columns != nullptr ? std::atoi(columns) : 0;
  return wanted > 0 ? std::min(wanted, 1000) : 80;
}

int Fail(const std::string& what) {
  std::fprintf(stderr, "ziggurat cache: %s\n", what.c_str());
  return kExitFailure;
}

Json ToJson(const v1::LayerOccupancy& layer) {
  Json formats = Json::object();
  for (const v1::FormatOccupancy& format : layer.formats()) {
    formats[format.format()] = format.blocks();
  }
  return {{"layer", layer.layer()},
          {"used_blocks", layer.used_blocks()},
          {"reserved_blocks", layer.reserved_blocks()},
          {"live_bytes", layer.live_bytes()},
          {"tail_waste_bytes", layer.tail_waste_bytes()},
          {"blocks_by_format", std::move(formats)}};
}

Json ToJson(const v1::RequestOccupancy& request) {
  Json layer_blocks = Json::array();
  for (const uint32_t blocks : request.layer_blocks()) layer_blocks.push_back(blocks);
  Json layers = Json::array();
  for (const v1::LayerCacheReport& layer : request.layers()) layers.push_back(LayerJson(layer));
  return {{"request_id", request.request_id()},
          {"compression", request.compression()},
          {"state", request.state()},
          {"prompt_tokens", request.prompt_tokens()},
          {"generated_tokens", request.generated_tokens()},
          {"blocks", request.blocks()},
          {"reserved_blocks", request.reserved_blocks()},
          {"layer_blocks", std::move(layer_blocks)},
          {"layers", std::move(layers)}};
}

// Protobuf's own JSON would write 64-bit numbers as strings.
std::string ToJsonText(const v1::GetCacheResponse& cache) {
  Json layers = Json::array();
  for (const v1::LayerOccupancy& layer : cache.layers()) layers.push_back(ToJson(layer));
  Json requests = Json::array();
  for (const v1::RequestOccupancy& request : cache.requests()) requests.push_back(ToJson(request));
  const Json object = {{"block_bytes", cache.block_bytes()},
                       {"total_blocks", cache.total_blocks()},
                       {"used_blocks", cache.used_blocks()},
                       {"reserved_blocks", cache.reserved_blocks()},
                       {"free_blocks", cache.free_blocks()},
                       {"high_water_blocks", cache.high_water_blocks()},
                       {"workspace_capacity_bytes", cache.workspace_capacity_bytes()},
                       {"workspace_high_water_bytes", cache.workspace_high_water_bytes()},
                       {"running", cache.running()},
                       {"waiting", cache.waiting()},
                       {"layers", std::move(layers)},
                       {"requests", std::move(requests)}};
  return object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

int Cache(const CacheFlags& flags) {
  const std::unique_ptr<v1::Ziggurat::Stub> stub = Connect(flags.server);
  do {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    v1::GetCacheResponse cache;
    const grpc::Status status = stub->GetCache(&context, {}, &cache);
    if (!status.ok()) return Fail(DescribeError(status, flags.server));
    const std::string picture =
        flags.json ? ToJsonText(cache) : DrawCache(cache, TerminalColumns());
    if (flags.watch && !flags.json) std::fputs(kClearScreen, stdout);
    std::fwrite(picture.data(), 1, picture.size(), stdout);
    if (std::fflush(stdout) != 0) return Fail("cannot write to stdout");
    if (flags.watch) {
      std::this_thread::sleep_for(std::chrono::duration<double>(flags.interval_seconds));
    }
  } while (flags.watch);
  return kExitOk;
}

}  // namespace

Command AddCache(CLI::App& app) {
  CLI::App* cache = app.add_subcommand("cache", "Draw the KV cache of a daemon, layer by layer");
  auto flags = std::make_shared<CacheFlags>();
  cache->add_option("--server", flags->server, "The daemon")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  cache->add_flag("--watch", flags->watch, "Draw again and again, until Ctrl-C");
  cache->add_option("--interval", flags->interval_seconds, "With --watch: seconds in between")
      ->check(CLI::Range(0.05, 3600.0))
      ->capture_default_str();
  cache->add_flag("--json", flags->json, "Print the message as JSON");
  cache->footer(kExamples);
  return {cache, [flags] { return Cache(*flags); }};
}

}  // namespace ziggurat
