# SPDX-License-Identifier: Apache-2.0
"""The numerical contract in float64: the answer of a request, and how far a correct result may be from it.

It reads a request as a stranger would (tensors and metadata, nothing else) and shares no code with the library.
answer() gives the tensors of the expected file. Keys hidden by the mask are dropped by select, so NaN in unowned
places cannot enter; a table entry outside the pool counts as NaN if anything should look at it.
"""
import math

import numpy as np

import golden_io as io

R_OUT = {'F32': 2.0 ** -24, 'F16': 2.0 ** -11, 'BF16': 2.0 ** -8}
R_P = {'F32': 0.0, 'F16': 2.0 ** -11, 'BF16': 2.0 ** -8}


def visible(q, k, kv_len, causal, opt, ranges):
  """Step 4 of section 1 for arrays of positions q [rows, 1] and k [1, keys]."""
  near = np.ones(np.broadcast(q, k).shape, dtype=bool)
  if opt['left'] >= 0:
    near &= q - k <= opt['left']
  if opt['right'] >= 0:
    near &= k - q <= opt['right']
  plain = near.copy()
  if causal:
    plain &= k <= q
  if opt['chunk'] > 0:
    back = q // opt['chunk'] - k // opt['chunk']
    ok = (back >= 0) & (back <= opt['lookback'])
    if not causal:
      ok |= back == 0
    plain &= ok
  prefix = np.zeros_like(plain)
  for a, b in ranges:
    b = min(b, kv_len)
    prefix |= (q >= a) & (q < b) & (k >= a) & (k < b)
  if opt['clamp']:
    prefix &= near
  return (plain | prefix) & (k < kv_len)


def options(tensors, meta):
  cached = 'k_cache' in tensors
  return {'left': int(meta.get('window_left', -1)), 'right': int(meta.get('window_right', -1)),
          'chunk': int(meta.get('chunk_size', 0)), 'lookback': int(meta.get('chunk_lookback', 0)),
          'clamp': meta.get('prefix_clamp', '0') == '1', 'softcap': float(meta.get('softcap', 0)),
          'causal': meta.get('causal', '1' if cached else '0') == '1', 'alibi': meta.get('alibi', 'linear')}


def sequences(tensors):
  """-> [(first row, q_len, kv_len)]"""
  start = [int(x) for x in tensors['query_start_loc'].raw]
  lens = [b - a for a, b in zip(start, start[1:])]
  if 'k_cache' in tensors:
    keys = [int(x) for x in tensors['seq_lens'].raw]
  elif 'kv_start_loc' in tensors:
    at = [int(x) for x in tensors['kv_start_loc'].raw]
    keys = [b - a for a, b in zip(at, at[1:])]
  else:
    keys = lens
  return list(zip(start, lens, keys))


def mask_of(tensors, meta, s, seq):
  """The visible (row, key) pairs of sequence s, before any bias."""
  _, q_len, kv_len = seq
  opt = options(tensors, meta)
  causal = bool(tensors['causal_per_seq'].raw[s]) if 'causal_per_seq' in tensors else opt['causal']
  ranges = tensors['prefix_ranges'].raw[s].tolist() if 'prefix_ranges' in tensors else []
  q = (kv_len - q_len + np.arange(q_len))[:, None]
  return visible(q, np.arange(kv_len)[None, :], kv_len, causal, opt, ranges)


def by_position(cache, meta):
  """A pool as [slots, kv_heads, size], a view in NHD order."""
  raw = cache.raw if meta.get('kv_layout', 'NHD') == 'NHD' else cache.raw.transpose(0, 2, 1, 3)
  return raw


def write(tensors, meta):
  """The two pools after the named slots have been written."""
  pools = []
  for new, pool in (('k', 'k_cache'), ('v', 'v_cache')):
    cache = tensors[pool].copy()
    view = by_position(cache, meta)
    rows = io.convert(tensors[new], cache.dtype).raw
    for i, slot in enumerate(tensors['slot_mapping'].raw.tolist()):
      if slot >= 0:
        view[slot // view.shape[1], slot % view.shape[1]] = rows[i]
    pools.append(cache)
  return pools


def paged(cache, meta, table, first, count):
  """Rows [count, kv_heads, size] in float64 of positions first, first + 1, ... through one table row."""
  view = by_position(cache, meta)
  data = io.to64(io.Tensor(cache.dtype, view))
  size = view.shape[1]
  rows = np.full((count, view.shape[2], view.shape[3]), np.nan)
  for j in range(count):
    column = (first + j) // size
    block = int(table[column]) if column < len(table) else -1
    if 0 <= block < view.shape[0]:
      rows[j] = data[block, (first + j) % size]
  return rows


def bounds(rows, weight, v, s_size, kv_len, r_out, r_p, floor, head_size, lse):
  """Section 10 for rows [n, d_v]; weight [n, keys] with the sink in its denominator, s_size [n] = Smax."""
  d_v = v.shape[1]
  norm = np.sqrt((v * v).sum(axis=1)) if v.shape[0] else np.zeros(0)
  a = (weight * norm).sum(axis=1) / math.sqrt(d_v)
  b = np.sqrt((weight ** 2 * norm ** 2).sum(axis=1) / d_v)
  rms = np.sqrt((rows * rows).mean(axis=1))
  u = 2.0 ** -22 + 2.0 ** -25 * math.sqrt(kv_len) + 2.0 ** -30 * kv_len + 2.0 ** -23 * s_size
  out = r_out * rms + r_p * (rms + b) + u * (a + 2.0 ** -100) + floor
  size = np.maximum(np.abs(np.where(np.isfinite(lse), lse, 0.0)), s_size)
  return out, 2.0 ** -20 + (2.0 ** -21 + 2.0 ** -26 * head_size) * size


def attend(q, k, v, seen, bias, scale, softcap, sink):
  """One head of one sequence -> out, lse, weights (after the sink), Smax."""
  s = scale * (q @ np.where(np.isfinite(k), k, 0.0).T)
  size = abs(scale) * np.sqrt((q * q).sum(axis=1))[:, None] * np.sqrt((k * k).sum(axis=1))[None, :]
  # A visible key that is not finite shows in its row; it never happens in a request whose answer is stored.
  s = np.where(np.isfinite(k).all(axis=1)[None, :], s, np.nan)
  if softcap > 0:
    s = softcap * np.tanh(s / softcap)
  seen = seen & ~np.isneginf(bias)
  s = np.where(seen, s + np.where(seen, bias, 0.0), -np.inf)
  top = s.max(axis=1, initial=-np.inf)
  live = seen.any(axis=1)
  top = np.where(live, top, 0.0)
  e = np.exp(s - top[:, None])
  total = e.sum(axis=1)
  lse = np.where(live, top + np.log(np.where(live, total, 1.0)), -np.inf)
  share = e / np.where(live, total, 1.0)[:, None]
  weight = share / (1.0 + np.exp(sink - np.where(live, lse, 0.0)))[:, None]
  v = np.where((seen.any(axis=0))[:, None], v, 0.0)
  size = np.where(seen & (share >= 2.0 ** -30), size + np.abs(np.where(seen, bias, 0.0)), 0.0)
  return weight @ v, lse, weight, v, size.max(axis=1, initial=0.0), live


def biases(tensors, opt, seq, h):
  """ALiBi and the caller's bias of head h: [q_len, kv_len]."""
  first, q_len, kv_len = seq
  total = np.zeros((q_len, kv_len))
  if 'alibi_slopes' in tensors:
    slope = io.to64(tensors['alibi_slopes'])[h]
    back = (kv_len - q_len + np.arange(q_len))[:, None] - np.arange(kv_len)[None, :]
    total -= slope * (back if opt['alibi'] == 'linear' else np.sqrt(np.maximum(back, 0)))
  if 'bias' in tensors:
    given = io.to64(tensors['bias'])
    total += given[first:first + q_len, h if given.shape[1] > 1 else 0, :kv_len]
  return total


def attention(tensors, meta):
  opt = options(tensors, meta)
  result = {}
  caches = [tensors.get('k_cache'), tensors.get('v_cache')]
  if 'slot_mapping' in tensors:
    caches = write(tensors, meta)
    result = {'k_cache': caches[0], 'v_cache': caches[1]}
  q = io.to64(tensors['q'])
  tokens, heads, head_size = q.shape
  scale = float(meta['scale']) if 'scale' in meta else 1.0 / math.sqrt(head_size)
  out_type = io.NAMES[meta['out_dtype']] if 'out_dtype' in meta else tensors['q'].dtype
  d_v = (caches[1] if caches[1] is not None else tensors['v']).shape[-1]
  sinks = io.to64(tensors['sinks']) if 'sinks' in tensors else np.full(heads, -np.inf)
  out, lse = np.zeros((tokens, heads, d_v)), np.zeros((tokens, heads))
  out_bound, lse_bound = np.zeros((tokens, heads)), np.zeros((tokens, heads))
  at = 0
  for s, seq in enumerate(sequences(tensors)):
    first, q_len, kv_len = seq
    seen = mask_of(tensors, meta, s, seq)
    if caches[0] is not None:
      k, v = (paged(c, meta, tensors['block_table'].raw[s], 0, kv_len) for c in caches)
    else:
      at = int(tensors['kv_start_loc'].raw[s]) if 'kv_start_loc' in tensors else first
      k, v = (io.to64(tensors[n])[at:at + kv_len] for n in ('k', 'v'))
    rows = slice(first, first + q_len)
    for h in range(heads):
      g = h // (heads // k.shape[1])
      o, l, weight, vv, size, live = attend(q[rows, h], k[:, g], v[:, g], seen, biases(tensors, opt, seq, h), scale,
                                            opt['softcap'], sinks[h])
      ob, lb = bounds(o, weight, vv, size, kv_len, R_OUT[out_type], R_P[tensors['q'].dtype],
                      2.0 ** -25 if out_type == 'F16' else 0.0, head_size, l)
      out[rows, h], lse[rows, h] = o, l
      out_bound[rows, h], lse_bound[rows, h] = np.where(live, ob, 0.0), np.where(live, lb, 0.0)
  return pack(result, out, lse, out_bound, lse_bound)


def pack(result, out, lse, out_bound, lse_bound):
  result['out_hi'], result['out_lo'] = io.split64(out)
  result['lse_hi'], result['lse_lo'] = io.split64(lse)
  result['out_bound'] = io.from64('F32', out_bound)
  result['lse_bound'] = io.from64('F32', lse_bound)
  return result


def merge_row(outs, lses, sink, out_type):
  """outs [parts, size], lses [parts] -> out, lse and the two bounds; bounds count the elements that are not NaN."""
  d_v = outs.shape[1]
  if np.isnan(lses).any():
    return np.full(d_v, np.nan), np.nan, 0.0, 0.0
  live = np.isfinite(lses)
  if not live.any():
    return np.zeros(d_v), -np.inf, 0.0, 0.0
  outs, part = outs[live], lses[live]
  top = part.max()
  w = np.exp(part - top)
  lse = top + math.log(w.sum())
  p = w / w.sum() / (1.0 + math.exp(min(sink - lse, 700.0)))
  nan = np.isnan(outs).any(axis=0)
  out = np.where(nan, np.nan, (p[:, None] * np.where(np.isnan(outs), 0.0, outs)).sum(axis=0))
  if nan.all():
    return out, lse, 0.0, 2.0 ** -20 + 2.0 ** -21 * abs(lse)
  size = np.abs(part - top)[w / w.sum() >= 2.0 ** -30].max(initial=0.0)
  ob, lb = bounds(out[~nan][None], p[None], outs[:, ~nan], np.array([size]), len(lses), R_OUT[out_type], 0.0,
                  2.0 ** -25 if out_type == 'F16' else 0.0, 0, np.array([lse]))
  return out, lse, ob[0], lb[0]


def merge(tensors, meta):
  parts = sum(1 for n in tensors if n.startswith('out_'))
  outs = np.stack([io.to64(tensors['out_%d' % r]) for r in range(parts)])
  lses = np.stack([io.to64(tensors['lse_%d' % r]) for r in range(parts)])
  if meta.get('lse_base') == '2':
    lses = lses * math.log(2.0)
  out_type = io.NAMES[meta.get('out_dtype', 'float32')]
  _, tokens, heads, d_v = outs.shape
  sinks = io.to64(tensors['sinks']) if 'sinks' in tensors else np.full(heads, -np.inf)
  out, lse = np.zeros((tokens, heads, d_v)), np.zeros((tokens, heads))
  out_bound, lse_bound = np.zeros((tokens, heads)), np.zeros((tokens, heads))
  for t in range(tokens):
    for h in range(heads):
      out[t, h], lse[t, h], out_bound[t, h], lse_bound[t, h] = merge_row(outs[:, t, h], lses[:, t, h], sinks[h],
                                                                         out_type)
  return pack({}, out, lse, out_bound, lse_bound)


def gather(tensors, meta):
  dtype = io.NAMES[meta.get('out_dtype', 'float32')]
  result = {}
  lens = tensors['seq_lens'].raw.tolist()
  starts = tensors['seq_starts'].raw.tolist() if 'seq_starts' in tensors else [0] * len(lens)
  for name, pool in (('k', 'k_cache'), ('v', 'v_cache')):
    cache = tensors[pool]
    rows = [paged(cache, meta, tensors['block_table'].raw[s], a, b - a) for s, (a, b) in enumerate(zip(starts, lens))]
    result[name] = io.from64(dtype, np.concatenate(rows))
  return result


def answer(tensors, meta):
  op = meta['op']
  if op == 'attention':
    return attention(tensors, meta)
  if op == 'merge':
    return merge(tensors, meta)
  if op == 'cache_gather':
    return gather(tensors, meta)
  k_cache, v_cache = write(tensors, meta)
  return {'k_cache': k_cache, 'v_cache': v_cache}
