#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check-matrix.sh ATTN FILE: the support matrix that `ATTN info --matrix` prints from the code stands in FILE, line by
# line. If not: replace the one in FILE by what the command prints.
set -euo pipefail
matrix=$("$1" info --matrix)
[ -n "$matrix" ] || { echo "check-matrix: '$1 info --matrix' printed nothing" >&2; exit 1; }
if [[ $(cat "$2") != *"$matrix"* ]]; then
  printf 'check-matrix: %s does not hold the output of attn info --matrix, which is now:\n%s\n' "$2" "$matrix" >&2
  exit 1
fi
