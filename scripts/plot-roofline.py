#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""plot-roofline.py: draw what `attn bench --json` measured, as one SVG picture. Needs Python's standard library alone.

usage: scripts/plot-roofline.py [BENCH.json] [-o OUT.svg] [--title TEXT]

  BENCH.json   the object that `attn bench --json` printed; - (default) is standard input
  -o OUT.svg   the picture (default roofline.svg)

On the left, each case with arithmetic: operations per byte across, operations per second up, both logarithmic. The
roofs are the machine's multiply-add rate and its rate of reading from memory. A line goes from each case up to the
least time that its own limits allow, which are measured over as many bytes as it touches: above the slope where these
stay in a cache. On the right, the fraction of these limits that every case reaches.

Examples:
  build/release/bin/attn bench --json | scripts/plot-roofline.py -o roofline.svg
  scripts/plot-roofline.py decode.json -o decode.svg --title "decode, one thread"

Exit status: 0; 2 for bad input, with one line on standard error.
"""
import argparse
import json
import math
import sys
from xml.sax.saxutils import escape, quoteattr

COLOURS = ["#1f6fb4", "#d1495b", "#2e8b57", "#b8860b", "#7a4fb5", "#0f8b8d", "#c26a1f", "#5b6770", "#8c2d5a", "#4a7c1f",
           "#2b4a9b", "#a05252"]
LEFT, TOP, WIDE, HIGH = 70, 60, 560, 420  # the chart
NAMES, BARS, ROW = 720, 1060, 17  # the list: where names and bars begin, height of a row
BAR_WIDE = 260
FONT = 'font-family="sans-serif"'


def text(x, y, words, size=12, anchor="start", colour="#222", extra=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" {FONT} text-anchor="{anchor}" fill="{colour}" {extra}>'
            f"{escape(words)}</text>")


def line(x1, y1, x2, y2, colour="#222", width=1.0, dash=""):
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            f'stroke-width="{width}"{dashes}/>')


class Axis:
    """A logarithmic axis over whole decades."""

    def __init__(self, values, begin, length):
        self.low = math.floor(math.log10(min(values)))
        self.high = max(math.ceil(math.log10(max(values))), self.low + 1)
        self.begin, self.length = begin, length

    def at(self, value):
        return self.begin + self.length * (math.log10(value) - self.low) / (self.high - self.low)

    def decades(self):
        return [10.0**i for i in range(self.low, self.high + 1)]


def kind_of(result):
    return result["case"].split(" ")[0]


def colours_of(results):
    kinds = []
    for result in results:
        if kind_of(result) not in kinds:
            kinds.append(kind_of(result))
    return {kind: COLOURS[i % len(COLOURS)] for i, kind in enumerate(kinds)}


def draw_roofs(x, y, peak, memory):
    """The multiply-add rate, and memory's slope up to it."""
    ridge = peak / memory
    left, right = 10.0**x.low, 10.0**x.high
    parts = []
    if ridge < right:
        parts += [line(x.at(max(ridge, left)), y.at(peak), x.at(right), y.at(peak), width=2),
                  text(x.at(right) - 4, y.at(peak) - 6, f"multiply-add {peak:.3g} GFLOP/s", anchor="end")]
    floor = 10.0**y.low
    begin = max(left, floor / memory)
    end = min(ridge, right)
    if begin < end:
        parts += [line(x.at(begin), y.at(begin * memory), x.at(end), y.at(end * memory), width=2),
                  text(x.at(begin) + 24, y.at(begin * memory) - 8, f"memory {memory:.3g} GB/s")]
    return parts


def draw_chart(results, limits, colours):
    points = [r for r in results if r["flops"] > 0]
    if not points:
        return [text(LEFT, TOP + 20, "no case with arithmetic")]
    peak, memory = limits["gflop_per_second"]["best"], limits["read_gb_per_second"]["best"]
    where = []
    for r in points:
        moved = r["read_bytes"] + r["written_bytes"]
        where.append((r["flops"] / moved, r["flops"] / r["seconds"]["best"] * 1e-9, r["flops"] / r["limit_seconds"] * 1e-9))
    x = Axis([w[0] for w in where] + [peak / memory], LEFT, WIDE)
    y = Axis([v for w in where for v in w[1:]] + [peak], TOP + HIGH, -HIGH)
    parts = [f'<rect x="{LEFT}" y="{TOP}" width="{WIDE}" height="{HIGH}" fill="none" stroke="#222"/>']
    for value in x.decades():
        parts += [line(x.at(value), TOP, x.at(value), TOP + HIGH, "#ddd"),
                  text(x.at(value), TOP + HIGH + 18, f"{value:g}", anchor="middle")]
    for value in y.decades():
        parts += [line(LEFT, y.at(value), LEFT + WIDE, y.at(value), "#ddd"),
                  text(LEFT - 8, y.at(value) + 4, f"{value:g}", anchor="end")]
    parts += [text(LEFT + WIDE / 2, TOP + HIGH + 40, "operations per byte", anchor="middle"),
              text(20, TOP + HIGH / 2, "GFLOP/s", anchor="middle", extra=f'transform="rotate(-90 20 {TOP + HIGH / 2:.0f})"')]
    parts += draw_roofs(x, y, peak, memory)
    for r, (intensity, rate, roof) in zip(points, where):
        colour = colours[kind_of(r)]
        title = f'{r["case"]}, {r["backend"]}: {rate:.3g} GFLOP/s, {r["fraction"]:.3f} of its {r["bound"]} limit'
        parts += [f"<g><title>{escape(title)}</title>",
                  line(x.at(intensity), y.at(rate), x.at(intensity), y.at(roof), colour, 1, "2,2"),
                  line(x.at(intensity) - 4, y.at(roof), x.at(intensity) + 4, y.at(roof), colour, 1.5),
                  f'<circle cx="{x.at(intensity):.1f}" cy="{y.at(rate):.1f}" r="4.5" fill="{colour}"/></g>']
    return parts


def draw_list(results, colours):
    most = max([1.0] + [r["fraction"] for r in results])
    parts = [text(NAMES, TOP - 8, "case"), text(BARS, TOP - 8, "fraction of its limits")]
    several = len({r["backend"] for r in results}) > 1
    for i, r in enumerate(results):
        base = TOP + ROW * (i + 1)
        wide = BAR_WIDE * r["fraction"] / most
        name = r["case"] + (", " + r["backend"] if several else "")
        parts += [text(NAMES, base - 4, name, 11),
                  f'<rect x="{BARS}" y="{base - ROW + 4}" width="{wide:.1f}" height="{ROW - 5}" '
                  f'fill={quoteattr(colours[kind_of(r)])}/>',
                  text(BARS + wide + 5, base - 4, f'{r["fraction"]:.3f} {r["bound"]}', 10)]
    end = TOP + ROW * len(results)
    one = BARS + BAR_WIDE / most
    return parts + [line(one, TOP - 2, one, end, "#222", 1, "4,3")]


def picture(bench, title):
    machine, limits = bench["machine"], bench["limits"]
    results = [r for r in bench["results"] if "refused" not in r]
    colours = colours_of(results)
    high = max(TOP + HIGH + 60, TOP + ROW * len(results) + 30)
    wide = BARS + BAR_WIDE + 130
    words = (f'attn {machine["version"]}, {machine["device_name"]}, level {machine["level"]}, '
             f'{machine["threads"]} thread{"s" if machine["threads"] > 1 else ""}')
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}">',
             f'<rect width="{wide}" height="{high}" fill="#fff"/>', text(LEFT, 28, title or words, 15)]
    parts += draw_chart(results, limits, colours)
    parts += draw_list(results, colours)
    return "\n".join(parts + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n", 1)[1], add_help=False)
    parser.add_argument("bench", nargs="?", default="-")
    parser.add_argument("-o", dest="out", default="roofline.svg")
    parser.add_argument("--title", default="")
    parser.add_argument("-h", "--help", action="store_true")
    parser.error = lambda message: sys.exit(print(f"plot-roofline.py: {message}", file=sys.stderr) or 2)
    options = parser.parse_args()
    if options.help:
        print(__doc__.strip())
        return 0
    try:
        with sys.stdin if options.bench == "-" else open(options.bench, encoding="utf-8") as file:
            drawn = picture(json.load(file), options.title)
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(drawn)
    except OSError as error:
        print(f"plot-roofline.py: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except (ValueError, KeyError, TypeError) as error:
        print(f"plot-roofline.py: {options.bench} is not what attn bench --json prints: {error!r}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
