#!/usr/bin/env bash
# Makes the image that runs out of what collect.sh has found, in two steps, so that packages stay a
# layer of their own which a new daemon leaves alone:
#   install-runtime.sh packages   those that /tmp/packages names, tini, and the daemon's user
#   install-runtime.sh daemon     starts it once, removes what is in /tmp
set -euo pipefail

install_packages() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  # What the base image has stays as it is: it may hold it at its version.
  while read -r package; do
    dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q ' installed$' || echo "$package"
  done </tmp/packages | xargs apt-get install -y -qq --no-install-recommends tini >/dev/null
  rm -rf /var/lib/apt/lists/*
  useradd --uid 65532 --user-group --no-create-home --shell /usr/sbin/nologin ziggurat
}

case "$1" in
  packages) install_packages ;;
  daemon)
    rm -f /tmp/packages "$0"
    ziggurat --version
    ;;
  *) echo "install-runtime: packages or daemon, not '$1'" >&2; exit 2 ;;
esac
