#!/usr/bin/env bash
# What a machine with a GPU can say of this tree: kernels and decoder against the CPU's, under
# compute-sanitizer too, the daemon end to end, and the benchmarks. Everything is tried; the results
# are collected in build-cuda/gpu-results.md, to be pasted into docs/gpu.md.
#
#   scripts/test-gpu.sh [DEVICE]     DEVICE: cuda:0 where nothing else is said
set -euo pipefail
cd "$(dirname "$0")/.."
device=${1:-cuda:0}
results=build-cuda/gpu-results.md

fail() {
  echo "test-gpu: $*" >&2
  exit 1
}
card=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null) ||
  fail "there is no GPU here: nvidia-smi names none. ./test.sh runs the kernels in the emulator."
[ -n "$card" ] || fail "there is no GPU here: nvidia-smi names none"

scripts/install-dependencies.sh
scripts/build.sh cuda

failed=()
{
  echo "# $(date -u +%Y-%m-%d), commit $(git rev-parse --short HEAD)"
  echo
  echo "- card, driver, memory: $card"
  echo "- nvcc: $(sed -n 's/.*CMAKE_CUDA_COMPILER_VERSION "\(.*\)".*/\1/p' build-cuda/CMakeFiles/*/CMakeCUDACompiler.cmake)"
} >"$results"

# run NAME COMMAND...: keeps the end of what it says.
run() {
  local name=$1 log status=0
  shift
  log=$(mktemp)
  printf '\n== %s\n' "$name"
  "$@" 2>&1 | tee "$log" || status=$?
  # 77: a test that found no GPU, which here is a failure as well.
  [ "$status" -eq 0 ] || failed+=("$name")
  {
    printf '\n## %s: %s\n\n`%s`\n\n```\n' "$name" "$([ "$status" -eq 0 ] && echo passed || echo "FAILED ($status)")" "$*"
    tail -n 40 "$log"
    printf '```\n'
  } >>"$results"
  rm -f "$log"
}

bin=build-cuda/bin
run "kernels against the reference" "$bin/cuda_twin_test" --gtest_brief=1
run "the decoder against the CPU's" "$bin/cuda_decoder_test" --gtest_brief=1

# Small sizes: under the sanitizer everything takes a hundred times as long.
small='CudaFused.*:StepTable.*:CudaSampling.GivesTheBestTwentyAndTheInfiniteOne:*CudaDecode*/*_32_in_*:PrefillAttention.*:*CacheWrites*:*StepWrites*:*PrefillTwins.AgreeOnALongPrompt/bf16_*:*ColumnSumTwins*/bf16_32:*ColumnSumTwins*/bf16_256:*DistantPrefillTwins*/bf16_32:*DistantPrefillTwins*/bf16_256'
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    run "kernels under $tool" compute-sanitizer --tool "$tool" --error-exitcode 1 \
      "$bin/cuda_twin_test" --gtest_brief=1 --gtest_filter="$small"
    run "a decoder under $tool" compute-sanitizer --tool "$tool" --error-exitcode 1 \
      "$bin/cuda_decoder_test" --gtest_brief=1 --gtest_filter='*/0_full:*ServesACrowd*'
  done
else
  failed+=("compute-sanitizer is not on PATH")
  printf '\n## compute-sanitizer: not run, it is not on PATH\n' >>"$results"
fi

# Those that ask a daemon for tokens. What measures the host's memory is about the CPU.
run "the daemon, end to end" env ZIGGURAT_DEVICE="$device" ctest --test-dir build-cuda \
  --output-on-failure --no-tests=error \
  -R '^(golden/GoldenText|CacheBlocks|Concurrency|LazyConcurrency|Lifecycle|Methods|MethodReports|MixedLoad|Retrieval|WrongInput)'

run "decode attention beside a copy" "$bin/cuda_decode_bench"
run "products with weights beside a copy" "$bin/cuda_product_bench"
run "drawing tokens" "$bin/cuda_sampling_bench"

# The shape of LLaMA-3-8B with random weights: 16 GB of disk and, with the pool, 80 GB of the card.
model=build-cuda/llama-3-8b
[ -f "$model/config.json" ] ||
  run "a model of that shape" build-cuda/ziggurat make-model --shape llama-3-8b --context 33000 --force --out "$model"
bench() {
  local what=$1
  shift
  run "$what" build-cuda/ziggurat bench "$@" --model "$model" --device "$device" --kv-cache-memory 60GiB
}
bench "decode, one request" decode --batch 1 --context 1024 --tokens 256
bench "decode, many requests" decode --batch 16,64 --context 2048 --tokens 128
bench "decode, very many requests" decode --batch 256 --context 128 --tokens 128
bench "prompts, and what policies add to them" prefill --batch 1,4 --context 8192 --compression full \
  --compression 'snapkv(budget=1024)' --compression 'pyramidkv(budget=1024)' --compression simlayerkv \
  --compression 'h2o(heavy=512,recent=512)' --compression kivi --compression minicache
bench "long prompts" prefill --context 2048,32768

# Prompts by libtorch's flash attention, where Python has a libtorch with CUDA: another build.
if torch=$(python3 -c 'import torch; assert torch.version.cuda; print(torch.utils.cmake_prefix_path)' 2>/dev/null); then
  architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
  run "configured with libtorch of $torch" cmake --preset cuda -B build-cuda/torch \
    -DCMAKE_PREFIX_PATH="$torch" -DZIGGURAT_TORCH_CUDA=ON -DZIGGURAT_CUDA_ARCHITECTURES="$architecture"
  run "built with it" cmake --build build-cuda/torch --target ziggurat_cli cuda_decoder_test
  run "the decoder against the CPU's, prompts by libtorch" build-cuda/torch/bin/cuda_decoder_test --gtest_brief=1
  run "prompts by libtorch" build-cuda/torch/ziggurat bench prefill --batch 1,4 --context 2048,8192,32768 \
    --model "$model" --device "$device" --kv-cache-memory 60GiB
else
  printf '\n## prompts by libtorch: not run, Python has no libtorch with CUDA\n' >>"$results"
fi

run "tokens per second from one pool" scripts/bench-daemon.sh build-cuda/ziggurat "$device" \
  llama-3-8b 40GiB 128 8192 64 full simlayerkv 'pyramidkv(budget=1024)'

echo
echo "results: $results"
[ ${#failed[@]} -eq 0 ] || fail "failed: $(printf '%s; ' "${failed[@]}")"
