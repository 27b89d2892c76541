# SPDX-License-Identifier: Apache-2.0
"""The rows of every cache format, encoded and decoded by numpy, from the numerical contract alone.

Shares no code with the library. All arithmetic is float32, every operation rounded by itself; values of float16 and
bfloat16 sources are widened first, which is exact. Encoders take x [rows, D] float32 and give (codes, scales): codes
[rows, bytes] uint8 without padding, scales [rows] uint32 bits of the per-row scale, or None.
"""
import numpy as np

F32 = np.float32
U32 = np.uint32
NAN_SCALE = U32(0x7FC00000)
FLOATS = ("float32", "float16", "bfloat16")
STATIC = ("fp8_e4m3", "fp8_e5m2")
PER_TOKEN = ("int8_per_token_head", "fp8_per_token_head", "int4_per_token_head")
FLT_MIN = F32(2.0**-126)
SCALE_FLOOR = F32(1e-6)


# ---- 16-bit floats ---------------------------------------------------------------------------------------------------

def to_bf16(x):
    """float32 to bfloat16 bits, nearest even; NaN stays a quiet NaN."""
    bits = np.ascontiguousarray(x, F32).view(U32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x), bits >> 16 | 0x40, rounded).astype("<u2")


def from_bf16(bits):
    return (bits.astype(U32) << U32(16)).view(F32)


def to_float_bytes(x, name):
    """[rows, D] float32 to the bytes of a float format."""
    if name == "bfloat16":
        raw = to_bf16(x)
    else:
        with np.errstate(over="ignore"):
            raw = x.astype("<f2" if name == "float16" else "<f4")
    return np.ascontiguousarray(raw).view(np.uint8).reshape(x.shape[0], -1)


def from_float_bytes(raw, name):
    raw = np.ascontiguousarray(raw)
    if name == "bfloat16":
        return from_bf16(raw.view("<u2"))
    return raw.view("<f2" if name == "float16" else "<f4").astype(F32)


# ---- 8-bit floats ----------------------------------------------------------------------------------------------------

def fp8_value(code, name):
    """The value of one code as a Python float, from the definition of the type."""
    exponent_bits, bias = (4, 7) if name == "fp8_e4m3" else (5, 15)
    mantissa_bits = 7 - exponent_bits
    sign = -1.0 if code & 0x80 else 1.0
    exponent = (code & 0x7F) >> mantissa_bits
    mantissa = code & (1 << mantissa_bits) - 1
    if name == "fp8_e4m3" and code & 0x7F == 0x7F:
        return float("nan")
    if name == "fp8_e5m2" and exponent == 31:
        return sign * float("inf") if mantissa == 0 else float("nan")
    if exponent == 0:
        return sign * mantissa * 2.0**(1 - bias - mantissa_bits)
    return sign * (1 + mantissa / 2**mantissa_bits) * 2.0**(exponent - bias)


FP8_TABLE = {name: np.array([fp8_value(c, name) for c in range(256)], F32) for name in STATIC}
FP8_TOP = {"fp8_e4m3": 0x7E, "fp8_e5m2": 0x7B}  # the largest finite code
# Every value halfway between two neighbours of the same sign; exact in float32.
FP8_TIES = {name: ((FP8_TABLE[name][:FP8_TOP[name]].astype(np.float64) +
                    FP8_TABLE[name][1:FP8_TOP[name] + 1]) / 2).astype(F32) for name in STATIC}


def to_fp8(y, name):
    """Nearest code, ties to the even one, beyond the range the largest finite code, NaN to 7F."""
    size = np.abs(y)
    ties = FP8_TIES[name]
    code = np.searchsorted(ties, size, side="left")  # how many midpoints lie below
    at = np.minimum(code, len(ties) - 1)
    code = code + ((size == ties[at]) & (code % 2 == 1))
    code = np.where(np.signbit(y), code + 0x80, code)
    return np.where(np.isnan(y), 0x7F, code).astype(np.uint8)


# ---- Rotation of int4 rows -------------------------------------------------------------------------------------------

def mt19937(seed, count):
    """The first outputs of the standard 32-bit Mersenne Twister."""
    state = [seed & 0xFFFFFFFF]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + i) & 0xFFFFFFFF)
    out, at = [], 624
    while len(out) < count:
        if at == 624:
            for i in range(624):
                y = state[i] & 0x80000000 | state[(i + 1) % 624] & 0x7FFFFFFF
                state[i] = state[(i + 397) % 624] ^ y >> 1 ^ (0x9908B0DF if y & 1 else 0)
            at = 0
        y = state[at]
        at += 1
        y ^= y >> 11
        y ^= y << 7 & 0x9D2C5680
        y ^= y << 15 & 0xEFC60000
        out.append(y ^ y >> 18)
    return out


def sign_vector(size):
    """+1 where bit 23 of the draw is 0."""
    return np.array([-1.0 if draw >> 23 & 1 else 1.0 for draw in mt19937(0x9E3779B9, size)], F32)


SIGNS = sign_vector(4096)


def blocks_of(size):
    """[(start, length, factor)]: descending powers of two, factor 2^floor(log2(n0 / n) / 2)."""
    found, start = [], 0
    while start < size:
        length = 1 << (size - start).bit_length() - 1
        first = found[0][1] if found else length
        found.append((start, length, 2 ** (((first // length).bit_length() - 1) // 2)))
        start += length
    return found


def butterflies(x):
    """Unnormalised Walsh-Hadamard product of [rows, n] in x's own type: h = 1, 2, 4, ... as (a + b, a - b)."""
    rows, n = x.shape
    h = 1
    while h < n:
        pairs = x.reshape(rows, n // (2 * h), 2, h)
        x = np.stack((pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]), axis=2).reshape(rows, n)
        h *= 2
    return x


def rotate(x):
    size = x.shape[1]
    signed = x * SIGNS[:size]
    with np.errstate(over="ignore", invalid="ignore"):
        return np.concatenate([butterflies(signed[:, a:a + n]) * F32(f) for a, n, f in blocks_of(size)], axis=1)


def unrotate(y):
    """The inverse in y's own type; each block is divided by its size before it is summed, so nothing overflows."""
    size = y.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [butterflies(y[:, a:a + n] / y.dtype.type(f * n)) for a, n, f in blocks_of(size)]
    return np.concatenate(parts, axis=1) * SIGNS[:size].astype(y.dtype)


# ---- Quantisers ------------------------------------------------------------------------------------------------------

def rha(y):
    return np.trunc(y + np.copysign(F32(0.5), y))


def clear_bad(codes, scales, bad):
    codes[bad] = 0
    scales = np.ascontiguousarray(scales, F32).view(U32).copy() if scales.dtype == F32 else scales
    scales[bad] = NAN_SCALE
    return codes, scales


def encode_static(x, name, scale):
    with np.errstate(over="ignore", invalid="ignore"):
        return to_fp8(x / np.asarray(scale, F32).reshape(-1, 1), name), None


def encode_symmetric(x, name):
    top = F32(127.0 if name == "int8_per_token_head" else 448.0)
    largest = np.abs(x).max(axis=1)  # NaN if one is in the row
    bad = ~np.isfinite(largest)
    with np.errstate(invalid="ignore"):
        scale = np.maximum(largest / top, SCALE_FLOOR)
        y = x * (F32(1.0) / scale)[:, None]
        y[bad] = 0
    if name == "int8_per_token_head":
        codes = np.clip(rha(y), F32(-128), F32(127)).astype(np.int8).view(np.uint8)
    else:
        codes = to_fp8(y, "fp8_e4m3")
    return clear_bad(codes, scale, bad)


def pack_nibbles(q):
    if q.shape[1] % 2:
        q = np.concatenate((q, np.zeros((q.shape[0], 1), q.dtype)), axis=1)
    return (q[:, 0::2] | q[:, 1::2] << 4).astype(np.uint8)


def quantise_int4(y):
    """The second half of the int4 encoder: rotated rows to nibbles [rows, D] and scale bits."""
    low = np.minimum(y.min(axis=1), F32(0))
    high = np.maximum(y.max(axis=1), F32(0))
    with np.errstate(over="ignore", invalid="ignore"):
        extent = high - low
        bad = ~np.isfinite(extent)
        scale = np.maximum(extent / F32(15.0), SCALE_FLOOR)
        zero = np.clip(rha(-low / scale), F32(0), F32(15))
        q = np.clip(rha(y * (F32(1.0) / scale)[:, None] + zero[:, None]), F32(0), F32(15))
    q[bad] = 0
    zero[bad] = 0
    bits = scale.view(U32) & U32(0xFFFFFFF0) | zero.astype(U32)
    return clear_bad(q.astype(np.uint8), bits, bad)


def encode_int4(x):
    q, bits = quantise_int4(rotate(x))
    return pack_nibbles(q), bits


def encode(x, name, scale=None):
    """(codes, scale bits or None) of one format; `scale`: a static scale, one number or one per row."""
    x = np.ascontiguousarray(x, F32)
    if name in FLOATS:
        return to_float_bytes(x, name), None
    if name in STATIC:
        return encode_static(x, name, F32(1.0) if scale is None else scale)
    return encode_int4(x) if name == "int4_per_token_head" else encode_symmetric(x, name)


# ---- Dequantisers ----------------------------------------------------------------------------------------------------

def unpack_nibbles(codes, size):
    q = np.empty((codes.shape[0], 2 * codes.shape[1]), np.uint8)
    q[:, 0::2], q[:, 1::2] = codes & 15, codes >> 4
    return q[:, :size]


def decode_int4_rotated(codes, bits, size, kind):
    """(q - zero) * scale in float32 or, exactly, in float64."""
    scale = (bits & U32(0xFFFFFFF0)).view(F32).astype(kind)
    zero = (bits & U32(15)).astype(kind)
    with np.errstate(over="ignore", invalid="ignore"):
        return (unpack_nibbles(codes, size).astype(kind) - zero[:, None]) * scale[:, None]


def decode_int4(codes, bits, size, exact):
    """Rows behind the inverse rotation. exact: sums in float64, which holds them whole, one rounding. Zeros: +0."""
    y = unrotate(decode_int4_rotated(codes, bits, size, np.float64 if exact else F32))
    with np.errstate(over="ignore"):
        return y.astype(F32) + F32(0)


def decode(codes, bits, name, size, scale=None, exact=True):
    """float32 [rows, D] that a reader sees."""
    with np.errstate(over="ignore", invalid="ignore"):
        if name in FLOATS:
            return from_float_bytes(codes, name)
        if name in STATIC:
            return FP8_TABLE[name][codes] * np.asarray(F32(1.0) if scale is None else scale, F32).reshape(-1, 1)
        if name == "int4_per_token_head":
            return decode_int4(codes, bits, size, exact)
        value = codes.view(np.int8).astype(F32) if name == "int8_per_token_head" else FP8_TABLE["fp8_e4m3"][codes]
        return value * bits.view(F32)[:, None]


# ---- Rows as they lie in a cache -------------------------------------------------------------------------------------

def pad4(part):
    return np.pad(part, ((0, 0), (0, -part.shape[1] % 4)))


def scale_bytes(bits):
    return np.ascontiguousarray(bits, "<u4").view(np.uint8).reshape(-1, 4)


def row_bytes(codes, bits, separate):
    """K or V rows: with inline scales codes, zeros to the next multiple of 4, scale; otherwise the codes alone."""
    if bits is None or separate:
        return codes
    return np.concatenate((pad4(codes), scale_bytes(bits)), axis=1)


def encode_latent(kv_c, k_pe, name, rotary, separate=False, scale=None):
    """(row bytes, scale bits or None) of a latent format. rotary: "float16" or "bfloat16", where that applies."""
    kv_c, k_pe = np.ascontiguousarray(kv_c, F32), np.ascontiguousarray(k_pe, F32)
    if name in FLOATS or name == "fp8_e4m3":
        return encode(np.concatenate((kv_c, k_pe), axis=1), name, scale)[0], None
    elements = to_float_bytes(k_pe, rotary)
    if name == "fp8_ds_mla":
        codes, scales = encode_tiles(kv_c)
        return np.concatenate((codes, scales, elements), axis=1), None
    codes, bits = encode(kv_c, name)
    row = np.concatenate((pad4(codes), elements), axis=1)
    row = pad4(row)
    return (row, bits) if separate else (np.concatenate((row, scale_bytes(bits)), axis=1), bits)


def encode_tiles(kv_c):
    """fp8_ds_mla: four tiles of 128, each e4m3(x / scale) with scale max(absmax / 448, FLT_MIN)."""
    codes, scales = [], []
    for at in range(0, 512, 128):
        x = kv_c[:, at:at + 128]
        largest = np.abs(x).max(axis=1)
        bad = ~np.isfinite(largest)
        with np.errstate(over="ignore", invalid="ignore"):
            scale = np.maximum(largest / F32(448.0), FLT_MIN)
            part, bits = clear_bad(to_fp8(x / scale[:, None], "fp8_e4m3"), scale, bad)
        codes.append(part)
        scales.append(scale_bytes(bits))
    return np.concatenate(codes, axis=1), np.concatenate(scales, axis=1)


def decode_latent(row, bits, name, rank, width, rotary, scale=None):
    """float32 [rows, rank + width]."""
    if name in FLOATS or name == "fp8_e4m3":
        return decode(row, None, name, rank + width, scale)
    if name == "fp8_ds_mla":
        scales = np.ascontiguousarray(row[:, 512:528]).view("<f4")
        with np.errstate(over="ignore", invalid="ignore"):
            latent = (FP8_TABLE["fp8_e4m3"][row[:, :512]].reshape(-1, 4, 128) * scales[:, :, None]).reshape(-1, 512)
        return np.concatenate((latent, from_float_bytes(row[:, 528:656], rotary)), axis=1)
    count = (rank + 1) // 2 if name == "int4_per_token_head" else rank
    at = count + -count % 4
    latent = decode(np.ascontiguousarray(row[:, :count]), bits, name, rank)
    return np.concatenate((latent, from_float_bytes(row[:, at:at + 2 * width], rotary)), axis=1)
