#!/usr/bin/env bash
# What a machine with a GPU can say of this tree: kernels and decoder against the CPU's, under
# compute-sanitizer too, the daemon end to end, and the benchmarks. Everything is tried; the results
# are collected in a file, to be pasted into a page such as docs/performance/h200.md.
#
#   scripts/test-gpu.sh [OPTION...] [STAGE...]      all stages, where none is named
#
#   kernels        every kernel against the reference
#   decoder        the decoder on the device against the CPU's
#   kernel-bench   decode attention, products with weights and drawing tokens, beside a copy
#   daemon         the daemon, end to end
#   model-bench    decoding and prompts of a model of LLaMA-3-8B's shape (16 GB of disk)
#   pool-bench     requests in one pool and tokens per second under three policies, the same model
#   sanitizer      some of the first two under compute-sanitizer
#   torch-bench    prompts by libtorch's flash attention: another build
#
#   --device cuda:N   the card that nvidia-smi gives the number N; else the first that
#                     CUDA_VISIBLE_DEVICES names, or card 0
#   --build-dir DIR   test what was built there; nothing is installed or built
#   --results FILE    build-cuda/gpu-results.md where nothing else is said; what is there is kept.
#                     Both are meant from the repository's root
#   --limit SECONDS   the most that a command may take: 3600
#
# Packages are installed with apt-get where some are missing; where that is impossible, bring them in
# a prefix and name it in CMAKE_PREFIX_PATH and PKG_CONFIG_PATH. The stage torch-bench takes PyTorch's
# libtorch, where python3 has one.
set -euo pipefail
cd "$(dirname "$0")/.."

all_stages=(kernels decoder kernel-bench daemon model-bench pool-bench sanitizer torch-bench)
device='' build='' results=build-cuda/gpu-results.md limit=3600 stages=()

fail() {
  echo "test-gpu: $*" >&2
  exit 1
}
wrong() {
  echo "test-gpu: $*" >&2
  exit 2
}
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '2,/^set /p' scripts/test-gpu.sh | sed -n 's/^# \{0,1\}//p'; exit 0 ;;
    --device | --build-dir | --results | --limit)
      [ $# -ge 2 ] || wrong "$1 takes a value"
      case "$1" in
        --device) device=$2 ;;
        --build-dir) build=$2 ;;
        --results) results=$2 ;;
        --limit) limit=$2 ;;
      esac
      shift
      ;;
    *)
      [[ " ${all_stages[*]} " == *" $1 "* ]] ||
        wrong "unknown stage or option '$1' (stages: ${all_stages[*]}; options: --device, --build-dir, --results, --limit)"
      stages+=("$1")
      ;;
  esac
  shift
done
[[ "$limit" =~ ^[1-9][0-9]*$ ]] || wrong "--limit takes a number of seconds, not '$limit'"
[ ${#stages[@]} -gt 0 ] || stages=("${all_stages[@]}")
has() { [[ " ${stages[*]} " == *" $1 "* ]]; }

[[ -z "$device" || "$device" =~ ^cuda:[0-9]+$ ]] || wrong "--device takes cuda:0 and the like, not '$device'"
number=${CUDA_VISIBLE_DEVICES:-0}
[ -z "$device" ] || number=${device#cuda:}
number=${number%%,*}
facts=$(nvidia-smi --id="$number" --query-gpu=compute_cap,memory.total,driver_version,name \
  --format=csv,noheader,nounits 2>/dev/null) ||
  fail "there is no GPU $number here: nvidia-smi names none. ./test.sh runs the kernels in the emulator."
IFS=, read -r architecture memory driver card <<<"${facts//, /,}"
[[ "$architecture" =~ ^[0-9]+\.[0-9]$ && "$memory" =~ ^[0-9]+$ ]] ||
  fail "nvidia-smi does not say what GPU $number is: '$facts'"
# Tests and benchmarks of kernels take the first card there is, and CUDA counts in another order than
# nvidia-smi unless it is told: from here on there is one card, cuda:0.
export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES="$number"
device=cuda:0
architecture=${architecture/./}
# What weights and workspace leave of the card, in whole GiB.
pool_gib=$((memory / 1024 - 24))

torch=
if has torch-bench; then
  torch=$(python3 -c 'import torch; assert torch.version.cuda; print(torch.utils.cmake_prefix_path)' 2>/dev/null) || torch=
fi

# build_in FOLDER TARGETS FLAG...: for this card alone.
build_in() {
  local folder=$1 targets
  read -ra targets <<<"$2"
  shift 2
  cmake --preset cuda -B "$folder" -DZIGGURAT_CUDA_ARCHITECTURES="$architecture" "$@" &&
    cmake --build "$folder" --parallel --target "${targets[@]}"
}
builds=
if [ -z "$build" ]; then
  builds=yes build=build-cuda
  scripts/install-dependencies.sh --build ||
    echo "test-gpu: packages are missing and cannot be installed: they must be in CMAKE_PREFIX_PATH" >&2
  targets=()
  if has kernels || has sanitizer; then targets+=(cuda_twin_test); fi
  if has decoder || has sanitizer; then targets+=(cuda_decoder_test); fi
  if has kernel-bench; then targets+=(cuda_decode_bench cuda_product_bench cuda_sampling_bench); fi
  if has model-bench || has pool-bench || has torch-bench; then targets+=(ziggurat_cli); fi
  if has daemon; then targets=(all); fi
  build_in "$build" "${targets[*]}"
fi
bin=$build/bin
ziggurat=$build/ziggurat
[ ! -x "$bin/ziggurat-cuda" ] || ziggurat=$bin/ziggurat-cuda  # where the other has no CUDA
mkdir -p "$(dirname "$results")"

failed=()
{
  echo "# $(date -u +%Y-%m-%d), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  echo
  echo "- card, driver, memory: $card, $driver, $memory MiB"
  echo "- nvcc: $(sed -n 's/.*CMAKE_CUDA_COMPILER_VERSION "\(.*\)".*/\1/p' "$build"/CMakeFiles/*/CMakeCUDACompiler.cmake 2>/dev/null)"
} >>"$results"

# run NAME COMMAND...: keeps the end of what it says.
run() {
  local name=$1 log status=0
  shift
  log=$(mktemp)
  printf '\n== %s\n' "$name"
  timeout -k 30 "$limit" "$@" 2>&1 | tee "$log" || status=$?
  # 77: a test that found no GPU, which here is a failure as well. 124: it took too long.
  [ "$status" -eq 0 ] || failed+=("$name")
  {
    # shellcheck disable=SC2016 # Markdown's, not the shell's
    printf '\n## %s: %s\n\n`%s`\n\n```\n' "$name" "$([ "$status" -eq 0 ] && echo passed || echo "FAILED ($status)")" "$*"
    tail -n 40 "$log"
    printf '```\n'
  } >>"$results"
  rm -f "$log"
}
# not_run NAME WHY
not_run() {
  printf '\n== %s: not run, %s\n' "$1" "$2"
  printf '\n## %s: not run, %s\n' "$1" "$2" >>"$results"
}

if has kernels; then run "kernels against the reference" "$bin/cuda_twin_test" --gtest_brief=1; fi
if has decoder; then run "the decoder against the CPU's" "$bin/cuda_decoder_test" --gtest_brief=1; fi

if has kernel-bench; then
  run "decode attention beside a copy" "$bin/cuda_decode_bench"
  run "products with weights beside a copy" "$bin/cuda_product_bench"
  run "drawing tokens" "$bin/cuda_sampling_bench"
fi

# Those that ask a daemon for tokens. What measures the host's memory is about the CPU.
if has daemon; then
  run "the daemon, end to end" env ZIGGURAT_DEVICE="$device" ZIGGURAT_BINARY="$(realpath "$ziggurat")" ctest --test-dir "$build" \
    --output-on-failure --no-tests=error \
    -R '^(golden/|Dtypes/|Parameters/)?(GoldenText|CacheBlocks|Concurrency|Crowd|LazyConcurrency|Lifecycle|Methods|MethodReports|MixedLoad|Retrieval|WrongInput)'
fi

# The shape of LLaMA-3-8B with random weights.
model=$build/llama-3-8b
if [ "$pool_gib" -lt 1 ]; then
  for stage in model-bench pool-bench torch-bench; do
    if has "$stage"; then
      not_run "$stage" "$memory MiB are too few for that model"
      stages=("${stages[@]/#$stage/}")
    fi
  done
fi
if has model-bench || has pool-bench || [ -n "$torch" ]; then
  [ -f "$model/config.json" ] ||
    run "a model of that shape" "$ziggurat" make-model --shape llama-3-8b --context 33000 --force --out "$model"
fi
# bench WHAT BINARY COMMAND...
bench() {
  local what=$1 binary=$2
  shift 2
  run "$what" "$binary" bench "$@" --model "$model" --device "$device" --kv-cache-memory "${pool_gib}GiB"
}
if has model-bench; then
  bench "decode, one request" "$ziggurat" decode --batch 1 --context 1024 --tokens 256
  bench "decode, many requests" "$ziggurat" decode --batch 16,64 --context 2048 --tokens 128
  bench "decode, very many requests" "$ziggurat" decode --batch 256 --context 128 --tokens 128
  bench "prompts, and what policies add to them" "$ziggurat" prefill --batch 1,4 --context 8192 \
    --compression full --compression 'snapkv(budget=1024)' --compression 'pyramidkv(budget=1024)' \
    --compression simlayerkv --compression 'h2o(heavy=512,recent=512)' --compression kivi --compression minicache
  bench "long prompts" "$ziggurat" prefill --context 2048,32768
fi
if has pool-bench; then
  run "as many requests as a pool holds" "$ziggurat" bench decode --model "$model" --device "$device" --repeats 1 \
    --fill --batch 128 --context 8192 --kv-cache-memory "$((pool_gib < 17 ? pool_gib : 17))GiB" \
    --compression full --compression 'simlayerkv(threshold=0.1233)' --compression 'pyramidkv(budget=1024)'
  run "tokens per second from one pool" scripts/bench-daemon.sh "$ziggurat" "$device" \
    "$model" "$((pool_gib < 40 ? pool_gib : 40))GiB" 128 8192 64 full simlayerkv 'pyramidkv(budget=1024)'
fi

# Kernels of every file in small sizes: under the sanitizer everything takes a hundred times as long. Heads of
# 64 and 128 are those whose codes come by way of shared memory (decode_staged.cu).
small_tests=(
  'CudaFused.*' 'StepTable.*' 'CudaNan.*' 'PromptLibrary.*' 'CudaSampling.GivesTheBestTwentyAndTheInfiniteOne'
  '*CudaDecode*/*_32_in_*' '*CudaDecode.AgreesOnUnequalLengthsForGroups/*_64_in_bf16'
  '*CudaDecode.AgreesOnUnequalLengthsForGroups/*_128_in_bf16' '*CudaDistantDecode*_in_bf16'
  'CudaDecodeWork.TakesScalesOfAnySize'
  'PrefillAttention.*' '*PrefillTwins.AgreeOnALongPrompt/bf16_*' '*DistantPrefillTwins*/bf16_32'
  '*DistantPrefillTwins*/bf16_256' '*ColumnSumTwins*/bf16_32' '*ColumnSumTwins*/bf16_256'
  'AccumulateScores.*' '*ScoreTwins*/8' 'SlotMass.*' '*SlotMassTwins*/16' 'SelectWindows.*' 'SelectBest.*'
  '*CacheWrites*' '*StepWrites*' '*CacheCopies*/32' 'CudaCopies.OfSegmentsOfAllKindsGoTogether'
  'CudaMerges.OfManyPairsAreThoseOfOneAfterTheOther')
small=$(IFS=:; echo "${small_tests[*]}")
if has sanitizer; then
  said=$(timeout -k 30 "$limit" compute-sanitizer "$bin/cuda_twin_test" --gtest_filter='CudaTwin.*' 2>&1) || true
  if ! command -v compute-sanitizer >/dev/null; then
    failed+=("compute-sanitizer is not on PATH")
    not_run "compute-sanitizer" "it is not on PATH"
  elif grep -qi 'not supported' <<<"$said"; then
    not_run "compute-sanitizer" "it does not support the device here"
  else
    for tool in memcheck racecheck synccheck; do
      run "kernels under $tool" compute-sanitizer --tool "$tool" --error-exitcode 1 \
        "$bin/cuda_twin_test" --gtest_brief=1 --gtest_filter="$small"
      run "a decoder under $tool" compute-sanitizer --tool "$tool" --error-exitcode 1 \
        "$bin/cuda_decoder_test" --gtest_brief=1 --gtest_filter='*/0_full:*ServesACrowd*:CudaProducts.*'
    done
  fi
fi

# Where Python has a libtorch with CUDA.
if has torch-bench; then
  with_torch=$build/torch
  if [ -z "$torch" ]; then
    not_run "prompts by libtorch" "Python has no libtorch with CUDA"
  elif [ -z "$builds" ] && [ ! -x "$with_torch/ziggurat" ]; then
    not_run "prompts by libtorch" "there is no $with_torch/ziggurat"
  else
    if [ -n "$builds" ]; then
      export -f build_in
      export architecture
      CMAKE_PREFIX_PATH="$torch${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}" \
        run "built with libtorch of $torch" bash -c 'build_in "$@"' build_in \
        "$with_torch" "ziggurat_cli cuda_decoder_test linear_torch_test" -DZIGGURAT_TORCH_CUDA=ON
    fi
    run "products by libtorch" "$with_torch/bin/linear_torch_test" --gtest_brief=1
    run "the decoder against the CPU's, prompts by libtorch" "$with_torch/bin/cuda_decoder_test" --gtest_brief=1
    bench "prompts by libtorch" "$with_torch/ziggurat" prefill --batch 1,4 --context 2048,8192,32768
  fi
fi

echo
echo "results: $results"
[ ${#failed[@]} -eq 0 ] || fail "failed: $(printf '%s; ' "${failed[@]}")"
