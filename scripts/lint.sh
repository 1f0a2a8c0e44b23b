#!/usr/bin/env bash
# clang-format and clang-tidy over our own sources: scripts/lint.sh [file...]
set -euo pipefail
cd "$(dirname "$0")/.."
[ -f build/compile_commands.json ] || { echo "lint: build first (scripts/build.sh)" >&2; exit 1; }
if [ $# -gt 0 ]; then
  files=("$@")
else
  mapfile -t files < <(git ls-files '*.cc' '*.h')
fi
clang-format --dry-run --Werror "${files[@]}"
printf '%s\n' "${files[@]}" | grep '\.cc$' | xargs -r -n 1 -P "$(nproc)" clang-tidy -p build --quiet
