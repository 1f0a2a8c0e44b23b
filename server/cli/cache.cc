// `ziggurat cache`: the KV cache of a daemon, drawn in the terminal.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "server/cli/cache_picture.h"
#include "server/cli/call_status.h"
#include "server/cli/client.h"
#include "server/cli/command.h"
#include "server/cli/failure.h"
#include "server/cli/terminal.h"
#include "server/cli/validators.h"
#include "server/json_text.h"
#include "server/message_json.h"

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
  absl::StatusOr<ServerAccess> access = ReadServerAccess(flags.server);
  if (!access.ok()) return Fail(access.status());
  std::unique_ptr<v1::Ziggurat::Stub> stub = Connect(flags.server, *access);
  const bool redraws = flags.watch && !flags.json && isatty(STDOUT_FILENO) == 1;
  const auto pause = std::chrono::duration<double>(flags.interval_seconds);
  bool has_answered = false;
  bool is_missing = false;
  while (true) {
    grpc::ClientContext context;
    SetDeadline(context, absl::Seconds(10));
    v1::GetCacheResponse cache;
    const grpc::Status status = stub->GetCache(&context, {}, &cache);
    // One that is watched may be restarted, or stand still for a while, and comes back then.
    const bool may_come_back = IsDaemonGone(status.error_code(), /*we_cancelled=*/false) ||
                               status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    if (has_answered && flags.watch && may_come_back) {
      if (!is_missing) Fail(DescribeError(status, flags.server));
      is_missing = true;
      std::this_thread::sleep_for(pause);
      // The same connection would be tried again less and less often.
      stub.reset();
      access = ReadServerAccess(flags.server);
      if (!access.ok()) return Fail(access.status());
      stub = Connect(flags.server, *access);
      continue;
    }
    if (!status.ok()) return Fail(DescribeError(status, flags.server));
    has_answered = true;
    is_missing = false;
    const std::string picture = flags.json ? JsonText(CacheJson(cache), 2) + "\n"
                                           : DrawCache(cache, TerminalColumns(STDOUT_FILENO));
    if (redraws) std::fputs(kClearScreen, stdout);
    std::fwrite(picture.data(), 1, picture.size(), stdout);
    if (std::fflush(stdout) != 0) return Fail("cannot write to stdout");
    if (!flags.watch) return kExitOk;
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

Command AddCache(CLI::App& app) {
  CLI::App* cache = app.add_subcommand("cache", "Draw the KV cache of a daemon, layer by layer");
  auto flags = std::make_shared<CacheFlags>();
  AddServerFlags(*cache, flags->server);
  cache->add_flag("--watch", flags->watch,
                  "Draw again and again, until Ctrl-C, whether or not the daemon is restarted");
  cache->add_option("--interval", flags->interval_seconds, "With --watch: seconds in between")
      ->check(NumberBetween(0.05, 3600))
      ->capture_default_str();
  cache->add_flag("--json", flags->json, "Print the message as JSON");
  cache->footer(kExamples);
  return {cache, [flags] { return Cache(*flags); }};
}

}  // namespace ziggurat
