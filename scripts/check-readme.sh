#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check-readme.sh ATTN README [--write]: the part of README between the markers matrix:begin and matrix:end is what
# `ATTN info --matrix` prints. Shows the difference and exits 1 where it is not; --write puts the answer there instead.
set -euo pipefail
attn=$1
readme=$2
begin='<!-- matrix:begin -->'
end='<!-- matrix:end -->'
for marker in "$begin" "$end"; do
  [ "$(grep -cxF -- "$marker" "$readme")" = 1 ] || {
    echo "check-readme: $readme has not exactly one line '$marker'" >&2
    exit 1
  }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$attn" info --matrix >"$work/built"
if [ "${3:-}" = --write ]; then
  awk -v begin="$begin" -v end="$end" -v file="$work/built" '
    $0 == end { inside = 0 }
    !inside { print }
    $0 == begin { inside = 1; print ""; while ((getline line < file) > 0) print line; print "" }
  ' "$readme" >"$work/readme"
  cat "$work/readme" >"$readme"
  exit 0
fi
awk -v begin="$begin" -v end="$end" '$0 == end { exit } inside { print } $0 == begin { inside = 1 }' "$readme" |
  sed -e '1{/^$/d}' -e '${/^$/d}' >"$work/written"
diff -u --label "$readme" --label "attn info --matrix" "$work/written" "$work/built" || {
  echo "check-readme: the matrix is not this build's; scripts/check-readme.sh $attn $readme --write corrects it" >&2
  exit 1
}
