#!/usr/bin/env bash
# Installs what Ziggurat builds and tests with, from Debian 12's own packages. Asks nothing; does
# nothing when all is there. Needs root, or sudo.
#   --build   only what building takes
set -euo pipefail

packages=(
  build-essential cmake ninja-build git pkg-config curl ca-certificates
  libdnnl-dev libssl-dev libgrpc++-dev libprotobuf-dev protobuf-compiler protobuf-compiler-grpc
  libabsl-dev prometheus-cpp-dev libcpp-httplib-dev libspdlog-dev libcli11-dev libyaml-cpp-dev
  nlohmann-json3-dev libpcre2-dev libsentencepiece-dev libutf8proc-dev
  libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev
)
# libtorch-dev: for linear_torch_test alone.
for_tests=(
  libtorch-dev debootstrap iproute2 prometheus openssl python3-yaml python3-jsonschema
  chromium chromium-driver python3-selenium
)
# Where another package brings a kubectl, Debian's would be in its way; the tests take either.
command -v kubectl >/dev/null || for_tests+=(kubernetes-client)

megabytes=250  # to download, with all that they need, on a Debian that has little
for option in "$@"; do
  case "$option" in
    --build) for_tests=() megabytes=130 ;;
    *) echo "install-dependencies: unknown option '$option'" >&2; exit 2 ;;
  esac
done
packages+=("${for_tests[@]}")

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "install-dependencies: run this as root, or install sudo" >&2; exit 1; }
  as_root=(sudo)
fi
echo "Installing ${#missing[@]} packages (at most $megabytes MB with what they need): ${missing[*]}"
# The Prometheus server is for tests only: its package must not start it as a service.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap '"${as_root[@]}" rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod +x "$policy"
fi
wait_for_lock=(-o DPkg::Lock::Timeout=600)
"${as_root[@]}" apt-get "${wait_for_lock[@]}" update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "${wait_for_lock[@]}" install -y -qq \
  --no-install-recommends "${missing[@]}" >/dev/null
