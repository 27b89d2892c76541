# SPDX-License-Identifier: Apache-2.0
"""Writes rows.txt, latent.txt and fp8.txt: what 1,000 rows of each cache format are, as hashes, and every fp8 case.

    python make_rows.py            writes the files
    python make_rows.py --check    writes nothing: the files are up to date, and hand.txt and the facts of the format
                                   hold (exit status 1 when not)

README.md says what the rows, the hashes and the files are.
"""
import pathlib
import sys

import numpy as np

import row_formats as rf

HERE = pathlib.Path(__file__).resolve().parent
ROWS, HEADS, KINDS = 1000, 4, 20
SIZES = (1, 17, 40, 64, 65, 96, 128, 192, 256, 320, 512)
SOURCES = ("float32", "float16", "bfloat16")
MANTISSA = {"float32": 23, "float16": 10, "bfloat16": 7}
BIAS = {"float32": 127, "float16": 15, "bfloat16": 127}
STATIC_ONE = rf.F32(0.1)
STATIC_HEADS = np.array([0x3F800000, 0x3DCCCCCD, 0x40490FDB, 0x3B03126F], np.uint32).view(rf.F32)
U64 = np.uint64


# ---- The rows --------------------------------------------------------------------------------------------------------

def mix(z):
    with np.errstate(over="ignore"):
        z = (z ^ z >> U64(30)) * U64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> U64(27)) * U64(0x94D049BB133111EB)
    return z ^ z >> U64(31)


def word(stream, index):
    """Output `index` of a splitmix64 generator whose state starts at `stream`."""
    with np.errstate(over="ignore"):
        return mix(stream + (np.asarray(index, U64) + U64(1)) * U64(0x9E3779B97F4A7C15))


def below(value, count):
    """An integer in [0, count)."""
    return (value % U64(count)).astype(np.int64)


class Maker:
    """Bits of source elements of one type, by integers alone."""

    def __init__(self, source):
        self.m, self.bias = MANTISSA[source], BIAS[source]
        self.top = 2 * self.bias  # the largest exponent field of a finite number
        self.width = 32 if source == "float32" else 16

    def bits(self, sign, exponent, fraction24):
        """(-1)^sign * 2^exponent * (1 + fraction24 / 2^24), fraction cut, exponent clamped to the normal numbers."""
        field = np.clip(exponent + self.bias, 1, self.top)
        return sign << self.width - 1 | field << self.m | fraction24 >> 24 - self.m

    def normal(self, draw, exponent):
        """Near to normal with a deviation of about 0.58 * 2^exponent: the sum of four 16-bit numbers."""
        total = sum((draw >> U64(16 * i) & U64(0xFFFF)).astype(np.int64) for i in range(4)) - 131070
        size = np.abs(total)
        power = np.frexp(size.astype(np.float64))[1].astype(np.int64) - 1  # floor(log2(size))
        power = np.maximum(power, 0)
        filler = (mix(draw) & U64(0xFFFFFF)).astype(np.int64) >> power
        fraction = (size << 24 >> power) & 0xFFFFFF | filler
        made = self.bits((total < 0).astype(np.int64), exponent + power - 16, fraction)
        return np.where(size == 0, 0, made)

    def small(self, sign, numerator, exponent):
        """numerator * 2^exponent for 0 < numerator < 256, exactly where that is a normal number."""
        power = np.frexp(numerator.astype(np.float64))[1].astype(np.int64) - 1
        return self.bits(sign, exponent + power, numerator << 24 - power & 0xFFFFFF)

    def special(self, which):
        """0: NaN, 1: infinity, 2: -infinity."""
        field = self.top + 1
        return np.where(which == 0, field << self.m | 1 << self.m - 1,
                        field << self.m | (which == 2).astype(np.int64) << self.width - 1)


def make_row(maker, kind, row, size, stream):
    """Bits of one row."""
    j = np.arange(size, dtype=np.int64)
    draw = word(stream, j)
    p, p2 = word(stream, 1 << 20), word(stream, (1 << 20) + 1)
    sign = (draw >> U64(63)).astype(np.int64)
    fraction = (draw & U64(0xFFFFFF)).astype(np.int64)
    place = int(below(p2, size))
    if kind <= 6:  # everyday values
        return maker.normal(draw, below(p, 13) - 6)
    if kind == 7:
        return maker.normal(draw, below(p, 29) - 14)
    if kind == 8:  # every element of its own size
        return maker.normal(draw, below(mix(draw + U64(1)), 41) - 20)
    if kind == 9:  # subnormal
        return sign << maker.width - 1 | fraction >> 24 - maker.m
    if kind == 10:  # about the smallest scale, 1e-6
        return maker.normal(draw, below(p, 12) - 20)
    if kind == 11:  # the largest exponents; sums of them overflow
        return maker.bits(sign, maker.top - maker.bias - below(draw >> U64(32), 4), fraction)
    if kind == 12:  # large ones whose sums do not
        return maker.normal(draw, maker.top - maker.bias - 4 - below(p, 10))
    if kind == 13:  # constant
        return np.full(size, maker.normal(p2, below(p, 13) - 6))
    if kind == 14:  # one to three elements that are not 0
        return np.where((j - place) % size <= row % 3, maker.normal(draw, below(p, 13) - 6), 0)
    if kind == 15:  # zeros of both signs
        return sign << maker.width - 1
    if kind == 16:  # one-sided
        positive = maker.normal(draw, below(p, 13) - 6) & ~(1 << maker.width - 1)
        return positive | row % 2 << maker.width - 1
    if kind == 17:  # int8 ties: halves beside 127, times a power of two
        odd = maker.small(sign, 2 * below(draw, 127) + 1, below(p, 5) - 3)
        return np.where(j == place, maker.small(sign, np.full(size, 127), below(p, 5) - 2), odd)
    if kind == 18:  # fp8 ties: midpoints of e4m3 or e5m2 beside 448, half the rows as they are, half scaled
        scaled = int(below(p, 2)) * (int(below(p2, 7)) - 3)
        numerator = np.where(draw >> U64(62) & U64(1), 17 + 2 * below(draw, 8), 9 + 2 * below(draw, 4))
        tie = maker.small(sign, numerator, below(draw >> U64(8), 15) - 9 + scaled)
        return np.where(j == place, maker.small(sign, np.full(size, 7), 6 + np.int64(scaled)), tie)
    bad = (j - place) % size <= below(p, 3)  # kind 19: one to three elements that are not finite
    which = (row + j) % 3 if row % 4 == 3 else np.full(size, row % 4)
    return np.where(bad, maker.special(which), maker.normal(draw, np.int64(0)))


def source_rows(source, size, tag=0, shift=0):
    """([1000, size] float32 values, their bits). tag keeps the streams of two tensors apart, shift their kinds."""
    maker = Maker(source)
    bits = np.empty((ROWS, size), np.int64)
    for row in range(ROWS):
        key = tag << 60 | SOURCES.index(source) << 40 | size << 20 | row
        bits[row] = make_row(maker, (row // HEADS + shift) % KINDS, row, size, mix(U64(key)))
    if source == "float32":
        return bits.astype("<u4").view(rf.F32), bits
    raw = bits.astype("<u2")
    return (rf.from_bf16(raw) if source == "bfloat16" else raw.view("<f2").astype(rf.F32)), bits


# ---- Hashes ----------------------------------------------------------------------------------------------------------

def fnv(state, data):
    """FNV-1a, 64 bits, over the columns of data [rows, bytes]."""
    with np.errstate(over="ignore"):
        for column in data.T:
            state = (state ^ column.astype(U64)) * U64(0x100000001B3)
    return state


BASIS = U64(0xCBF29CE484222325)


def row_hashes(data):
    return fnv(np.full(data.shape[0], BASIS), data)


def fold(hashes):
    """One hash of many: FNV-1a over their bytes, little-endian."""
    return int(fnv(BASIS.reshape(1), hashes.astype("<u8").view(np.uint8).reshape(1, -1))[0])


def float_bytes(values):
    bits = values.astype(rf.F32).view(np.uint32).copy()
    bits[np.isnan(values)] = rf.NAN_SCALE
    return np.ascontiguousarray(bits, "<u4").view(np.uint8).reshape(values.shape[0], -1)


def describe(data, decoded):
    """The hashes of the bytes and of the decoded values."""
    return f"{fold(row_hashes(data)):016x} {fold(row_hashes(float_bytes(decoded))):016x}"


def describe_kinds(data):
    """Per kind of row the low 16 bits of the hash of its rows' bytes, to tell where a difference lies."""
    hashes = row_hashes(data)
    kinds = np.arange(ROWS) // HEADS % KINDS
    return " " + "".join(f"{fold(hashes[kinds == k]) & 0xFFFF:04x}" for k in range(KINDS))


# ---- The files -------------------------------------------------------------------------------------------------------

def places(name):
    """(place, one static scale per row or None)."""
    if name in rf.FLOATS:
        return [("none", None)]
    if name in rf.STATIC:
        return [("unset", None), ("one", np.full(ROWS, STATIC_ONE)), ("heads", np.tile(STATIC_HEADS, ROWS // HEADS))]
    return [("inline", None), ("separate", None)]


def as_stored(codes, bits, place):
    """What is hashed: the row; with separate scales the row, then the scale's four bytes."""
    row = rf.row_bytes(codes, bits, place == "separate")
    return np.concatenate((row, rf.scale_bytes(bits)), axis=1) if place == "separate" else row


def kv_lines():
    names = rf.FLOATS + rf.STATIC + rf.PER_TOKEN
    for size in SIZES:
        for source in SOURCES:
            x, bits = source_rows(source, size)
            raw = np.ascontiguousarray(bits.astype("<u4")).view(np.uint8).reshape(ROWS, -1)
            yield f"source - {source} {size} {fold(row_hashes(raw)):016x}"
            for name in names:
                for place, scale in places(name):
                    codes, word_bits = rf.encode(x, name, scale)
                    decoded = rf.decode(codes, word_bits, name, size, scale)
                    data = as_stored(codes, word_bits, place)
                    yield f"{name} {place} {source} {size} {describe(data, decoded)}{describe_kinds(data)}"


WHOLE = (("float32", 17, (5, 69)), ("float16", 40, (33,)), ("bfloat16", 65, (58,)))


def whole_lines():
    """A few whole rows, as cases of hand.txt's form."""
    for name in rf.FLOATS + rf.STATIC + rf.PER_TOKEN:
        for source, size, rows in WHOLE:
            x, bits = source_rows(source, size)
            for row in rows:
                codes, scale = rf.encode(x[row:row + 1], name)
                decoded = float_bytes(rf.decode(codes, scale, name, size)).view("<u4")[0]
                digits = 8 if source == "float32" else 4
                yield f"# row {row} of size {size}"
                yield f"case {name} {places(name)[0][0]} {source} -"
                yield "source " + " ".join(f"{b:0{digits}x}" for b in bits[row].tolist())
                yield "stored " + rf.row_bytes(codes, scale, False).tobytes().hex(" ")
                yield "scale -"
                yield "decoded " + " ".join(f"{b:08x}" for b in decoded.tolist())


LATENTS = ((1, 0), (7, 1), (41, 5), (16, 4), (64, 32), (128, 32), (192, 5), (256, 64), (320, 64), (512, 64))


def latent_lines():
    for rank, width in LATENTS:
        for source in SOURCES:
            kv_c = source_rows(source, rank)[0]
            k_pe = source_rows(source, width, 1, 7)[0] if width else np.zeros((ROWS, 0), rf.F32)
            for name in rf.FLOATS + ("fp8_e4m3", "fp8_ds_mla") + rf.PER_TOKEN:
                if name == "fp8_ds_mla" and (rank, width) != (512, 64):
                    continue
                mixed = name == "fp8_ds_mla" or name in rf.PER_TOKEN
                for rotary in ("bfloat16", "float16") if mixed else ("-",):
                    for place, scale in [("inline", None)] if name == "fp8_ds_mla" else places(name):
                        if place == "heads":
                            continue
                        row, bits = rf.encode_latent(kv_c, k_pe, name, rotary, place == "separate", scale)
                        decoded = rf.decode_latent(row, bits, name, rank, width, rotary, scale)
                        data = np.concatenate((row, rf.scale_bytes(bits)), axis=1) if place == "separate" else row
                        yield f"{name} {place} {source} {rank} {width} {rotary} {describe(data, decoded)}"


def fp8_lines():
    for code in range(256):
        a, b = (int(float_bytes(rf.FP8_TABLE[n][code].reshape(1, 1)).view("<u4")[0, 0]) for n in rf.STATIC)
        yield f"code {code:02x} {a:08x} {b:08x}"
    for name in rf.STATIC:
        top = rf.FP8_TABLE[name][rf.FP8_TOP[name]]
        beyond = top + (top - rf.FP8_TABLE[name][rf.FP8_TOP[name] - 1]) / rf.F32(2)
        middles = list(rf.FP8_TIES[name]) + [beyond]
        values = [v for m in middles for v in (np.nextafter(m, rf.F32(0)), m, np.nextafter(m, rf.F32(np.inf)))]
        values += list(rf.FP8_TABLE[name][:rf.FP8_TOP[name] + 1])
        values += [np.nextafter(top, rf.F32(np.inf)), rf.F32(1e-45), rf.FLT_MIN, np.finfo(rf.F32).max, rf.F32(np.inf)]
        bits = np.array(values, rf.F32).view(np.uint32)
        negative = rf.to_fp8(-bits.view(rf.F32), name)
        codes = rf.to_fp8(bits.view(rf.F32), name)
        if (negative != codes + 0x80).any():
            sys.exit(f"{name}: a negative value is not its positive one with the sign bit")
        for b, code in zip(bits.tolist(), codes.tolist()):
            yield f"{name} {b:08x} {code:02x}"


FILES = {
    "rows.txt": ("format place source size bytes-hash values-hash hash-per-kind", kv_lines),
    "whole.txt": ("whole rows of rows.txt, in the form of hand.txt", whole_lines),
    "latent.txt": ("format place source rank width rotary bytes-hash values-hash", latent_lines),
    "fp8.txt": ("code CODE e4m3-bits e5m2-bits; FORMAT float32-bits CODE, negative ones the same with the sign",
                fp8_lines),
}


def content(name):
    head, lines = FILES[name]
    return f"# Made by make_rows.py: {head}\n" + "\n".join(lines()) + "\n"


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit("usage: make_rows.py [--check]")
    failed = []
    for name in FILES:
        made = content(name)
        print(f"{name}: {len(made)} bytes")
        if not sys.argv[1:]:
            (HERE / name).write_text(made)
        elif (HERE / name).read_text() != made:
            failed.append(f"{name} differs from what the script makes")
    if sys.argv[1:]:
        import check_rows
        failed += check_rows.check_all()
    for line in failed:
        print(line, file=sys.stderr)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
