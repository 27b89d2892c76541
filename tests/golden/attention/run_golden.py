# SPDX-License-Identifier: Apache-2.0
"""Runs the golden requests through an `attn` command and compares: run_golden.py ATTN [flags of `attn run` ...]

One line for each failure, then the largest share of a bound that was used; exit status 1 if anything failed.
"""
import os
import subprocess
import sys
import tempfile

import numpy as np

import golden_io as io

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'data')
EXACT = ('k', 'v', 'k_cache', 'v_cache')


def share_of(error, bound):
  return np.where(error == 0, 0.0, error / np.where(bound > 0, bound, 1e-300))


def compare(expected, found, live):
  """-> (complaint or None, largest share of a bound); live masks the tokens of the batch"""
  for name in EXACT:
    if name in expected:
      if name not in found or found[name].dtype != expected[name].dtype or found[name].shape != expected[name].shape:
        return 'no %s of the right type and shape' % name, 0.0
      wrong = int((found[name].raw != expected[name].raw).sum())
      if wrong:
        return '%s: %d elements differ' % (name, wrong), 0.0
  if 'out_hi' not in expected:
    return None, 0.0
  ref, lse = io.join64(expected['out_hi'], expected['out_lo']), io.join64(expected['lse_hi'], expected['lse_lo'])
  if found['out'].shape != ref.shape or found['lse'].shape != lse.shape:
    return 'out or lse has the wrong shape', 0.0
  ref, lse = ref[live], lse[live]
  out, got = io.to64(found['out'])[live], io.to64(found['lse'])[live]
  if not np.array_equal(np.isnan(out), np.isnan(ref)) or not np.array_equal(np.isnan(got), np.isnan(lse)):
    return 'NaN in other places', 0.0
  keep = ~np.isnan(ref)
  square = np.where(keep, out - ref, 0.0) ** 2
  rms = np.sqrt(square.sum(axis=2) / np.maximum(keep.sum(axis=2), 1))
  a = share_of(rms, io.to64(expected['out_bound'])[live])
  b = share_of(np.where((got == lse) | np.isnan(lse), 0.0, np.abs(got - lse)), io.to64(expected['lse_bound'])[live])
  for what, s in (('out', a), ('lse', b)):
    if s.size and not s.max() <= 1.0:
      t, h = np.unravel_index(np.argmax(s), s.shape)
      return '%s: %d of %d rows beyond the bound, worst token %d head %d: %.3g of it' % (
          what, int((~(s <= 1.0)).sum()), s.size, t, h, s.max()), float(s.max())
  return None, float(max(a.max(initial=0.0), b.max(initial=0.0)))


def main():
  attn, flags = sys.argv[1], sys.argv[2:]
  failed, worst, count = 0, 0.0, 0
  with tempfile.TemporaryDirectory() as folder:
    target = os.path.join(folder, 'out.safetensors')
    for f in sorted(os.listdir(DATA)):
      if not f.endswith('.safetensors') or f.endswith('.expected.safetensors'):
        continue
      count += 1
      name = f[:-len('.safetensors')]
      path = os.path.join(DATA, f)
      run = subprocess.run([attn, 'run', path, '-o', target] + flags, capture_output=True, text=True, check=False)
      complaint, share = 'exit %d: %s' % (run.returncode, run.stderr.strip()), 0.0
      if run.returncode == 0:
        request = io.load(path)[0]
        expected = io.load(os.path.join(DATA, name + '.expected.safetensors'))[0]
        live = slice(0, int(request['query_start_loc'].raw[-1]) if 'query_start_loc' in request else None)
        complaint, share = compare(expected, io.load(target)[0], live)
        os.remove(target)
      worst = max(worst, share)
      if complaint:
        failed += 1
        print('%s: %s' % (name, complaint))
  print('%d requests, %d failed, largest share of a bound %.3g' % (count, failed, worst))
  return 1 if failed or not count else 0


if __name__ == '__main__':
  with np.errstate(all='ignore'):
    sys.exit(main())
