#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make test: set-up, the release and the dev (sanitized) build, the model, and the quick tests of both trees. All of
# them run even if some fail. A model that cannot be had fails the tests that need it; they never skip.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
scripts/build.sh release
scripts/build.sh dev
ATTN_MODEL=$(scripts/fetch-model.sh) || ATTN_MODEL=$(scripts/fetch-model.sh --where)
export ATTN_MODEL

failed=()
for preset in release dev; do
  echo "== tests of build/$preset"
  ctest --preset "$preset" --parallel "$(nproc)" || failed+=("build/$preset")
done
if [ ${#failed[@]} -gt 0 ]; then
  echo "make test: tests failed in ${failed[*]}" >&2
  exit 1
fi
