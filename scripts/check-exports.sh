#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check-exports.sh LIBRARY HEADER...: the shared library exports exactly the functions that the public headers declare
# with ATTN_API: none declared and undefined, none visible by accident.
set -euo pipefail
library=$1
shift
# A declaration is ATTN_API up to its first parenthesis; the function's name is the last word before it.
declared=$(cat "$@" | grep -v '^ *# *define' | tr '\n' ' ' | grep -oE '\bATTN_API\b[^(;]*\(' |
  sed -E 's/.*[^A-Za-z0-9_]([A-Za-z0-9_]+) *\($/\1/' | sort -u) || true
[ -n "$declared" ] || { echo "check-exports: no declaration found in the headers" >&2; exit 1; }
exported=$(nm -D --defined-only "$library" | awk '$2 ~ /^[TDBRVW]$/ { print $3 }' | sed 's/@.*//' | sort -u)
undefined=$(comm -23 <(echo "$declared") <(echo "$exported"))
stray=$(comm -13 <(echo "$declared") <(echo "$exported"))
[ -z "$undefined" ] || echo "check-exports: declared, but not defined:" $undefined >&2
[ -z "$stray" ] || echo "check-exports: exported, but not declared:" $stray >&2
[ -z "$undefined$stray" ]
echo "check-exports: $(echo "$declared" | wc -l) functions"
