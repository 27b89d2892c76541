#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check-sigill.sh: the release build on emulated processors that lack instruction sets which this one may have. A kernel
# of a level that the processor has not, run or merely chosen, would end the program by an illegal instruction; that the
# emulator really refuses those is tried first. Wants qemu-x86_64. ATTN_MODEL: the model's file.
set -euo pipefail
cd "$(dirname "$0")/.."
model=${ATTN_MODEL:-$(scripts/fetch-model.sh)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "check-sigill: $*" >&2
  exit 2
}

[ "$(uname -m)" = x86_64 ] || fail "the release build of this machine ($(uname -m)) is not for x86-64"
qemu=$(command -v qemu-x86_64 || command -v qemu-x86_64-static) ||
  fail "qemu-x86_64 is not installed (Debian's package: qemu-user)"

# instruction NAME TEXT: a program that executes one instruction of a set.
instruction() {
  printf 'int main(void) { __asm__ volatile("%s"); return 0; }\n' "$2" >"$work/$1.c"
  cc -o "$work/$1" "$work/$1.c"
}
instruction avx 'vxorps %ymm0, %ymm0, %ymm0'
instruction avx512 'vpxorq %zmm0, %zmm0, %zmm0'

# lacks CPU NAME: that instruction is illegal there.
lacks() {
  local status=0
  { "$qemu" -cpu "$1" "$work/$2" || status=$?; } >/dev/null 2>&1
  [ "$status" = 132 ] || fail "the emulated ${1%%,*} executes $2 (exit $status), so that nothing can be shown"
}

# The model's answer: attn-lm starts itself once more, outside of the emulator, unless this variable is set.
export GOMP_SPINCOUNT=2000
answer() {
  "$@" build/release/bin/attn-lm generate --model "$model" --ids 504,3575 --max-tokens 2 --threads 1 \
    --compute float32 --json | grep -o '"continuation":[^]]*]'
}

examples=()
for example in examples/0*.c; do
  examples+=("example_$(basename "$example" .c)")
done
scripts/build.sh release attn_cli attn_lm "${examples[@]}"
native=$(answer)

# on CPU LEVELS: everything runs there, at one of the levels.
on() {
  local cpu=$1 levels=$2 level example
  level=$("$qemu" -cpu "$cpu" build/release/bin/attn info | sed -n 's/^level: //p')
  [[ " $levels " == *" $level "* ]] || fail "level '$level' on the emulated ${cpu%%,*}, accepted: $levels"
  echo "${cpu%%,*}: level $level"
  for example in build/release/examples/0*; do
    "$qemu" -cpu "$cpu" "$example" >/dev/null || fail "$example on the emulated ${cpu%%,*}: exit $?"
  done
  "$qemu" -cpu "$cpu" build/release/bin/attn check --backend all --cases 300 --seed 7 --quiet
  [ "$(answer "$qemu" -cpu "$cpu")" = "$native" ] || fail "attn-lm on the emulated ${cpu%%,*} does not say $native"
}

lacks qemu64 avx
on qemu64 generic
# Less what the emulator has not and would warn about.
haswell=Haswell,-pcid,-x2apic,-tsc-deadline,-hle,-invpcid,-rtm
"$qemu" -cpu "$haswell" "$work/avx" || fail "the emulated Haswell does not execute avx"
lacks "$haswell" avx512
on "$haswell" "generic avx2"
