#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check-plot.sh: scripts/plot-roofline.py makes a well-formed picture of a recorded object, with a dot for each case that
# computes and a bar for each that was measured, and refuses what is no such object in one line. Exit 77 where there is
# no python3: ctest counts that as skipped.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
command -v python3 >/dev/null || { echo "check-plot: skipped: python3 is not installed" >&2; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
plot="$root/scripts/plot-roofline.py"

fail() {
  echo "check-plot: $*" >&2
  exit 1
}

python3 "$plot" "$root/tests/bench/recorded.json" -o "$work/out.svg" --title "<a> & b"
python3 - "$work/out.svg" <<'PY'
import sys
import xml.etree.ElementTree as tree

svg = "{http://www.w3.org/2000/svg}"
root = tree.parse(sys.argv[1]).getroot()
found = {name: len(root.findall(f".//{svg}{name}")) for name in ("circle", "rect", "title")}
words = [node.text for node in root.iter(f"{svg}text")]
assert root.tag == svg + "svg", root.tag
assert found == {"circle": 2, "rect": 5, "title": 2}, found  # rect: the paper, the chart, three bars
assert words[0] == "<a> & b" and "cache_copy 8x128 bfloat16 16 blocks of 16" in words, words
for node in root.iter():
    for key in ("x", "y", "cx", "cy", "width", "height"):
        value = float(node.get(key, "0"))
        assert 0 <= value <= 2000, (node.tag, key, value)
PY
python3 "$plot" - -o "$work/same.svg" --title "<a> & b" <"$root/tests/bench/recorded.json"
cmp "$work/out.svg" "$work/same.svg" || fail "a file and standard input give different pictures"
for bad in '{}' 'nothing' '{"machine": 1, "limits": 2, "results": [{}]}'; do
  status=0
  echo "$bad" | python3 "$plot" -o "$work/bad.svg" 2>"$work/err" || status=$?
  [ "$status" = 2 ] && [ "$(wc -l <"$work/err")" = 1 ] || fail "not refused in one line: $bad: $(cat "$work/err")"
  [ ! -e "$work/bad.svg" ] || fail "a picture of: $bad"
done
python3 "$plot" --help >"$work/help"
grep -q '^usage: ' "$work/help" || fail "--help shows no usage"
echo "check-plot: passed"
