#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compare-bench.py: whether two runs of `attn bench --json` tell the same fractions.

usage: tests/bench/compare-bench.py A.json B.json [PERCENT]

Prints both fractions of each case and the larger over the smaller. Exit status 1: a case differs by more than PERCENT
(10); 2: a file is not what it should be, or the two do not have the same cases.
"""
import json
import statistics
import sys


def read(path):
    with open(path, encoding="utf-8") as file:
        results = json.load(file)["results"]
    return {(r["case"], r["backend"]): r["fraction"] for r in results if "fraction" in r}


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    percent = float(sys.argv[3]) if len(sys.argv) == 4 else 10.0
    try:
        first, second = read(sys.argv[1]), read(sys.argv[2])
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"compare-bench: {error}", file=sys.stderr)
        return 2
    if not first or first.keys() != second.keys():
        print("compare-bench: the two runs do not have the same cases, or none", file=sys.stderr)
        return 2
    ratios = {}
    for key, a in first.items():
        b = second[key]
        ratios[key] = max(a, b) / min(a, b)
        print(f"{key[0]:48} {key[1]:10} {a:6.3f} {b:6.3f} {ratios[key]:6.3f}")
    beyond = [key for key, ratio in ratios.items() if ratio > 1 + percent / 100]
    print(f"{len(ratios)} cases: largest ratio {max(ratios.values()):.3f}, median "
          f"{statistics.median(ratios.values()):.3f}; {len(beyond)} beyond {percent:g} %")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
