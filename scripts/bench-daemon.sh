#!/usr/bin/env bash
# Tokens per second of a daemon under policies that keep all of a cache and parts of it, from one
# pool: scripts/bench-daemon.sh BINARY DEVICE SHAPE POOL CLIENTS INPUT OUTPUT POLICY...
#   scripts/bench-daemon.sh build-cuda/ziggurat cuda:0 llama-3-8b 40GiB 256 8192 64 full simlayerkv
# SHAPE is one of `ziggurat make-model --shape`, with random weights, or the folder of a model.
set -euo pipefail
[ $# -ge 8 ] || { sed -n '2,5p' "$0" >&2; exit 2; }
binary=$1 device=$2 shape=$3 pool=$4 clients=$5 input=$6 output=$7
shift 7

work=$(mktemp -d)
daemon=
finish() {
  if [ -n "$daemon" ]; then
    kill "$daemon" 2>/dev/null || true
    wait "$daemon" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap finish EXIT

model=$shape
if [ ! -f "$model/config.json" ]; then
  model=$work/model
  "$binary" make-model --shape "$shape" --context $((input + output + 64)) --out "$model" >&2
fi
for policy in "$@"; do
  "$binary" serve --model "$model" --device "$device" --kv-cache-memory "$pool" \
    --max-running "$clients" --compression "$policy" --listen 127.0.0.1:0 --http 127.0.0.1:0 \
    >"$work/out" 2>"$work/err" &
  daemon=$!
  until grep -q '^ready' "$work/out"; do
    kill -0 "$daemon" 2>/dev/null || { cat "$work/err" >&2; exit 1; }
    sleep 0.2
  done
  address=$(sed -n 's/^ready grpc=\([^ ]*\).*/\1/p' "$work/out")
  printf '\n%s, %s tokens in, %s out, %s clients, pool of %s, %s on %s\n' \
    "$policy" "$input" "$output" "$clients" "$pool" "$shape" "$device"
  "$binary" bench serve --server "$address" --clients "$clients" --requests $((2 * clients)) \
    --input-tokens "$input" --output-tokens "$output" --warmup "$clients"
  kill "$daemon"
  wait "$daemon" || true
  daemon=
done
