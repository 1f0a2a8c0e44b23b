#!/usr/bin/env bash
# clang-format and clang-tidy over our own sources: scripts/lint.sh [file...]
# Without a file: over all that git tracks or would. clang-tidy sees what the release build compiles.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -gt 0 ]; then
  files=("$@")
else
  mapfile -t files < <(git grep --untracked -l '' -- '*.cc' '*.h')
fi
[ ${#files[@]} -gt 0 ] || { echo "lint: git names no sources here; name files" >&2; exit 1; }

clang-format --dry-run --Werror "${files[@]}"

# A folder of its own: headers that GCC has compiled are nothing that clang-tidy can read.
folder=build-lint
log=$(mktemp)
trap 'rm -f "$log"' EXIT
headers=(proto/gen/ziggurat/v1/ziggurat.grpc.pb.h proto/gen/grpc/health/v1/health.grpc.pb.h
  server/gen/server/page/page_html.h)
{ cmake --preset release -B "$folder" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DZIGGURAT_UNITY=OFF &&
  cmake --build "$folder" --target ziggurat_version "${headers[@]}"; } >"$log" 2>&1 ||
  { cat "$log" >&2; exit 1; }

compiled=()
for file in "${files[@]}"; do
  [[ "$file" == *.cc ]] || continue  # headers are read where they are included
  if grep -qF "\"file\": \"$(realpath "$file")\"" "$folder/compile_commands.json"; then
    compiled+=("$file")
  else
    echo "lint: $file is no part of the release build: formatted, no more"
  fi
done
[ ${#compiled[@]} -gt 0 ] || exit 0
# Flags that only GCC knows are no finding.
printf '%s\0' "${compiled[@]}" |
  xargs -0 -n 1 -P "$(nproc)" clang-tidy -p "$folder" --quiet --extra-arg=-Wno-unknown-warning-option
