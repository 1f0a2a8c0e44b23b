#!/usr/bin/env bash
# Builds and tests everything: the release build with all tests, the unit tests of all but the server
# under AddressSanitizer and UndefinedBehaviorSanitizer, and the threads of scheduler, block manager
# and server, and of GPU kernels in the emulator, under ThreadSanitizer.
#
#   ./test.sh               all of that
#   ./test.sh --quick       the release build only
#   ./test.sh --soak        the long soaks and quality runs too, and a daemon under AddressSanitizer
#                           asked for much and for nonsense (an hour and more)
#   ./test.sh --gpu [...]   on a machine with a GPU: what only that can say, instead (docs/gpu.md);
#                           scripts/test-gpu.sh --help says what may follow
#   ./test.sh --minutes N   without a sanitizer, and without some tests in the emulator, that could not
#                           be done within N minutes, as the time of a release build from nothing lets
#                           expect; it says which (what the gate runs)
#
# Golden vectors are read from $ZIGGURAT_GOLDENS (default ../shared/goldens); where they are absent
# their tests say that they skip.
set -euo pipefail
cd "$(dirname "$0")"

mode=all
minutes=
allowed=1
case "${1:-}" in
  "") ;;
  --quick) mode=quick ;;
  --soak) export ZIGGURAT_SOAK=1 ;;
  --gpu) exec scripts/test-gpu.sh "${@:2}" ;;
  --minutes)
    minutes=${2:-}
    allowed=2
    [[ "$minutes" =~ ^[1-9][0-9]{0,3}$ ]] || {
      echo "test.sh: --minutes takes a whole number from 1 on, not '$minutes'" >&2
      exit 2
    }
    ;;
  -h | --help) sed -n '2,17p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
  *) echo "test.sh: unknown option '$1' (allowed: --quick, --soak, --gpu, --minutes N)" >&2; exit 2 ;;
esac
[ $# -le "$allowed" ] || {
  echo "test.sh: '${*:allowed+1}' may not follow $1" >&2
  exit 2
}

say() { printf '\n== %s\n' "$*"; }
# Tests in the emulator that take minutes under a sanitizer; others run the same kernels.
slow_kernels='^emulated/(.*/)?(CudaDecoder\.IsAsNear|CudaSampling\.Draws(What|TheSameOfALarge)|DistantDecodeTwins|SlotMassTwins|ScoreTwins'
slow_kernels+='|SelectWindows\.IsTheSame|WindowScores\.AgreeOnWide|CosineSum\.AgreesWith|PrefillTwins\.AgreeOnPacked.*/bf16_(64|80|96|128|256))'
export CTEST_PARALLEL_LEVEL=2
run_tests() { ctest --test-dir "$1" --output-on-failure --no-tests=error "${@:2}"; }

say "Dependencies"
scripts/install-dependencies.sh

say "Release build"
build_start=$SECONDS
scripts/build.sh release
build_seconds=$((SECONDS - build_start))

# Of the release build's time, what its tests take.
test_tenths=7
# has_time NAME TENTHS: whether a part that takes TENTHS tenths of the release build can be done, and
# the release build's tests after it.
has_time() {
  local needed=$((SECONDS + build_seconds * ($2 + test_tenths) / 10))
  [ -z "$minutes" ] || [ "$needed" -le $((minutes * 60)) ] || {
    say "$1: LEFT OUT, it would be done after $((needed / 60)) minutes of $minutes"
    return 1
  }
}

if [ "$mode" = all ] && has_time ThreadSanitizer 9; then
  say "ThreadSanitizer build: block manager, scheduler, server on a stub model, GPU kernels in the emulator"
  scripts/build.sh tsan
  say "ThreadSanitizer: tests"
  export TSAN_OPTIONS="suppressions='$PWD/tests/support/tsan.supp' halt_on_error=1"
  run_tests build-tsan -LE long
  # Of kernels one in twelve, and all of sampling, which has the most barriers.
  run_tests build-tsan -L long -E "$slow_kernels|CudaSampling" -I ,,12
  run_tests build-tsan -R CudaSampling -E "$slow_kernels"
  unset TSAN_OPTIONS
fi

if [ "$mode" = all ] && has_time AddressSanitizer 15; then
  say "AddressSanitizer and UndefinedBehaviorSanitizer build"
  scripts/build.sh asan
  export ASAN_OPTIONS="detect_odr_violation=0"  # leaks are looked for, too
  say "AddressSanitizer: unit tests"
  run_tests build-asan -LE 'figures|long' -E '^emulated/'
  # The twins and the stores: every fifth, and of what the emulator runs one in twelve, since the
  # sanitizers make it slow.
  run_tests build-asan -L long -E '^emulated/' -I ,,5
  run_tests build-asan -R '^emulated/' -E "$slow_kernels" -I ,,12
  if [ -n "${ZIGGURAT_SOAK:-}" ]; then
    say "AddressSanitizer: the daemon under a mixed load, and given wrong input"
    scripts/build.sh asan ziggurat_cli
    CTEST_PARALLEL_LEVEL=1 ZIGGURAT_BINARY="$PWD/build-asan/ziggurat" run_tests build -R '^(Soak|WrongInput)'
  fi
  unset ASAN_OPTIONS
fi

# some_emulated K: what ctest's -I takes for all tests, but of those in an emulator, of a GPU or of tile
# registers, one in K alone: others every day.
day=$((10#${ZIGGURAT_TEST_DAY:-$(date +%j)}))
some_emulated() {
  ctest --test-dir build -N | awk -v k="$1" -v emulated="$day" '
    BEGIN { printf "0,0,0" }
    /^ *Test *#/ && !(/: emulated/ && ++emulated % k) { sub(/^ *Test *#/, ""); printf ",%d", $0 }'
}

# The emulators take a third of the time of the release build's tests.
chosen=()
if [ -n "$minutes" ]; then
  left=$((minutes * 60 - SECONDS)) all=$((build_seconds * test_tenths / 10))
  for of_emulated in 2 4; do
    [ "$all" -gt "$left" ] || break
    chosen=(-I "$(some_emulated "$of_emulated")")
    [ $((all * (67 + 33 / of_emulated) / 100)) -gt "$left" ] || break
  done
fi
if [ ${#chosen[@]} -eq 0 ]; then
  say "Release: all tests"
else
  say "Release: all tests, but of those in the emulator one in $of_emulated (those of ZIGGURAT_TEST_DAY=$day): the others are LEFT OUT, $minutes minutes are too few"
fi
run_tests build "${chosen[@]}"
