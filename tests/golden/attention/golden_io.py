# SPDX-License-Identifier: Apache-2.0
"""Files, number formats and random data of the golden attention cases.

A tensor is (type, array of raw bits): uint32 for F32, uint16 for F16 and BF16, int32 and int64 for the integers, so
that NaN payloads survive. Conversions round to nearest even and are written out here; numpy's float16 is not used.
The generator of random bits is splitmix64 in integer arithmetic, so its values do not depend on the numpy version.
"""
import json
import struct

import numpy as np

RAW = {'F32': np.uint32, 'F16': np.uint16, 'BF16': np.uint16, 'I32': np.int32, 'I64': np.int64}
NAMES = {'float32': 'F32', 'float16': 'F16', 'bfloat16': 'BF16'}
LONG = {v: k for k, v in NAMES.items()}


class Tensor:
  def __init__(self, dtype, raw):
    self.dtype = dtype
    self.raw = np.ascontiguousarray(raw, dtype=RAW[dtype])
    self.shape = self.raw.shape

  def copy(self):
    return Tensor(self.dtype, self.raw.copy())


def f32_bits(x):
  return np.asarray(x, dtype=np.float32).view(np.uint32)


def bits_f32(b):
  return np.asarray(b, dtype=np.uint32).view(np.float32)


def f32_to_f16_bits(bits):
  bits = np.asarray(bits, dtype=np.uint32)
  sign = (bits >> np.uint32(16)) & np.uint32(0x8000)
  mag = (bits & np.uint32(0x7FFFFFFF)).astype(np.int64)
  normal = ((mag + 0xFFF + ((mag >> 13) & 1)) >> 13) - (112 << 10)
  small = np.where(mag < 0x38800000, mag, 0).astype(np.uint32)
  subnormal = np.rint(bits_f32(small).astype(np.float64) * 2.0 ** 24).astype(np.int64)
  out = np.where(mag < 0x38800000, subnormal, normal)
  out = np.where(mag >= 0x477FF000, 0x7C00, out)
  out = np.where(mag > 0x7F800000, 0x7E00 | ((mag >> 13) & 0x3FF), out)
  return (out.astype(np.uint32) | sign).astype(np.uint16)


def f32_to_bf16_bits(bits):
  bits = np.asarray(bits, dtype=np.uint32)
  wide = bits.astype(np.int64)
  out = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16
  out = np.where((wide & 0x7FFFFFFF) > 0x7F800000, (wide >> 16) | 0x40, out)
  return out.astype(np.uint16)


def f16_bits_to_f32_bits(bits):
  bits = np.asarray(bits, dtype=np.uint16).astype(np.int64)
  exp = (bits >> 10) & 31
  frac = bits & 0x3FF
  value = np.where(exp == 0, frac * 2.0 ** -24, (1024 + frac) * 2.0 ** (np.where(exp == 31, 0, exp) - 25.0))
  out = f32_bits(value.astype(np.float32)).astype(np.int64)
  out = np.where(exp == 31, 0x7F800000 | (frac << 13), out)
  return (out | ((bits & 0x8000) << 16)).astype(np.uint32)


def to_f32_bits(t):
  if t.dtype == 'F32':
    return t.raw
  if t.dtype == 'F16':
    return f16_bits_to_f32_bits(t.raw)
  return t.raw.astype(np.uint32) << np.uint32(16)


def from_f32_bits(dtype, bits):
  if dtype == 'F32':
    return Tensor('F32', bits)
  return Tensor(dtype, f32_to_f16_bits(bits) if dtype == 'F16' else f32_to_bf16_bits(bits))


def convert(t, dtype):
  """t in another float type; the same type keeps every bit."""
  return t.copy() if t.dtype == dtype else from_f32_bits(dtype, to_f32_bits(t))


def to64(t):
  with np.errstate(invalid='ignore'):
    return bits_f32(to_f32_bits(t)).astype(np.float64)


def from64(dtype, x):
  return from_f32_bits(dtype, f32_bits(np.asarray(x, dtype=np.float64).astype(np.float32)))


def split64(x):
  """A float64 array as a float32 and the float32 of the rest."""
  x = np.asarray(x, dtype=np.float64)
  hi = x.astype(np.float32)
  with np.errstate(invalid='ignore'):
    lo = np.where(np.isfinite(hi), x - hi.astype(np.float64), 0.0).astype(np.float32)
  return Tensor('F32', f32_bits(hi)), Tensor('F32', f32_bits(lo))


def join64(hi, lo):
  return to64(hi) + to64(lo)


def save(path, tensors, meta, order=None, pad=False):
  """Writes a safetensors file; order names the tensors in the order of their data, pad aligns the header."""
  header = {'__metadata__': meta} if meta else {}
  chunks, at = [], 0
  for name in order or tensors:
    t = tensors[name]
    data = t.raw.astype(t.raw.dtype.newbyteorder('<')).tobytes()
    header[name] = {'dtype': t.dtype, 'shape': list(t.shape), 'data_offsets': [at, at + len(data)]}
    chunks.append(data)
    at += len(data)
  text = json.dumps(header, separators=(',', ':')).encode()
  if pad:
    text += b' ' * (-len(text) % 8)
  with open(path, 'wb') as f:
    f.write(struct.pack('<Q', len(text)) + text + b''.join(chunks))


def load(path):
  """-> (tensors, metadata)"""
  with open(path, 'rb') as f:
    data = f.read()
  size = struct.unpack('<Q', data[:8])[0]
  header = json.loads(data[8:8 + size])
  meta = header.pop('__metadata__', {})
  tensors = {}
  for name, e in header.items():
    a, b = e['data_offsets']
    raw = np.frombuffer(data[8 + size + a:8 + size + b], dtype=np.dtype(RAW[e['dtype']]).newbyteorder('<'))
    tensors[name] = Tensor(e['dtype'], raw.reshape(e['shape']))
  return tensors, meta


class Rng:
  """splitmix64; the n-th value is a function of the seed and n alone."""

  def __init__(self, seed):
    self.state = seed & (2 ** 64 - 1)

  def bits(self, shape):
    n = int(np.prod(shape, dtype=np.int64))
    gamma = 0x9E3779B97F4A7C15
    with np.errstate(over='ignore'):
      z = np.uint64(self.state) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(gamma)
      z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
      z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
      z = z ^ (z >> np.uint64(31))
    self.state = (self.state + gamma * n) & (2 ** 64 - 1)
    return z.reshape(shape)

  def below(self, n):
    return int(self.bits((1,))[0]) % n

  def between(self, a, b):
    """An integer of a..b, both included."""
    return a + self.below(b - a + 1)

  def pick(self, items):
    return items[self.below(len(items))]

  def chance(self, percent):
    return self.below(100) < percent

  def shuffled(self, items):
    items = list(items)
    for i in range(len(items) - 1, 0, -1):
      j = self.below(i + 1)
      items[i], items[j] = items[j], items[i]
    return items

  def uniform(self, shape, lo, hi):
    u = (self.bits(shape) >> np.uint64(40)).astype(np.float64) * 2.0 ** -24
    return lo + (hi - lo) * u

  def bell(self, shape, width):
    return sum(self.uniform(shape, -1.0, 1.0) for _ in range(4)) * width

  def garbage(self, dtype, shape):
    """Raw bits that must never matter: NaN of several payloads, infinities and the largest finite values."""
    kinds = {'F32': [0x7FC00000, 0xFFFFFFFF, 0x7F800001, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0xFFC12345],
             'F16': [0x7E00, 0xFFFF, 0x7C01, 0x7C00, 0xFC00, 0x7BFF, 0xFE12],
             'BF16': [0x7FC0, 0xFFFF, 0x7F81, 0x7F80, 0xFF80, 0x7F7F, 0xFFC1],
             'I32': [-1, 2 ** 31 - 1, -2 ** 31, 1 << 20]}[dtype]
    index = (self.bits(shape) >> np.uint64(33)).astype(np.int64) % len(kinds)
    return Tensor(dtype, np.array(kinds, dtype=RAW[dtype])[index])
