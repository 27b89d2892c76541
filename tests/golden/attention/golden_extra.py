# SPDX-License-Identifier: Apache-2.0
"""The hand-made golden cases: corners of attention that no pair covers, and merge, cache_write and cache_gather."""
import numpy as np

import golden_io as io
from golden_cases import NA, Pool, build

BASE = {'src': 'read', 'causal': 'on', 'window': 'none', 'chunk': 'none', 'softcap': 'none', 'alibi': 'none',
        'sinks': 'none', 'prefix': 'none', 'bias': 'none', 'group': 2, 'size': 'eq', 'q': 'f32', 'out': 'f32',
        'kv': 'f32', 'fresh': NA, 'layout': 'nhd', 'block': 4, 'qlong': 'no', 'qempty': 'no', 'kvempty': 'no',
        'trailing': 'no', 'skip': 'no', 'few': 'no'}


def shared_prefix(seed):
  """Two sequences whose first two blocks are the same blocks."""
  tensors, meta = build(dict(BASE, seqs=[(2, 11), (1, 10)], q='bf16', kv='bf16', out='f32', layout='hnd'), seed)
  table = tensors['block_table'].raw
  for name in ('k_cache', 'v_cache'):
    cache = tensors[name]
    cache.raw[table[1, :2]] = io.Rng(seed + 1).garbage(cache.dtype, cache.raw[table[1, :2]].shape).raw
  table[1, :2] = table[0, :2]
  return tensors, meta


ATTENTION = [
  ('decode_long_kv', dict(seqs=[(1, 40), (1, 17)], block=16, sizes=(4, 4), kv='bf16', q='bf16', out='bf16')),
  ('no_tokens', dict(seqs=[(0, 5), (0, 0)], block=3)),
  ('only_trailing', dict(seqs=[(0, 3)], trailing='trailing')),
  ('table_width_zero', dict(seqs=[(2, 0), (1, 0)], sinks='finite', q='f16', out='f16', kv='f16', width_zero=True)),
  ('kv_formats_differ', dict(kv='f16', v_kv='bf16', q='f16', out='f32', size='ne')),
  ('kv_formats_differ_write', dict(src='write', fresh='f32', kv='f32', v_kv='f16', layout='hnd', block=3)),
  ('nan_bias_under_mask', dict(hostile_bias=True, bias='heads', window='left', out='f16')),
  ('nan_bias_under_chunk', dict(hostile_bias=True, bias='one', chunk='lb1', q='bf16', out='bf16', kv='f16')),
  ('garbage_where_bias_hides', dict(bias='heads', bias_hidden=[1, 4, 5], seqs=[(2, 9), (1, 6)])),
  ('garbage_where_bias_hides_encoder', dict(src='encoder', causal='off', bias='one', bias_hidden=[0, 3],
                                            seqs=[(6, 6), (4, 4)], layout=NA, block=NA)),
  ('large_logits', dict(width=60.0, out='f32', q='f32', kv='f16', meta={'scale': '2'})),
  ('large_logits_softcap', dict(width=400.0, softcap='softcap', meta={'scale': '8'}, kv='bf16', q='bf16')),
  ('head_24_20_group5', dict(group=5, kv_heads=1, sizes=(24, 20), size='ne', seqs=[(2, 13), (1, 2)], kv='f16',
                             q='f16', out='f16')),
  ('head_9_16_hnd', dict(sizes=(9, 16), size='ne', seqs=[(1, 7), (3, 5)], layout='hnd', block=3, kv='bf16')),
  ('head_size_one', dict(sizes=(1, 1), block=1, q='bf16', kv='bf16', out='f16', seqs=[(3, 7), (2, 2)])),
  ('all_sinks_off', dict(tensors={'sinks': io.from64('F32', np.full(4, -np.inf))}, group=2)),
  ('per_seq_all_causal', dict(causal='off', window='both', group=1,
                              tensors={'causal_per_seq': io.Tensor('I32', np.array([1, 1]))})),
  ('tiny_values_f16_floor', dict(kv='f16', q='f16', out='f16', v_shift=-22)),
  ('one_sequence_of_one', dict(seqs=[(1, 1)], block=16, q='f16', kv='f16', out='f32')),
]


def attention_cases(seed):
  for i, (name, change) in enumerate(ATTENTION):
    spec = dict(BASE, **change)
    tensors, meta = build(spec, seed + i)
    if spec.get('width_zero'):
      tensors['block_table'] = io.Tensor('I32', np.zeros((len(spec['seqs']), 0)))
    if 'v_shift' in spec:
      v = io.to64(tensors['v_cache'])
      finite = np.abs(v) < 100
      tiny = io.from64('F16', np.where(finite, v * 2.0 ** spec['v_shift'], 0.0)).raw
      tensors['v_cache'].raw[finite] = tiny[finite]
    yield name, seed + i, tensors, meta
  yield 'shared_prefix_blocks', seed + 100, *shared_prefix(seed + 100)


def merge_case(rng, parts, tokens, heads, size, dtype, edges=(), **meta):
  tensors = {}
  for r in range(parts):
    tensors['out_%d' % r] = io.from64(dtype, rng.bell((tokens, heads, size), 0.9))
    tensors['lse_%d' % r] = io.from64('F32', rng.bell((tokens, heads), 3.0))
  for kind in edges:
    r, t, h = rng.below(parts), rng.below(tokens), rng.below(heads)
    out, lse = tensors['out_%d' % r].raw, tensors['lse_%d' % r].raw
    if kind in ('minus', 'plus'):
      lse[t, h] = io.f32_bits(-np.inf if kind == 'minus' else np.inf)
      out[t, h] = rng.garbage(dtype, (size,)).raw
    elif kind == 'nan_lse':
      lse[t, h] = 0x7FC00000
    elif kind in ('nan_element', 'nan_light'):
      out[t, h, rng.below(size)] = {'F32': 0xFFC00001, 'F16': 0x7E01, 'BF16': 0x7FC1}[dtype]
      if kind == 'nan_light':
        lse[t, h] = io.f32_bits(-300.0)
    elif kind == 'empty':
      for p in range(parts):
        tensors['lse_%d' % p].raw[t, h] = io.f32_bits(-np.inf if (p + t) % 2 else np.inf)
        tensors['out_%d' % p].raw[t, h] = rng.garbage(dtype, (size,)).raw
  return tensors, dict(op='merge', **meta)


def with_sinks(rng, case, mixed):
  tensors, meta = case
  sinks = rng.uniform((tensors['lse_0'].shape[1],), -2.0, 4.0)
  if mixed:
    sinks[0] = -np.inf
  tensors['sinks'] = io.from64('F32', sinks)
  return tensors, meta


def merge_cases(seed):
  r = io.Rng(seed)
  yield 'two_parts_f32', merge_case(r, 2, 4, 3, 5, 'F32')
  yield 'neutral_parts_f16', merge_case(r, 3, 4, 3, 4, 'F16', ['minus', 'plus', 'minus', 'plus', 'empty'])
  yield 'nan_lse_bf16', merge_case(r, 3, 4, 2, 5, 'BF16', ['nan_lse', 'nan_lse', 'minus'], out_dtype='bfloat16')
  yield 'nan_element_f32', merge_case(r, 2, 5, 2, 6, 'F32', ['nan_element', 'nan_light', 'nan_light'])
  yield 'sinks_empty_out_f16', with_sinks(r, merge_case(r, 4, 3, 3, 3, 'F32', ['empty', 'plus', 'minus'],
                                                        out_dtype='float16'), False)
  yield 'sinks_mixed_base2', with_sinks(r, merge_case(r, 3, 4, 3, 4, 'F32', ['minus', 'plus', 'nan_light'],
                                                      lse_base='2'), True)
  yield 'base2_bf16', merge_case(r, 2, 4, 2, 5, 'BF16', ['empty', 'plus'], lse_base='2', out_dtype='bfloat16')
  yield 'one_part_sinks', with_sinks(r, merge_case(r, 1, 3, 2, 7, 'F16', ['minus'], lse_base='e'), False)
  yield 'nine_parts', merge_case(r, 9, 2, 2, 4, 'F32', ['minus', 'plus', 'empty', 'nan_element'], out_dtype='float32')


EDGES = [0.0, -0.0, 1.0 + 2.0 ** -11, 1.0 + 3 * 2.0 ** -11, 1.0 + 2.0 ** -8, 1.0 + 3 * 2.0 ** -8, 65504.0, 65519.996,
         65520.0, -65520.0, 3.3e38, -3.4e38, np.inf, -np.inf, 2.0 ** -14, 2.0 ** -15 + 2.0 ** -25, 2.0 ** -24,
         2.0 ** -25, 2.0 ** -25 + 2.0 ** -40, 3 * 2.0 ** -25, 2.0 ** -26, 2.0 ** -149, 2.0 ** -126, 3 * 2.0 ** -134,
         6.1e-5, 1e-3]


def write_case(rng, fresh, kinds, layout, block, blocks, tokens, sizes, kv_heads, few, **meta):
  tensors = {}
  slots = np.array(rng.shuffled(range(blocks * block))[:tokens], dtype=np.int64)
  slots[rng.below(tokens)] = rng.pick([-1, -7, -2 ** 63])
  slots = slots[:tokens - few]
  tensors['slot_mapping'] = io.Tensor('I64', slots)
  for name, kind, row in (('k', kinds[0], sizes[0]), ('v', kinds[1], sizes[1])):
    tensors[name + '_cache'] = Pool(kind, blocks, block, kv_heads, row, layout, rng).cache
    new = rng.garbage(fresh, (tokens, kv_heads, row))
    data = rng.bell((tokens, kv_heads, row), 2.0)
    flat = data.reshape(-1)
    flat[:len(EDGES)] = EDGES[:len(flat)]
    live = np.flatnonzero(slots >= 0)
    with np.errstate(over='ignore'):
      new.raw[live] = io.from64(fresh, data[live]).raw
    tensors[name] = new
  if layout == 'hnd':
    meta['kv_layout'] = 'HND'
  return tensors, dict(op='cache_write', **meta)


def write_cases(seed):
  r = io.Rng(seed)
  yield 'f32_to_f16_nhd', write_case(r, 'F32', ('F16', 'F16'), 'nhd', 4, 3, 8, (5, 5), 2, 0)
  yield 'f32_to_bf16_hnd', write_case(r, 'F32', ('BF16', 'BF16'), 'hnd', 3, 4, 9, (4, 6), 2, 2)
  yield 'f16_to_f32_nhd', write_case(r, 'F16', ('F32', 'F32'), 'nhd', 1, 8, 6, (7, 3), 1, 0)
  yield 'bf16_to_f16_hnd', write_case(r, 'BF16', ('F16', 'F16'), 'hnd', 16, 1, 8, (3, 4), 2, 1)
  yield 'f16_to_bf16_nhd', write_case(r, 'F16', ('BF16', 'BF16'), 'nhd', 4, 3, 8, (5, 4), 2, 3)
  yield 'f32_same_type_hnd', write_case(r, 'F32', ('F32', 'F32'), 'hnd', 4, 2, 6, (5, 5), 2, 0)
  yield 'f32_to_f16_and_bf16', write_case(r, 'F32', ('F16', 'BF16'), 'nhd', 3, 3, 7, (6, 5), 1, 0,
                                          cache_format='float16', v_cache_format='bfloat16')
  yield 'no_slots_at_all', write_case(r, 'BF16', ('BF16', 'BF16'), 'nhd', 4, 2, 5, (3, 3), 2, 5)


def gather_case(rng, kinds, layout, block, seqs, sizes, kv_heads, starts=True, **meta):
  """seqs: [(start, length)]; blocks before the start are never read, so their columns hold garbage."""
  columns = [(a // block, -(-b // block)) if b > a else (0, 0) for a, b in seqs]
  blocks = sum(hi - lo for lo, hi in columns) + 1
  ids = rng.shuffled(range(blocks))
  table = rng.garbage('I32', (len(seqs), max(-(-b // block) for _, b in seqs) + 1)).raw
  for s, (lo, hi) in enumerate(columns):
    for c in range(lo, hi):
      table[s, c] = ids.pop()
  tensors = {'block_table': io.Tensor('I32', table), 'seq_lens': io.Tensor('I32', np.array([b for _, b in seqs]))}
  if starts:
    tensors['seq_starts'] = io.Tensor('I32', np.array([a for a, _ in seqs]))
  for name, kind, row in (('k', kinds[0], sizes[0]), ('v', kinds[1], sizes[1])):
    pool = Pool(kind, blocks, block, kv_heads, row, layout, rng)
    edges = rng.shuffled(EDGES)
    for s, (a, b) in enumerate(seqs):
      for p in range(a, b):
        data = rng.bell((kv_heads, row), 2.0)
        data[0, 0] = edges[p % len(edges)]
        with np.errstate(over='ignore'):
          pool.store(int(table[s, p // block]) * block + p % block, io.from64(kind, data).raw)
    tensors[name + '_cache'] = pool.cache
  if layout == 'hnd':
    meta['kv_layout'] = 'HND'
  return tensors, dict(op='cache_gather', **meta)


def gather_cases(seed):
  r = io.Rng(seed)
  yield 'f16_nhd_to_f32', gather_case(r, ('F16', 'F16'), 'nhd', 4, [(0, 9), (0, 3)], (4, 4), 2, False)
  yield 'bf16_hnd_starts', gather_case(r, ('BF16', 'BF16'), 'hnd', 3, [(4, 11), (2, 2), (0, 5)], (3, 5), 2)
  yield 'f32_to_f16', gather_case(r, ('F32', 'F32'), 'nhd', 3, [(7, 12), (1, 4)], (5, 3), 1, out_dtype='float16')
  yield 'f32_hnd_to_bf16', gather_case(r, ('F32', 'F32'), 'hnd', 16, [(0, 13)], (4, 4), 1, out_dtype='bfloat16')
  yield 'bf16_to_f16_block1', gather_case(r, ('BF16', 'BF16'), 'nhd', 1, [(3, 9), (0, 2)], (4, 3), 2,
                                          out_dtype='float16')
  yield 'f16_to_f16_empty_seqs', gather_case(r, ('F16', 'F16'), 'hnd', 4, [(0, 0), (6, 6), (5, 8)], (3, 3), 2,
                                             out_dtype='float16')
  yield 'f16_and_bf16', gather_case(r, ('F16', 'BF16'), 'nhd', 4, [(1, 7), (0, 4)], (3, 4), 1, cache_format='float16',
                                    v_cache_format='bfloat16', out_dtype='float32')
