# SPDX-License-Identifier: Apache-2.0
"""Builds the requests of the golden cases: build(spec, seed) -> (tensors, metadata).

A spec maps each factor of FACTORS to one of its levels. Lengths, options and data are drawn from the seed. Every
position that no row of its sequence may see is filled with garbage, in pools and in fresh keys and values alike; pool
blocks are permuted; table columns that nobody sees hold ids outside the pool.
"""
import functools

import numpy as np

import golden_io as io
import golden_oracle as oracle

TYPES = ['f32', 'f16', 'bf16']
TYPE = {'f32': 'F32', 'f16': 'F16', 'bf16': 'BF16'}
NA = '-'
# Factor -> levels. The first level of a factor in OPTIONAL means "absent" and needs no pairs of its own.
FACTORS = {
  'src': ['read', 'write', 'encoder', 'packed', 'cross'],
  'causal': ['off', 'on', 'per_seq'],
  'window': ['none', 'left', 'right', 'both', 'zero'],
  'chunk': ['none', 'lb0', 'lb1', 'lb2'],
  'softcap': ['none', 'softcap'],
  'alibi': ['none', 'linear', 'sqrt'],
  'sinks': ['none', 'finite', 'mixed'],
  'prefix': ['none', 'plain', 'clamp'],
  'bias': ['none', 'heads', 'one'],
  'group': [1, 2, 3, 5],
  'size': ['eq', 'ne'],
  'q': TYPES, 'out': TYPES, 'kv': TYPES, 'fresh': [NA] + TYPES,
  'layout': [NA, 'nhd', 'hnd'],
  'block': [NA, 1, 3, 4, 16],
  'qlong': ['no', 'qlong'], 'qempty': ['no', 'qempty'], 'kvempty': ['no', 'kvempty'], 'trailing': ['no', 'trailing'],
  'skip': ['no', 'skip'], 'few': ['no', 'few'],
}
OPTIONAL = ['window', 'chunk', 'softcap', 'alibi', 'sinks', 'prefix', 'bias', 'qlong', 'qempty', 'kvempty', 'trailing',
            'skip', 'few', 'fresh', 'layout', 'block']
# Pairs that cannot occur, or where one feature takes every effect from the other: (factor, level, factor, levels, why).
EXCLUSIVE = [
  ('src', 'encoder', 'layout', None, 'no cache'), ('src', 'packed', 'layout', None, 'no cache'),
  ('src', 'encoder', 'block', None, 'no cache'), ('src', 'packed', 'block', None, 'no cache'),
  ('src', 'encoder', 'qlong', None, 'kv_len is q_len'), ('src', 'encoder', 'kvempty', None, 'kv_len is q_len'),
  ('src', 'write', 'qlong', None, 'new tokens are among the keys'),
  ('src', 'cross', 'causal', ['on', 'per_seq'], 'cross attention from a cache is the causal 0 case'),
  ('window', 'right', 'causal', ['on'], 'no key lies right of the query'),
  ('window', 'zero', 'causal', ['on', 'per_seq'], 'only the query itself is left'),
  ('window', 'zero', 'chunk', None, 'only the query itself is left'),
  ('window', 'zero', 'prefix', ['clamp'], 'only the query itself is left'),
]
for _src in ('read', 'encoder', 'packed', 'cross'):
  for _f in ('fresh', 'skip', 'few'):
    EXCLUSIVE.append(('src', _src, _f, None, 'nothing is written'))
for _f in ('fresh', 'skip', 'few'):
  EXCLUSIVE.append(('qlong', 'qlong', _f, None, 'only in a call that writes'))


@functools.lru_cache(maxsize=None)
def exclusive(f1, l1, f2, l2):
  """The reason why the pair is exclusive, or None."""
  for a, la, b, lb, why in EXCLUSIVE:
    for x, lx, y, ly in ((f1, l1, f2, l2), (f2, l2, f1, l1)):
      absent = y in OPTIONAL and ly == FACTORS[y][0]
      if x == a and lx == la and y == b and (not absent if lb is None else ly in lb):
        return why
  return None


def valid(spec):
  items = list(spec.items())
  if any(exclusive(f1, l1, f2, l2) for i, (f1, l1) in enumerate(items) for f2, l2 in items[i + 1:]):
    return False
  cached = spec['src'] in ('read', 'write', 'cross')
  if cached and NA in (spec['layout'], spec['block']):
    return False
  return spec['src'] != 'write' or spec['fresh'] != NA


def lengths(spec, rng):
  """-> [(q_len, kv_len)] in random order"""
  src = spec['src']
  if src == 'encoder':
    seqs = [(rng.between(7, 9),) * 2, (rng.between(2, 3),) * 2]
  elif src in ('packed', 'cross'):
    seqs = [(rng.between(2, 3), rng.between(10, 12)), (2, rng.between(2, 4))]
  else:
    seqs = [(rng.between(2, 3), rng.between(10, 13)), (rng.between(1, 2), rng.between(2, 4))]
  if spec['qlong'] != 'no':
    kv = rng.between(1, 2)
    seqs[1] = (kv + rng.between(1, 2), kv)
  if spec['qempty'] != 'no':
    seqs.append((0, 0 if src == 'encoder' else rng.between(2, 9)))
  if spec['kvempty'] != 'no':
    seqs.append((0 if src == 'write' else rng.between(1, 2), 0))
  return rng.shuffled(seqs)


def prefix_ranges(seqs, rng):
  out = np.zeros((len(seqs), 2, 2), dtype=np.int32)
  for s, (q_len, kv_len) in enumerate(seqs):
    first = max(0, kv_len - q_len)
    row = rng.between(first, max(first, kv_len - 1))
    a = max(0, row - rng.between(1, 7))
    pair = [(a, row + rng.between(1, 4)), (rng.between(0, kv_len),) * 2]
    if rng.chance(60):
      b = rng.between(0, kv_len)
      pair[1] = (b, b + rng.between(0, 5))
    out[s] = rng.shuffled(pair)
  return out


def mask_options(spec, seqs, rng, tensors, meta):
  cached = spec['src'] in ('read', 'write', 'cross')
  if spec['causal'] == 'per_seq':
    flags = rng.shuffled([1, 0] + [rng.below(2) for _ in seqs[2:]])
    tensors['causal_per_seq'] = io.Tensor('I32', np.array(flags[:len(seqs)]))
  if spec['causal'] != 'per_seq' and ((spec['causal'] == 'on') != cached or rng.chance(40)):
    meta['causal'] = '1' if spec['causal'] == 'on' else '0'
  if spec['causal'] == 'per_seq' and rng.chance(40):
    meta['causal'] = rng.pick(['0', '1'])
  left = rng.between(1, 4)
  if spec['chunk'] != 'none':
    back = int(spec['chunk'][2:])
    # A left bound and a chunk both bind some row only if the bound lies between the chunk's two extremes.
    size = rng.between(3 if spec['window'] in ('left', 'both') else 2, 3 if back == 2 else 5)
    meta['chunk_size'] = str(size)
    if back or rng.chance(50):
      meta['chunk_lookback'] = str(back)
    left = back * size + rng.between(1, max(1, size - 2))
  if spec['window'] == 'zero':
    meta['window_left'] = meta['window_right'] = '0'
  if spec['window'] in ('left', 'both'):
    meta['window_left'] = str(left)
  if spec['window'] in ('right', 'both'):
    meta['window_right'] = str(rng.between(0 if spec['window'] == 'right' else 1, 2))
  elif spec['window'] in ('none', 'left') and rng.chance(20):
    meta['window_right'] = '-1'
  if spec['prefix'] != 'none':
    tensors['prefix_ranges'] = io.Tensor('I32', prefix_ranges(seqs, rng))
    if spec['prefix'] == 'clamp':
      meta['prefix_clamp'] = '1'


def score_options(spec, seqs, heads, head_size, tokens, rng, tensors, meta):
  if rng.chance(75):
    meta['scale'] = rng.pick(['0.375', '0.5', '0.25', '0.4375', '0.625'])
  if spec['softcap'] != 'none':
    meta['softcap'] = rng.pick(['1.5', '2.25', '3'])
  if spec['alibi'] != 'none':
    slopes = rng.uniform((heads,), 0.05, 0.9)
    tensors['alibi_slopes'] = io.from64('F32', slopes)
    if spec['alibi'] == 'sqrt' or rng.chance(50):
      meta['alibi'] = spec['alibi']
  if spec['sinks'] != 'none':
    sinks = rng.uniform((heads,), -1.5, 2.5)
    if spec['sinks'] == 'mixed':
      sinks[rng.below(heads)] = -np.inf
    tensors['sinks'] = io.from64('F32', sinks)
  if spec['bias'] != 'none':
    width = max(kv for _, kv in seqs) + rng.below(3)
    shape = (tokens, heads if spec['bias'] == 'heads' else 1, width)
    bias = rng.bell(shape, 1.2)
    bias[rng.uniform(shape, 0, 1) < 0.15] = -np.inf
    tensors['bias'] = io.from64('F32', bias)


class Pool:
  """One paged pool: blocks handed out in random order, garbage wherever nothing was stored."""

  def __init__(self, dtype, blocks, size, kv_heads, row, layout, rng):
    shape = (blocks, size, kv_heads, row) if layout == 'nhd' else (blocks, kv_heads, size, row)
    self.cache = rng.garbage(dtype, shape)
    self.meta = {'kv_layout': 'NHD' if layout == 'nhd' else 'HND'}

  def store(self, slot, raw):
    view = oracle.by_position(self.cache, self.meta)
    view[slot // view.shape[1], slot % view.shape[1]] = raw


def tables(wanted, seqs, size, rng):
  """wanted[s]: positions that need a place -> block table with garbage elsewhere, number of blocks."""
  columns = [sorted({p // size for p in w}) for w in wanted]
  blocks = sum(len(c) for c in columns)
  blocks += 1 if size < 16 or not blocks else 0
  ids = rng.shuffled(range(blocks))
  width = max([-(-kv // size) for _, kv in seqs] + [0]) + rng.below(2)
  table = rng.garbage('I32', (len(seqs), width)).raw
  for s, cols in enumerate(columns):
    for c in cols:
      table[s, c] = ids.pop()
  return table, blocks


def place_cache(spec, seqs, seen, dims, rng, tensors):
  """The pools, the table and, in a call that writes, fresh rows and slots.

  seen holds two lists of positions per sequence: those the mask shows, which the table must find, and those among them
  that the caller's bias leaves, which must hold data.
  """
  kv_heads, sizes = dims
  writes = spec['src'] == 'write'
  fresh = [set(range(kv - q, kv)) if writes else set() for q, kv in seqs]
  wanted = [set(w) | f for w, f in zip(seen[0], fresh)]
  size = spec['block']
  table, blocks = tables(wanted, seqs, size, rng)
  tensors['block_table'] = io.Tensor('I32', table)
  tensors['seq_lens'] = io.Tensor('I32', np.array([kv for _, kv in seqs]))

  def slot(s, p):
    return int(table[s, p // size]) * size + p % size

  total, n = sum(q for q, _ in seqs), tensors['q'].shape[0]
  slots = np.full(n, -1, dtype=np.int64)
  if writes:
    slots[:total] = [slot(s, p) for s, f in enumerate(fresh) for p in sorted(f)]
    if spec['skip'] != 'no':
      for _ in range(2):
        slots[rng.below(total)] = rng.pick([-1, -1, -2 ** 63])
    count = total - rng.between(1, 2) if spec['few'] != 'no' else rng.between(total, n)
    slots = slots[:count]
    tensors['slot_mapping'] = io.Tensor('I64', slots)
  written = set(slots[slots >= 0].tolist())
  for name, row, kv_type in (('k', sizes[0], spec['kv']), ('v', sizes[1], spec.get('v_kv', spec['kv']))):
    pool = Pool(TYPE[kv_type], blocks, size, kv_heads, row, spec['layout'], rng)
    for s, w in enumerate(wanted):
      for p in sorted(w):
        data = io.from64(TYPE[kv_type], rng.bell((kv_heads, row), 0.9)).raw
        if slot(s, p) not in written and p in seen[1][s]:
          pool.store(slot(s, p), data)
    tensors[name + '_cache'] = pool.cache
    if writes:
      new = rng.garbage(TYPE[spec['fresh']], (n, kv_heads, row))
      live = np.flatnonzero(slots >= 0)
      new.raw[live] = io.from64(TYPE[spec['fresh']], rng.bell((len(live), kv_heads, row), 0.9)).raw
      tensors[name] = new


def place_fresh(spec, seqs, seen, dims, rng, tensors):
  """Keys and values without a cache."""
  kv_heads, sizes = dims
  if spec['src'] == 'packed':
    starts = np.concatenate([[0], np.cumsum([kv for _, kv in seqs])])
    tensors['kv_start_loc'] = io.Tensor('I32', starts)
    n = int(starts[-1])
  else:
    starts = tensors['query_start_loc'].raw
    n = tensors['q'].shape[0]
  for name, row in (('k', sizes[0]), ('v', sizes[1])):
    t = rng.garbage(TYPE[spec['kv']], (n, kv_heads, row))
    for s, w in enumerate(seen[1]):
      for p in sorted(w):
        t.raw[int(starts[s]) + p] = io.from64(TYPE[spec['kv']], rng.bell((kv_heads, row), 0.9)).raw
    tensors[name] = t


def hide_garbage(spec, seqs, tensors, meta, rng):
  """Garbage in bias rows and columns that nobody uses; with hostile_bias also under the mask."""
  if 'bias' not in tensors:
    return
  bias = tensors['bias']
  junk = rng.garbage('F32', bias.shape).raw
  keep = np.zeros(bias.shape, dtype=bool)
  for s, seq in enumerate(oracle.sequences(tensors)):
    first, q_len, kv_len = seq
    part = oracle.mask_of(tensors, meta, s, seq) if spec.get('hostile_bias') else np.ones((q_len, kv_len), bool)
    keep[first:first + q_len, :, :kv_len] |= part[:, None, :]
  bias.raw[~keep] = junk[~keep]


def seen_positions(spec, tensors, meta):
  shown, used = [], []
  for s, seq in enumerate(oracle.sequences(tensors)):
    seen = oracle.mask_of(tensors, meta, s, seq)
    shown.append(np.flatnonzero(seen.any(axis=0)).tolist())
    if spec.get('bias_hidden'):
      first, q_len, kv_len = seq
      given = io.to64(tensors['bias'])[first:first + q_len, :, :kv_len]
      seen = seen & ~np.isneginf(given).all(axis=1)
    used.append(np.flatnonzero(seen.any(axis=0)).tolist())
  return shown, used


def build(spec, seed):
  rng = io.Rng(seed)
  tensors, meta = {}, {'op': 'attention'}
  seqs = spec['seqs'] if 'seqs' in spec else lengths(spec, rng)
  kv_heads = spec.get('kv_heads', 1 if spec['group'] == 5 or (spec['group'] == 3 and rng.chance(75)) else 2)
  heads = kv_heads * spec['group']
  d = rng.between(3, 4)
  sizes = spec.get('sizes', (d, d) if spec['size'] == 'eq' else rng.shuffled([d, d + rng.between(1, 2)]))
  total = sum(q for q, _ in seqs)
  tokens = total + (rng.between(1, 2) if spec['trailing'] != 'no' else 0)
  width = spec.get('width', 1.6)
  q = rng.garbage(TYPE[spec['q']], (tokens, heads, sizes[0]))
  q.raw[:total] = io.from64(TYPE[spec['q']], rng.bell((total, heads, sizes[0]), width)).raw
  tensors['q'] = q
  tensors['query_start_loc'] = io.Tensor('I32', np.concatenate([[0], np.cumsum([n for n, _ in seqs])]))
  mask_options(spec, seqs, rng, tensors, meta)
  score_options(spec, seqs, heads, sizes[0], tokens, rng, tensors, meta)
  if spec['out'] != spec['q'] or rng.chance(30):
    meta['out_dtype'] = io.LONG[TYPE[spec['out']]]
  meta.update(spec.get('meta', {}))
  for name, t in spec.get('tensors', {}).items():
    tensors[name] = t
  cached = spec['src'] in ('read', 'write', 'cross')
  # The masks need the lengths, which a cached request carries beside its cache.
  probe = dict(tensors)
  if cached:
    probe.update(k_cache=None, seq_lens=io.Tensor('I32', np.array([kv for _, kv in seqs])))
  elif spec['src'] == 'packed':
    probe['kv_start_loc'] = io.Tensor('I32', np.concatenate([[0], np.cumsum([kv for _, kv in seqs])]))
  if 'bias_hidden' in spec:
    bias = io.to64(tensors['bias'])
    for k in spec['bias_hidden']:
      bias[:, :, k] = -np.inf
    tensors['bias'] = probe['bias'] = io.from64('F32', bias)
  seen = seen_positions(spec, probe, meta)
  if cached:
    if spec['layout'] == 'hnd' or rng.chance(20):
      meta['kv_layout'] = spec['layout'].upper()
    if rng.chance(30):
      meta['block_size'] = str(spec['block'])
    if 'v_kv' in spec:
      meta['cache_format'] = io.LONG[TYPE[spec['kv']]]
      meta['v_cache_format'] = io.LONG[TYPE[spec['v_kv']]]
    place_cache(spec, seqs, seen, (kv_heads, sizes), rng, tensors)
  else:
    place_fresh(spec, seqs, seen, (kv_heads, sizes), rng, tensors)
  hide_garbage(spec, seqs, tensors, meta, rng)
  return tensors, meta


def mutants(spec, tensors, meta):
  """(factor, request that lacks or alters the feature): each must change the answer for the feature to count."""
  def meta_with(**kw):
    out = {k: v for k, v in meta.items() if k not in kw or kw[k] is not None}
    out.update({k: v for k, v in kw.items() if v is not None})
    return tensors, out

  def without(*names, **kw):
    return {k: v for k, v in tensors.items() if k not in names}, meta_with(**kw)[1]

  on = spec['causal'] == 'on'
  if on:
    yield 'causal', meta_with(causal='0')
  if spec['causal'] == 'per_seq':
    yield 'causal', without('causal_per_seq', causal='1')
    yield 'causal', without('causal_per_seq', causal='0')
  for side in ('left', 'right'):
    key = 'window_' + side
    if meta.get(key, '-1') != '-1' and not (on and side == 'right'):
      yield 'window', meta_with(**{key: '-1'})
      yield 'window', meta_with(**{key: str(int(meta[key]) + 1)})
      if meta[key] != '0':
        yield 'window', meta_with(**{key: str(int(meta[key]) - 1)})
  if spec['chunk'] != 'none':
    back = int(spec['chunk'][2:])
    yield 'chunk', meta_with(chunk_size='0')
    yield 'chunk', meta_with(chunk_lookback=str(back + 1))
    if back:
      yield 'chunk', meta_with(chunk_lookback=str(back - 1))
  if spec['softcap'] != 'none':
    yield 'softcap', meta_with(softcap=None)
  if spec['alibi'] != 'none':
    yield 'alibi', without('alibi_slopes', alibi=None)
    yield 'alibi', meta_with(alibi='sqrt' if spec['alibi'] == 'linear' else 'linear')
  if spec['sinks'] != 'none':
    yield 'sinks', without('sinks')
  if spec['prefix'] != 'none':
    yield 'prefix', without('prefix_ranges', prefix_clamp=None)
    if spec['window'] != 'none':
      yield 'prefix', meta_with(prefix_clamp='0' if spec['prefix'] == 'clamp' else '1')
  if spec['bias'] != 'none':
    yield 'bias', without('bias')
