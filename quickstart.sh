#!/usr/bin/env bash
# From a fresh clone on Debian 12 to a first answer: installs what is missing, builds, starts the
# daemon with the bundled model, asks it something, and draws the cache that the question held.
# Asks nothing, and stops the daemon that it started.
set -euo pipefail
cd "$(dirname "$0")"
started=$SECONDS

[ "$(uname -m)" = x86_64 ] || { echo "quickstart: Ziggurat is for x86-64, not for $(uname -m)" >&2; exit 1; }
bold='' plain=''
if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }

say "1. Dependencies (Debian packages)"
scripts/install-dependencies.sh --build
say "2. Build (build/ziggurat)"
scripts/build.sh release ziggurat

say "3. Serve models/needle-llama"
log=$(mktemp)
ready=$(mktemp)
daemon=
stop() {
  if [ -n "$daemon" ]; then
    kill "$daemon" 2>/dev/null || true
    wait "$daemon" 2>/dev/null || true
  fi
  rm -f "$log" "$ready"
}
trap stop EXIT
build/ziggurat serve --model models/needle-llama --listen 127.0.0.1:0 --http 127.0.0.1:0 \
  --kv-cache-memory 64MiB >"$ready" 2>"$log" &
daemon=$!
for _ in $(seq 600); do
  grep -q '^ready' "$ready" && break
  kill -0 "$daemon" 2>/dev/null || { cat "$log" >&2; exit 1; }
  sleep 0.1
done
grep '^ready' "$ready" || { echo "the daemon did not get ready" >&2; cat "$log" >&2; exit 1; }
server=$(sed -n 's/.*grpc=\([^ ]*\).*/\1/p' "$ready")
http=$(sed -n 's/.*http=\([^ ]*\).*/\1/p' "$ready")

prompt=models/needle-llama/example-prompt.txt
say "4. A question about a text of $(wc -w <"$prompt") words, in which one sentence holds the answer"
printf '%s...\n...%s\n' "$(head -c 160 "$prompt")" "$(tail -c 60 "$prompt")"
for policy in full 'pyramidkv(budget=256,window=16,kernel=9)'; do
  say "   $policy"
  build/ziggurat generate --server "$server" --max-tokens 6 --stop . --compression "$policy" \
    --report <"$prompt"
done

say "5. The cache, as Prometheus sees it (http://$http/metrics)"
curl -fsS --noproxy '*' "http://$http/metrics" | grep -E '^ziggurat_(pool_blocks|kv_compression_ratio)'

say "6. Stop the daemon"
kill "$daemon"
wait "$daemon"
daemon=
tail -n 1 "$log"

say "Done in $((SECONDS - started)) s. To go on: build/ziggurat --help"
