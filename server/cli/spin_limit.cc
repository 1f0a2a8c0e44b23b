#include "server/cli/spin_limit.h"

#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace ziggurat {
namespace {

/// Longer than most of what one thread does alone between two products, far shorter than a turn of
/// the scheduler (docs/performance/xeon_amx.md has what other values give).
constexpr std::chrono::duration<double, std::micro> kSpinTime{50};

/// Of one turn of libgomp's waiting, 10 to 60 ns: the pause of an x86 CPU takes 40 cycles or 140.
std::chrono::duration<double, std::micro> TimeOfATurn() {
  using Clock = std::chrono::steady_clock;
  constexpr int kTurns = 1000;
  Clock::duration best = Clock::duration::max();
  for (int run = 0; run < 5; ++run) {
    const Clock::time_point start = Clock::now();
    for (int turn = 0; turn < kTurns; ++turn) __builtin_ia32_pause();
    best = std::min(best, Clock::now() - start);
  }
  return std::chrono::duration<double, std::micro>(best) / kTurns;
}

}  // namespace

void LimitSpinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  // This thread is bound to one place by now, and with it would be all of the program's next start.
  if (omp_get_num_places() > 0) return;
  const double turns = kSpinTime / TimeOfATurn();
  const std::string count = std::to_string(std::clamp(static_cast<int>(turns), 100, 300'000));
  if (setenv("GOMP_SPINCOUNT", count.c_str(), 0) != 0) return;
  // By its path, so that the process bears the program's name, by which users look for it; by the
  // link where another file lies there by now.
  constexpr char kSelf[] = "/proc/self/exe";
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink(kSelf, error);
  if (!error && std::filesystem::equivalent(path, kSelf, error)) execv(path.c_str(), argv);
  execv(kSelf, argv);
}

}  // namespace ziggurat
