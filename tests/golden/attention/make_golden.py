# SPDX-License-Identifier: Apache-2.0
"""Generates the golden attention cases and their answers: see README.md.

  make_golden.py             writes data/ anew, prints the coverage of feature pairs
  make_golden.py --coverage  the coverage alone
  make_golden.py --selftest  answers the stored requests again by scalar loops and compares

Cases are chosen greedily, from one seed, until every pair of factor levels that is not declared exclusive in
golden_cases.EXCLUSIVE has occurred in a case where both take effect: taking a feature away, or moving a window or a
lookback by one, changes the answer of that case by more than four times its bounds.
"""
import argparse
import math
import os
import sys

import numpy as np

import golden_cases as cases
import golden_extra as extra
import golden_io as io
import golden_naive as naive
import golden_oracle as oracle

SEED = 20240607
HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, 'data')
MAX_CASES = 110
TRIES = 5
FEATURES = ['causal', 'window', 'chunk', 'softcap', 'alibi', 'sinks', 'prefix', 'bias']


def levels(factor):
  return cases.FACTORS[factor][1 if factor in cases.OPTIONAL else 0:]


def all_pairs():
  """Every pair of present levels -> reason why it is exclusive, or None."""
  out, names = {}, list(cases.FACTORS)
  for i, f1 in enumerate(names):
    for f2 in names[i + 1:]:
      for l1 in levels(f1):
        for l2 in levels(f2):
          out[(f1, l1, f2, l2)] = cases.exclusive(f1, l1, f2, l2)
  return out


def pairs_of(spec, weak=()):
  names = [f for f in cases.FACTORS if spec[f] in levels(f) and f not in weak]
  return {(f1, spec[f1], f2, spec[f2]) for i, f1 in enumerate(names) for f2 in names[i + 1:]}


def random_spec(rng, fixed):
  while True:
    spec = {}
    for f, all_levels in cases.FACTORS.items():
      absent = f in FEATURES and f != 'causal' and rng.chance(35)
      spec[f] = fixed.get(f, all_levels[0] if absent else rng.pick(all_levels))
    if spec['src'] != 'write':
      spec.update({f: cases.FACTORS[f][0] for f in ('fresh', 'skip', 'few') if f not in fixed})
    if spec['src'] in ('encoder', 'packed'):
      spec.update({f: cases.NA for f in ('layout', 'block') if f not in fixed})
    if cases.valid(spec):
      return spec


def differs(a, b):
  """Whether answer b, of an altered request, can be told from answer a."""
  x, y = (io.join64(r['out_hi'], r['out_lo']) for r in (a, b))
  with np.errstate(invalid='ignore'):
    rms = np.sqrt(((x - y) ** 2).mean(axis=2))
    far = ~(rms <= 4 * io.to64(a['out_bound']))
    x, y = (io.to64(r['lse_hi']) for r in (a, b))
    far |= ~((x == y) | (np.abs(x - y) <= 4 * io.to64(a['lse_bound'])))
  return bool(far.any())


def weak_features(spec, tensors, meta):
  """The features of the case that do not show in its answer."""
  base = oracle.answer(tensors, meta)
  weak = set()
  for factor, (t, m) in cases.mutants(spec, tensors, meta):
    if factor not in weak and not differs(base, oracle.answer(t, m)):
      weak.add(factor)
  return weak


def choose():
  """-> [(spec, seed, weak features)], pairs that were not reached"""
  rng = io.Rng(SEED)
  todo = {p for p, why in all_pairs().items() if why is None}
  failed, chosen = {}, []
  while todo and len(chosen) < MAX_CASES:
    target = min(todo, key=lambda p: (failed.get(p, 0), rank(p)))
    if failed.get(target, 0) >= 25:
      break
    fixed = {target[0]: target[1], target[2]: target[3]}
    spec = max((random_spec(rng, fixed) for _ in range(200)), key=lambda s: len(pairs_of(s) & todo))
    best = None
    for _ in range(TRIES + failed.get(target, 0)):
      seed = SEED * 1000 + rng.below(10 ** 9)
      weak = weak_features(spec, *cases.build(spec, seed))
      gain = pairs_of(spec, weak) & todo
      if best is None or len(gain) > len(best[2]):
        best = (seed, weak, gain)
      if not weak:
        break
    if target not in best[2]:
      failed[target] = failed.get(target, 0) + 1
    if target in best[2]:
      chosen.append((spec, best[0], best[1]))
      todo -= best[2]
  return chosen, todo


def rank(pair):
  """Pairs of two features first: they are the hardest to bring together."""
  hard = sum(f in FEATURES for f in (pair[0], pair[2]))
  return (-hard, [str(x) for x in pair])


def name_of(spec):
  words = [spec['src']]
  words += [{'off': 'full', 'on': 'causal', 'per_seq': 'perseq'}[spec['causal']]]
  for f, text in (('window', 'w'), ('chunk', ''), ('softcap', ''), ('alibi', 'alibi'), ('sinks', 'sinks'),
                  ('prefix', 'prefix'), ('bias', 'bias')):
    if spec[f] in levels(f):
      words.append(text + str(spec[f]).replace('per_', ''))
  words.append(spec['q'])
  return '_'.join(words)


def emit(name, seed, tensors, meta):
  result = oracle.answer(tensors, meta)
  rng = io.Rng(seed + 7)
  path = os.path.join(DATA, name)
  io.save(path + '.safetensors', tensors, meta, rng.shuffled(tensors), pad=rng.chance(50))
  io.save(path + '.expected.safetensors', result, {'seed': str(seed)})


def generate(chosen):
  os.makedirs(DATA, exist_ok=True)
  for f in os.listdir(DATA):
    if f.endswith('.safetensors'):
      os.remove(os.path.join(DATA, f))
  index = 0
  for spec, seed, _ in chosen:
    emit('a%03d_%s' % (index, name_of(spec)), seed, *cases.build(spec, seed))
    index += 1
  for name, seed, tensors, meta in extra.attention_cases(SEED):
    emit('a%03d_%s' % (index, name), seed, tensors, meta)
    index += 1
  for letter, make in (('m', extra.merge_cases), ('w', extra.write_cases), ('g', extra.gather_cases)):
    for i, (name, (tensors, meta)) in enumerate(make(SEED + ord(letter))):
      emit('%s%03d_%s' % (letter, i, name), SEED + ord(letter), tensors, meta)
  sizes = [os.path.getsize(os.path.join(DATA, f)) for f in os.listdir(DATA)]
  print('%d files, %d bytes' % (len(sizes), sum(sizes)))


def report(chosen, missing):
  pairs = all_pairs()
  count = dict.fromkeys(pairs, 0)
  for spec, _, weak in chosen:
    for p in pairs_of(spec, weak):
      count[p] += 1
  open_pairs = [p for p, why in pairs.items() if why is None]
  print('%d cases; %d pairs, %d of them exclusive' % (len(chosen), len(pairs), len(pairs) - len(open_pairs)))
  print('cases in which both features of a pair take effect, least and most over the pairs of two factors:')
  names = list(cases.FACTORS)
  print(' ' * 9 + ''.join('%9s' % f for f in names[1:]))
  for i, f1 in enumerate(names[:-1]):
    cells = []
    for f2 in names[1:]:
      n = [count[p] for p in open_pairs if p[0] == f1 and p[2] == f2]
      cells.append('%d..%d' % (min(n), max(n)) if n else '-' if names.index(f2) > i else '')
    print('%-9s' % f1 + ''.join('%9s' % c for c in cells))
  for f1, l1, f2, l2 in sorted(missing, key=str):
    print('MISSING %s=%s with %s=%s' % (f1, l1, f2, l2))
  for why in sorted({(str(w)) for w in pairs.values() if w}):
    some = [p for p, w in pairs.items() if w == why]
    print('exclusive (%s): %s' % (why, ', '.join('%s=%s/%s=%s' % p for p in some)))


def check(name):
  """-> largest error of the oracle against the loops, largest share of the bounds that plain float32 needs"""
  path = os.path.join(DATA, name)
  tensors = io.load(path + '.expected.safetensors')[0]
  request, meta = io.load(path + '.safetensors')
  for n, data in naive.copies(path + '.safetensors').items():
    if tensors[n].raw.tobytes() != data:
      return math.inf, math.inf
  if meta['op'] not in ('attention', 'merge'):
    return 0.0, 0.0
  same = 'float32' if meta['op'] == 'merge' else io.LONG[request['q'].dtype]
  out_type = io.NAMES[meta.get('out_dtype', same)]
  loops = naive.attention if meta['op'] == 'attention' else naive.merge
  out, lse = io.join64(tensors['out_hi'], tensors['out_lo']), io.join64(tensors['lse_hi'], tensors['lse_lo'])
  ob, lb = io.to64(tensors['out_bound']), io.to64(tensors['lse_bound'])
  error, share = 0.0, 0.0
  for single in (False, True):
    found = loops(path + '.safetensors', single)
    rest = np.ones(lse.shape, dtype=bool)
    for t, h in found:
      rest[t, h] = False
    if out[rest].any() or lse[rest].any() or ob[rest].any():
      return math.inf, math.inf
    for (t, h), (row, l) in found.items():
      row = np.asarray(row, dtype=np.float64)
      row = io.to64(io.from64(out_type, row)) if single else row
      if not np.array_equal(np.isnan(row), np.isnan(out[t, h])) or math.isnan(l) != math.isnan(lse[t, h]):
        return math.inf, math.inf
      keep = ~np.isnan(row)
      d = row[keep] - out[t, h][keep]
      rms = math.sqrt((d * d).mean()) if keep.any() else 0.0
      dl = 0.0 if l == lse[t, h] or math.isnan(l) else abs(l - lse[t, h])
      if single and rms + dl > 0:
        share = max(share, rms / ob[t, h] if rms else 0.0, dl / lb[t, h] if dl else 0.0)
      elif not single:
        size = max(np.abs(row[keep]).max(initial=0.0), 2.0 ** -30)
        error = max(error, rms / size, dl / max(1.0, abs(l)))
  return error, share


def selftest():
  bad = 0
  worst = [0.0, 0.0]
  for f in sorted(os.listdir(DATA)):
    name = f[:-len('.safetensors')]
    if not f.endswith('.safetensors') or f.endswith('.expected.safetensors'):
      continue
    error, share = check(name)
    worst = [max(worst[0], error), max(worst[1], share)]
    if error > 1e-13 or share > 1.0:
      bad += 1
      print('FAIL %s: error %.3g, float32 needs %.3g of the bound' % (name, error, share))
  print('selftest: %d failures, largest error %.3g, plain float32 needs %.3g of the bounds' % (bad, *worst))
  return 1 if bad else 0


def main():
  parser = argparse.ArgumentParser(description='golden attention cases')
  parser.add_argument('--coverage', action='store_true')
  parser.add_argument('--selftest', action='store_true')
  args = parser.parse_args()
  if args.selftest:
    return selftest()
  chosen, missing = choose()
  if not args.coverage:
    generate(chosen)
  report(chosen, missing)
  return 1 if missing else 0


if __name__ == '__main__':
  with np.errstate(over='ignore', invalid='ignore', divide='ignore'):
    sys.exit(main())
