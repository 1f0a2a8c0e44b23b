// `ziggurat cache`: the KV cache of a daemon, drawn in the terminal.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "server/cache_json.h"
#include "server/cli/cache_picture.h"
#include "server/cli/client.h"
#include "server/cli/command.h"
#include "server/cli/failure.h"
#include "server/cli/terminal.h"
#include "server/cli/validators.h"

namespace ziggurat {
namespace {

constexpr char kExamples[] = R"(Examples:
  ziggurat cache
  ziggurat cache --watch
  ziggurat cache --json | jq '.layers[].used_blocks')";

constexpr char kClearScreen[] = "\033[H\033[2J";

struct CacheFlags {
  ServerFlags server;
  bool watch = false;
  bool json = false;
  double interval_seconds = 1;
};

int Fail(const auto& what) { return SayFailure("cache", what); }

int Cache(const CacheFlags& flags) {
  const absl::StatusOr<std::unique_ptr<v1::Ziggurat::Stub>> connected = Connect(flags.server);
  if (!connected.ok()) return Fail(connected.status());
  v1::Ziggurat::Stub& stub = **connected;
  do {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    v1::GetCacheResponse cache;
    const grpc::Status status = stub.GetCache(&context, {}, &cache);
    if (!status.ok()) return Fail(DescribeError(status, flags.server));
    const std::string picture = flags.json ? JsonText(CacheJson(cache), 2) + "\n"
                                           : DrawCache(cache, TerminalColumns(STDOUT_FILENO));
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
  AddServerFlags(*cache, flags->server);
  cache->add_flag("--watch", flags->watch, "Draw again and again, until Ctrl-C");
  cache->add_option("--interval", flags->interval_seconds, "With --watch: seconds in between")
      ->check(NumberBetween(0.05, 3600))
      ->capture_default_str();
  cache->add_flag("--json", flags->json, "Print the message as JSON");
  cache->footer(kExamples);
  return {cache, [flags] { return Cache(*flags); }};
}

}  // namespace ziggurat
