# SPDX-License-Identifier: Apache-2.0
"""A second answer to the attention and merge requests, by scalar loops over the bytes of the file.

It shares nothing with golden_oracle.py or golden_io.py: its own reader, decoder, mask and softmax. With single=True
every operation is rounded to float32, which shows what part of the bounds a plain float32 implementation needs.
"""
import json
import math
import struct

import numpy as np

WIDTH = {'F32': 4, 'F16': 2, 'BF16': 2, 'I32': 4, 'I64': 8}


class Request:
  def __init__(self, path):
    data = open(path, 'rb').read()
    n = int.from_bytes(data[:8], 'little')
    self.head = json.loads(data[8:8 + n].decode())
    self.meta = self.head.pop('__metadata__')
    self.body = bytearray(data[8 + n:])

  def has(self, name):
    return name in self.head

  def shape(self, name):
    return self.head[name]['shape']

  def where(self, name, *index):
    at = 0
    for i, extent in zip(index, self.shape(name)):
      assert 0 <= i < extent
      at = at * extent + i
    return self.head[name]['data_offsets'][0] + at * WIDTH[self.head[name]['dtype']]

  def get(self, name, *index):
    at, dtype = self.where(name, *index), self.head[name]['dtype']
    if dtype == 'BF16':
      return struct.unpack('<f', b'\0\0' + bytes(self.body[at:at + 2]))[0]
    code = {'F32': '<f', 'F16': '<e', 'I32': '<i', 'I64': '<q'}[dtype]
    return struct.unpack_from(code, self.body, at)[0]

  def put(self, name, index, value):
    at, dtype = self.where(name, *index), self.head[name]['dtype']
    self.body[at:at + WIDTH[dtype]] = encode(dtype, value)

  def data(self, name):
    a, b = self.head[name]['data_offsets']
    return bytes(self.body[a:b])


def encode(dtype, value):
  if dtype == 'F32':
    return struct.pack('<f', value)
  if dtype == 'F16':
    return struct.pack('<e', value if abs(value) < 65520 else math.copysign(math.inf, value))
  code = struct.unpack('<I', struct.pack('<f', value))[0] >> 16
  if math.isinf(value):
    return struct.pack('<H', code)
  # The two neighbours in magnitude; the code after the largest finite one stands for 2^128 here.
  low, high = (math.inf if c & 0x7FFF == 0x7F80 else abs(struct.unpack('<f', struct.pack('<I', c << 16))[0])
               for c in (code, code + 1))
  down, up = abs(value) - low, (2.0 ** 128 if math.isinf(high) else high) - abs(value)
  return struct.pack('<H', code + 1 if up < down or (up == down and code & 1) else code)


def cache_index(r, block, offset, g, c):
  return (block, g, offset, c) if r.meta.get('kv_layout') == 'HND' else (block, offset, g, c)


def sees(r, s, q, k, kv_len):
  left, right = int(r.meta.get('window_left', '-1')), int(r.meta.get('window_right', '-1'))
  chunk, lookback = int(r.meta.get('chunk_size', '0')), int(r.meta.get('chunk_lookback', '0'))
  causal = r.meta.get('causal', '1' if r.has('k_cache') else '0') == '1'
  if r.has('causal_per_seq'):
    causal = r.get('causal_per_seq', s) == 1
  in_window = not (left >= 0 and q - k > left) and not (right >= 0 and k - q > right)
  if r.has('prefix_ranges') and (in_window or r.meta.get('prefix_clamp', '0') == '0'):
    for n in range(r.shape('prefix_ranges')[1]):
      a, b = r.get('prefix_ranges', s, n, 0), min(kv_len, r.get('prefix_ranges', s, n, 1))
      if a <= q < b and a <= k < b:
        return True
  if not in_window or (causal and k > q):
    return False
  if chunk == 0:
    return True
  ahead = math.floor(q / chunk) - math.floor(k / chunk)
  return 0 <= ahead <= lookback or (ahead == 0 and not causal)


def write(r):
  hnd = r.meta.get('kv_layout') == 'HND'
  block_size, kv_heads = (r.shape('k_cache')[n] for n in ((2, 1) if hnd else (1, 2)))
  for i in range(r.shape('slot_mapping')[0]):
    slot = r.get('slot_mapping', i)
    for new, pool in (('k', 'k_cache'), ('v', 'v_cache')):
      for g in range(kv_heads if slot >= 0 else 0):
        for c in range(r.shape(new)[2]):
          r.put(pool, cache_index(r, slot // block_size, slot % block_size, g, c), r.get(new, i, g, c))


def copies(path):
  """-> {name: bytes} of the results that must be exact"""
  r = Request(path)
  if r.has('slot_mapping'):
    write(r)
    return {name: r.data(name) for name in ('k_cache', 'v_cache')}
  if r.meta['op'] != 'cache_gather':
    return {}
  hnd = r.meta.get('kv_layout') == 'HND'
  block_size, kv_heads = (r.shape('k_cache')[n] for n in ((2, 1) if hnd else (1, 2)))
  dtype = {'float32': 'F32', 'float16': 'F16', 'bfloat16': 'BF16'}[r.meta.get('out_dtype', 'float32')]
  out = {'k': b'', 'v': b''}
  for s in range(r.shape('seq_lens')[0]):
    for j in range(r.get('seq_starts', s) if r.has('seq_starts') else 0, r.get('seq_lens', s)):
      block = r.get('block_table', s, j // block_size)
      for name in out:
        for g in range(kv_heads):
          for c in range(r.shape(name + '_cache')[3]):
            out[name] += encode(dtype, r.get(name + '_cache', *cache_index(r, block, j % block_size, g, c)))
  return out


def attention(path, single=False):
  """-> {(token, head): (out list, lse)}"""
  r = Request(path)
  f = np.float32 if single else float
  tokens, heads, d = r.shape('q')
  cached = r.has('k_cache')
  v_name, k_name = ('v_cache', 'k_cache') if cached else ('v', 'k')
  d_v = r.shape(v_name)[-1]
  hnd = r.meta.get('kv_layout') == 'HND'
  kv_heads = r.shape(k_name)[1 if not cached or hnd else 2]
  block_size = r.shape(k_name)[2 if hnd else 1] if cached else 0
  if r.has('slot_mapping'):
    write(r)
  scale = float(r.meta['scale']) if 'scale' in r.meta else 1 / math.sqrt(d)
  cap = float(r.meta.get('softcap', '0'))
  answer = {}
  for s in range(r.shape('query_start_loc')[0] - 1):
    first, q_len = r.get('query_start_loc', s), r.get('query_start_loc', s + 1) - r.get('query_start_loc', s)
    start = r.get('kv_start_loc', s) if r.has('kv_start_loc') else first
    kv_len = q_len
    if cached:
      kv_len = r.get('seq_lens', s)
    elif r.has('kv_start_loc'):
      kv_len = r.get('kv_start_loc', s + 1) - start

    def row(name, j, g):
      if not cached:
        return [f(r.get(name, start + j, g, c)) for c in range(r.shape(name)[2])]
      block = r.get('block_table', s, j // block_size)
      return [f(r.get(name, *cache_index(r, block, j % block_size, g, c))) for c in range(r.shape(name)[3])]

    for i in range(q_len):
      q = kv_len - q_len + i
      for h in range(heads):
        terms = []
        for j in range(kv_len):
          bias = f(0)
          if r.has('bias'):
            bias = f(r.get('bias', first + i, h if r.shape('bias')[1] == heads else 0, j))
          if not sees(r, s, q, j, kv_len) or bias == -math.inf:
            continue
          g = h * kv_heads // heads
          x = f(0)
          for a, b in zip([f(r.get('q', first + i, h, c)) for c in range(d)], row(k_name, j, g)):
            x = f(x + f(a * b))
          x = f(f(scale) * x)
          if cap > 0:
            x = f(f(cap) * f(math.tanh(f(x / f(cap)))))
          if r.has('alibi_slopes'):
            slope = f(r.get('alibi_slopes', h))
            if r.meta.get('alibi') == 'sqrt':
              x = f(x - f(slope * f(math.sqrt(q - j)))) if j <= q else x
            else:
              x = f(x - f(slope * f(q - j)))
          terms.append((f(x + bias), row(v_name, j, g)))
        answer[first + i, h] = soften(terms, d_v, r.get('sinks', h) if r.has('sinks') else -math.inf, f)
  return answer


def soften(terms, d_v, sink, f):
  if not terms:
    return [0.0] * d_v, -math.inf
  top = max(x for x, _ in terms)
  total, acc = f(0), [f(0)] * d_v
  for x, v in terms:
    w = f(math.exp(f(x - top)))
    total = f(total + w)
    acc = [f(a + f(w * e)) for a, e in zip(acc, v)]
  lse = f(top + f(math.log(total)))
  total = f(total + f(math.exp(f(f(sink) - top))))
  return [f(a / total) for a in acc], lse


def merge(path, single=False):
  r = Request(path)
  f = np.float32 if single else float
  parts = sum(1 for name in r.head if name.startswith('lse_'))
  tokens, heads, size = r.shape('out_0')
  answer = {}
  for t in range(tokens):
    for h in range(heads):
      terms, poisoned = [], False
      for p in range(parts):
        lse = r.get('lse_%d' % p, t, h)
        poisoned = poisoned or math.isnan(lse)
        if math.isfinite(lse):
          lse = f(f(lse) * f(math.log(2))) if r.meta.get('lse_base') == '2' else f(lse)
          terms.append((lse, [f(r.get('out_%d' % p, t, h, c)) for c in range(size)]))
      answer[t, h] = soften(terms, size, r.get('sinks', h) if r.has('sinks') else -math.inf, f)
      if poisoned:
        answer[t, h] = [math.nan] * size, math.nan
  return answer
