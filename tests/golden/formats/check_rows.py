# SPDX-License-Identifier: Apache-2.0
"""What make_rows.py --check looks at beside its files: hand.txt, the sign vector, and row_formats.py against other ways
to say the same: exact fractions rounded after every operation, brute force over codes, the bounds of a round trip."""
import pathlib
import random
from fractions import Fraction

import numpy as np

import make_rows
import row_formats as rf

HERE = pathlib.Path(__file__).resolve().parent
SIGNS_128 = 0x6B7F5438A6443D6C808035B16573590D
POSITIVE = {64: 26, 128: 59, 256: 110, 512: 231}


# ---- hand.txt --------------------------------------------------------------------------------------------------------

def words(tokens):
    """Hex words; N*WORD repeats."""
    found = []
    for token in tokens:
        count, _, value = token.rpartition("*")
        found += [int(value, 16)] * int(count or 1)
    return found


def read_cases(path):
    case = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        key, *rest = line.split() or ["#"]
        if key.startswith("#"):
            continue
        if key in ("case", "latent"):
            case = {"kind": key, "line": number, "head": rest}
        case[key] = rest
        if key == "decoded":
            yield case


def widen(bits, source):
    if source == "float32":
        return np.array(bits, np.uint32).view(rf.F32)
    return rf.from_bf16(np.array(bits, "<u2")) if source == "bfloat16" else np.array(bits, "<u2").view("<f2").astype(
        rf.F32)


def run_case(case):
    """(stored bytes, scale bits or None, decoded float32 bits) of a case, by row_formats.py."""
    name, place, source, scale = case["head"][:4]
    scale = None if scale == "-" else np.array([int(scale, 16)], np.uint32).view(rf.F32)[0]
    x = widen(words(case["source"]), source).reshape(1, -1)
    if case["kind"] == "latent":
        rank, width, rotary = int(case["head"][4]), int(case["head"][5]), case["head"][6]
        row, bits = rf.encode_latent(x[:, :rank], x[:, rank:], name, rotary, place == "separate", scale)
        values = rf.decode_latent(row, bits, name, rank, width, rotary, scale)
    else:
        codes, bits = rf.encode(x, name, scale)
        row = rf.row_bytes(codes, bits, place == "separate")
        values = rf.decode(codes, bits, name, x.shape[1], scale)
    return row[0].tolist(), bits, make_rows.float_bytes(values).view("<u4")[0].tolist()


def check_cases(name):
    count = 0
    for case in read_cases(HERE / name):
        stored, bits, decoded = run_case(case)
        where = f"{name}:{case['line']} {' '.join(case['head'])}"
        if stored != words(case["stored"]):
            yield f"{where}: stored {bytes(stored).hex(' ')}"
        if case["scale"] != ["-"] and int(case["scale"][0], 16) != int(bits[0]):
            yield f"{where}: scale {int(bits[0]):08x}"
        if decoded != words(case["decoded"]):
            yield f"{where}: decoded {' '.join(f'{b:08x}' for b in decoded)}"
        count += 1
    print(f"{name}: {count} cases")


# ---- The sign vector -------------------------------------------------------------------------------------------------

def check_signs():
    if rf.mt19937(5489, 1) != [3499211612]:
        yield "the Mersenne Twister is wrong at seed 5489"
    if rf.mt19937(0x9E3779B9, 4) != [0x5F22AC2C, 0xD4E1E072, 0x1B0C0A07, 0xEA5F4EBC]:
        yield "the first draws are wrong"
    if sum(1 << i for i in range(128) if rf.SIGNS[i] > 0) != SIGNS_128:
        yield "the first 128 signs are wrong"
    for size, count in POSITIVE.items():
        if int((rf.SIGNS[:size] > 0).sum()) != count:
            yield f"{size} signs: {int((rf.SIGNS[:size] > 0).sum())} are positive, expected {count}"


# ---- Exact fractions, rounded after every operation ------------------------------------------------------------------

def nearest32(value):
    """A fraction rounded to float32, ties to even; None for a value beyond the range."""
    if value == 0:
        return Fraction(0)
    size = abs(value)
    power = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2)**power > size:
        power -= 1
    step = Fraction(2)**(max(power, -126) - 23)
    rounded = round(size / step) * step  # of a Fraction: half to even
    if rounded >= Fraction(2)**128:
        return None
    return rounded if value > 0 else -rounded


def rha_exact(y):
    moved = nearest32(y + (Fraction(1, 2) if y >= 0 else Fraction(-1, 2)))
    return int(moved)  # towards 0


FLOOR = Fraction(float(rf.SCALE_FLOOR))


def int8_exact(x):
    scale = max(nearest32(max(map(abs, x)) / 127), FLOOR)
    inverse = nearest32(1 / scale)
    return [min(max(rha_exact(nearest32(v * inverse)), -128), 127) for v in x], scale


def int4_exact(x):
    """Nibbles, scale and zero point; None where a number overflows."""
    y = []
    for start, length, factor in rf.blocks_of(len(x)):
        part = [v * int(rf.SIGNS[start + i]) for i, v in enumerate(x[start:start + length])]
        h = 1
        while h < length:
            for i in range(0, length, 2 * h):
                for j in range(i, i + h):
                    a, b = part[j], part[j + h]
                    part[j], part[j + h] = nearest32(a + b), nearest32(a - b)
                    if part[j] is None or part[j + h] is None:
                        return None
            h *= 2
        y += [nearest32(v * factor) for v in part]
    if None in y:
        return None
    extent = nearest32(max(max(y), 0) - min(min(y), 0))
    if extent is None:
        return None
    scale = max(nearest32(extent / 15), FLOOR)
    zero = min(max(rha_exact(nearest32(-min(min(y), Fraction(0)) / scale)), 0), 15)
    inverse = nearest32(1 / scale)
    return [min(max(rha_exact(nearest32(nearest32(v * inverse) + zero)), 0), 15) for v in y], scale, zero


def check_exact():
    compared = 0
    for source, size in (("float32", 17), ("float32", 65), ("bfloat16", 40), ("float16", 96)):
        x, _ = make_rows.source_rows(source, size)
        finite = np.isfinite(x).all(axis=1)
        int8, scale8 = rf.encode(x, "int8_per_token_head")
        int4, bits4 = rf.encode(x, "int4_per_token_head")
        nibbles = rf.unpack_nibbles(int4, size)
        for row in np.flatnonzero(finite)[::9]:
            exact = [Fraction(float(v)) for v in x[row]]
            codes, scale = int8_exact(exact)
            if codes != int8[row].view(np.int8).tolist() or float(scale) != scale8[row:row + 1].view(rf.F32)[0]:
                yield f"int8, {source} {size}, row {row}: differs from exact fractions"
            found = int4_exact(exact)
            if found is None:
                if bits4[row] != rf.NAN_SCALE:
                    yield f"int4, {source} {size}, row {row}: overflow is not marked"
                continue
            codes, scale, zero = found
            word = int(np.array([float(scale)], rf.F32).view(np.uint32)[0]) & ~15 | zero
            if codes != nibbles[row].tolist() or word != int(bits4[row]):
                yield f"int4, {source} {size}, row {row}: differs from exact fractions"
            compared += 1
    print(f"exact fractions: {compared} rows")


# ---- fp8 and bfloat16 by brute force ---------------------------------------------------------------------------------

def check_brute():
    rng = random.Random(5)
    tables = {n: [(Fraction(rf.fp8_value(c, n)), c) for c in range(rf.FP8_TOP[n] + 1)] for n in rf.STATIC}
    bits = np.array([rng.randrange(0x7F800000) for _ in range(300)] +
                    [rng.randrange(0x36000000, 0x48000000) for _ in range(2000)], np.uint32)
    for name, table in tables.items():
        codes = rf.to_fp8(bits.view(rf.F32), name)
        for b, code in zip(bits, codes.tolist()):
            value = Fraction(float(b.view(rf.F32)))
            best = min(table, key=lambda entry: (abs(entry[0] - value), entry[1] % 2))
            if best[1] != code:
                yield f"{name}: {int(b):08x} gives {code:02x}, brute force {best[1]:02x}"
    for b, got in zip(bits, rf.to_bf16(bits.view(rf.F32)).tolist()):
        value, low = Fraction(float(b.view(rf.F32))), int(b) >> 16
        ends = [Fraction(float(np.array([u << 16], np.uint32).view(rf.F32)[0])) if u < 0x7F80 else Fraction(2)**128
                for u in (low, low + 1)]
        distance = [abs(e - value) for e in ends]
        want = low + (distance[1] < distance[0] or (distance[1] == distance[0] and low % 2 == 1))
        if want != got:
            yield f"bfloat16: {int(b):08x} gives {got:04x}, brute force {want:04x}"


# ---- Round trips, and the reference system's int4 --------------------------------------------------------------------

def round_to(x, source):
    """float32 values rounded to a source type and widened again."""
    return rf.from_float_bytes(rf.to_float_bytes(x, source), source).reshape(x.shape)


def int4_reference(x, source):
    """Bytes of spec-attention's int4, whose rotated row is rounded to the key's type and whose range need not hold 0;
    with the rows where the contract promises the same bytes."""
    y = rf.butterflies(x * rf.SIGNS[:x.shape[1]])
    kept = round_to(y, source)
    low, high = kept.min(axis=1), kept.max(axis=1)
    with np.errstate(all="ignore"):
        same = np.isfinite(high - low) & (kept == y).all(axis=1) & (low <= 0) & (high >= 0)
        scale = np.maximum((high - low) / rf.F32(15.0), rf.SCALE_FLOOR)
        zero = np.clip(rf.rha(-low / scale), rf.F32(0), rf.F32(15))
        q = np.clip(rf.rha(kept * (rf.F32(1.0) / scale)[:, None] + zero[:, None]), rf.F32(0), rf.F32(15))
    return [(rf.pack_nibbles(q[r:r + 1].astype(np.uint8))[0], int(scale.view(np.uint32)[r]) & ~15 | int(zero[r]))
            if same[r] else None for r in range(x.shape[0])]


def check_reference():
    counts = {}
    for source in make_rows.SOURCES:
        for size in (64, 128, 256, 512):
            x, _ = make_rows.source_rows(source, size)
            numbers = np.random.default_rng(size).integers(-3, 4, x.shape)  # sums of few digits
            x = np.concatenate((x, np.ldexp(numbers.astype(rf.F32), np.arange(make_rows.ROWS)[:, None] % 9 - 6)))
            with np.errstate(all="ignore"):
                expected = int4_reference(x, source)
            codes, bits = rf.encode(x, "int4_per_token_head")
            for row, want in enumerate(expected):
                if want is not None and ((want[0] != codes[row]).any() or want[1] != int(bits[row])):
                    yield f"int4, {source} {size}, row {row}: not the reference system's bytes"
            counts[source] = counts.get(source, 0) + sum(w is not None for w in expected)
    print(f"int4 equal to the reference system's where promised: {counts}")
    if min(counts.values()) < 1000:
        yield f"too few rows to compare with the reference system: {counts}"


def check_round_trip():
    """Error at most half a step of the format (fp8: 2^-4 of the value, or half the smallest subnormal)."""
    for size in (1, 17, 64, 96, 320):
        x, _ = make_rows.source_rows("float32", size)
        x = x[np.isfinite(x).all(axis=1)]
        wide = x.astype(np.float64)
        for name in rf.PER_TOKEN:
            codes, bits = rf.encode(x, name)
            if name == "int4_per_token_head":
                y = rf.rotate(x).astype(np.float64)
                back = rf.decode_int4_rotated(codes, bits, size, np.float64)
            else:
                y, back = wide, rf.decode(codes, bits, name, size).astype(np.float64)
            scale = (bits & np.uint32(0xFFFFFFF0)).view(rf.F32).astype(np.float64)[:, None]
            half = np.maximum(np.abs(y) / 16, scale * 2.0**-10) if name.startswith("fp8") else scale / 2
            good = bits != rf.NAN_SCALE
            allowed = half * (1 + 2.0**-15) + np.abs(y) * 2.0**-18  # int4's scale loses four bits
            if not (np.abs(back - y)[good] <= allowed[good]).all():
                yield f"{name} {size}: a row comes back too far away"
            zero = rf.encode(np.zeros((1, size), rf.F32), name)
            if rf.decode(*zero, name, size).any():
                yield f"{name} {size}: zeros do not stay zeros"


def check_all():
    failed = []
    for check in (check_signs(), check_cases("hand.txt"), check_cases("whole.txt"), check_exact(), check_brute(),
                  check_reference(), check_round_trip()):
        failed += list(check)
    return failed
