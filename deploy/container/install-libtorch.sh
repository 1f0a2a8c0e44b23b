#!/usr/bin/env bash
# Unpacks the libtorch at $LIBTORCH_URL, a zip with one folder, as FOLDER: install-libtorch.sh FOLDER.
# Nothing is unpacked whose SHA-256 is not $LIBTORCH_SHA256.
set -euo pipefail
folder=$1
: "${LIBTORCH_URL:?the address of a libtorch}"
: "${LIBTORCH_SHA256:?the SHA-256 of that archive}"

archive=$(mktemp)
trap 'rm -f "$archive"' EXIT
curl --fail --silent --show-error --location --output "$archive" "$LIBTORCH_URL"
echo "$LIBTORCH_SHA256  $archive" | sha256sum --check --quiet
apt-get update -qq
apt-get install -y -qq --no-install-recommends unzip >/dev/null
unpacked=$(mktemp -d)
unzip -q "$archive" -d "$unpacked"
mv "$unpacked"/* "$folder"
rmdir "$unpacked"
