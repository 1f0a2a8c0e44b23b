#!/usr/bin/env bash
# Makes the image that runs out of what collect.sh has found: install-runtime.sh OUT. Removes OUT.
set -euo pipefail
out=$1
export DEBIAN_FRONTEND=noninteractive

apt-get update -qq
# What the base image has stays as it is: it may hold it at its version.
while read -r package; do
  dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q ' installed$' || echo "$package"
done <"$out/packages" | xargs apt-get install -y -qq --no-install-recommends tini >/dev/null
rm -rf /var/lib/apt/lists/*

install -D -m 0755 "$out/bin/ziggurat" /usr/local/bin/ziggurat
if [ -n "$(ls -A "$out/lib")" ]; then
  install -D -t /usr/local/lib/ziggurat "$out"/lib/*
  echo /usr/local/lib/ziggurat >/etc/ld.so.conf.d/ziggurat.conf
  ldconfig
fi
useradd --uid 65532 --user-group --no-create-home --shell /usr/sbin/nologin ziggurat
rm -rf "$out" "$0"
ziggurat --version
