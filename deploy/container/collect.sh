#!/usr/bin/env bash
# Collects what the daemon needs to run: collect.sh BINARY OUT
#   OUT/packages                  a line for each package that brings libraries
#   OUT/usr/local/bin/ziggurat    the binary, without symbols
set -euo pipefail
binary=$1
out=$2

mkdir -p "$out/usr/local/bin"
strip -o "$out/usr/local/bin/ziggurat" "$binary"

# The package of a library, by the path that it was installed at: /lib is /usr/lib by now, and some
# are links that alternatives keep.
package_of() {
  local path
  for path in "$1" "/usr$1" "$(readlink -f "$1")"; do
    dpkg-query -S "$path" 2>/dev/null | cut -d: -f1 | head -n 1 && return
  done
  return 1
}

needed=$(readelf -d "$binary" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
while read -r name _ path _; do
  # Only what the binary names itself: packages bring what their libraries need.
  grep -qxF "$name" <<<"$needed" || continue
  package_of "$path" || { echo "collect: no package brings $path" >&2; exit 1; }
done < <(ldd "$binary" | grep '=> /') | sort -u >"$out/packages"
