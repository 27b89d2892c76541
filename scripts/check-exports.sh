#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check-exports.sh [--write] LIBRARY HEADER...: the shared library exports exactly the functions that the public headers
# declare with ATTN_API and that abi.txt lists: none declared and undefined, none visible by accident, none that came or
# went unnoticed; and its soname holds abi.txt's ABI version. --write puts the functions that are new into abi.txt, with
# this release's number, and takes the others out (which raises the ABI version, once a release had them).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
list=$root/abi.txt
write=
if [ "${1:-}" = --write ]; then
  write=1
  shift
fi
library=$1
shift
failed=

# differ WHAT NAMES: says that there are such names, if there are.
differ() {
  [ -n "$2" ] || return 0
  echo "check-exports: $1:" $2 >&2
  failed=1
}

# A declaration is ATTN_API up to its first parenthesis; the function's name is the last word before it.
declared=$(cat "$@" | grep -v '^ *# *define' | tr '\n' ' ' | grep -oE '\bATTN_API\b[^(;]*\(' |
  sed -E 's/.*[^A-Za-z0-9_]([A-Za-z0-9_]+) *\($/\1/' | LC_ALL=C sort -u) || true
[ -n "$declared" ] || { echo "check-exports: no declaration found in the headers" >&2; exit 1; }
exported=$(nm -D --defined-only "$library" | awk '$2 ~ /^[TDBRVW]$/ { print $3 }' | sed 's/@.*//' | LC_ALL=C sort -u)
differ "declared, but not defined" "$(LC_ALL=C comm -23 <(echo "$declared") <(echo "$exported"))"
differ "exported, but not declared" "$(LC_ALL=C comm -13 <(echo "$declared") <(echo "$exported"))"

if [ -n "$write" ] && [ -z "$failed" ]; then
  release=$(awk '$2 ~ /^ATTN_VERSION_(MAJOR|MINOR|PATCH)$/ { v = v dot $3; dot = "." } END { print v }' \
    "$root/include/attn/attn.h")
  new=$(mktemp)
  trap 'rm -f "$new"' EXIT
  grep -E '^(#|abi )' "$list" >"$new"
  for name in $declared; do
    echo "$name $(awk -v name="$name" -v since="$release" '$1 == name { since = $2 } END { print since }' "$list")"
  done >>"$new"
  cat "$new" >"$list"
fi

committed=$(grep -vE '^(#|abi )' "$list" | cut -d ' ' -f 1)
if [ "$committed" != "$(echo "$committed" | LC_ALL=C sort -u)" ]; then
  differ "abi.txt is not in the order of its names, or has one twice" "check-exports.sh --write corrects it"
fi
hint="(scripts/check-exports.sh --write LIBRARY HEADER... corrects it)"
differ "exported, but not in abi.txt $hint" \
  "$(LC_ALL=C comm -13 <(echo "$committed" | LC_ALL=C sort) <(echo "$exported"))"
differ "in abi.txt, but not exported $hint" \
  "$(LC_ALL=C comm -23 <(echo "$committed" | LC_ALL=C sort) <(echo "$exported"))"
soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]$/\1/p')
wanted=libattn.so.$(sed -n 's/^abi //p' "$list")
[ "$soname" = "$wanted" ] || differ "the soname is '$soname', but abi.txt says" "$wanted"
[ -z "$failed" ] || exit 1
echo "check-exports: $(echo "$declared" | wc -l) functions, $soname"
