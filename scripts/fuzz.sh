#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh [TARGET...]: the fuzz targets of tests/fuzz (all, or those named), FUZZ_SECONDS each (600), two at a time, from
# their corpora and seeds on. Says how many inputs each one executed and found; fails on any finding, which it keeps in
# build/fuzz/findings. Where no clang with libFuzzer is, it says so and is done.
# fuzz.sh grow [TARGET...]: the same, and the corpus becomes the fewest inputs that cover what was reached; kept-* stay.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-600}
root=$PWD/build/fuzz
tests=$root/tests

has_libfuzzer() {
  local probe
  probe=$(mktemp)
  echo 'int LLVMFuzzerTestOneInput(const unsigned char *data, long size) { return !data && size; }' |
    clang -x c -fsanitize=fuzzer - -o "$probe" 2>/dev/null
  local found=$?
  rm -f "$probe"
  return $found
}

# fuzz TARGET FOLDER... -FLAG=VALUE...: in memory, where there is a file system for it.
fuzz() {
  local target=$1
  shift
  ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1:strict_string_checks=1:detect_stack_use_after_return=1 \
    UBSAN_OPTIONS=print_stacktrace=1 TMPDIR=$scratch nice -n 10 "$tests/fuzz_$target" -timeout=20 -rss_limit_mb=2048 \
    -max_len=3072 "$@"
}

# Runs one target; its line, and a status other than 0 for a finding.
run_target() {
  local target=$1 status=0 log=$root/logs/$1 work=$root/work/$1 executed
  mkdir -p "$work" "$root/logs" "$root/findings" "$root/seeds/$target" "tests/fuzz/corpus/$target"
  "$tests/fuzz_seeds" "$target" "$root/seeds/$target"
  fuzz "$target" "$work" "tests/fuzz/corpus/$target" "$root/seeds/$target" -max_total_time="$seconds" \
    -print_final_stats=1 -artifact_prefix="$root/findings/$target-" >"$log" 2>&1 || status=$?
  executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  if [ $status = 0 ]; then
    echo "fuzz $target: $executed executions in $seconds s, 0 findings"
  else
    echo "fuzz $target: ${executed:-some} executions, 1 finding (exit $status); the end of $log:"
    tail -n 40 "$log"
  fi
  return $status
}

# In a stream of choices it matters how often something happened; files are kept by the code that they reach.
grow_target() {
  local target=$1 grown=$root/grown/$1 counters=0
  case $target in problem | pool) counters=1 ;; esac
  rm -rf "$grown"
  mkdir -p "$grown"
  fuzz "$target" "$grown" "$root/seeds/$target" "tests/fuzz/corpus/$target" "$root/work/$target" -set_cover_merge=1 \
    -use_counters=$counters >"$root/logs/$target-merge" 2>&1
  find "tests/fuzz/corpus/$target" -type f ! -name 'kept-*' -delete
  cp "$grown"/* "tests/fuzz/corpus/$target"
  find "$root/seeds/$target" -type f -name 'kept-*' -exec cp {} "tests/fuzz/corpus/$target" ';'
  echo "fuzz $target: now a corpus of $(find "$grown" -type f | wc -l) inputs, $(du -bs "$grown" | cut -f 1) bytes"
}

if ! has_libfuzzer; then
  echo "fuzz: skipped, no clang with libFuzzer here (clang 14 or later; Debian's packages: clang, libclang-rt-dev)"
  exit 0
fi
grow=no
if [ "${1:-}" = grow ]; then
  grow=yes
  shift
fi
targets=("$@")
[ $# -gt 0 ] || targets=(safetensors gguf request problem pool geometry)
scripts/build.sh fuzz
scratch=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/attn-fuzz-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
failed=0
set -- "${targets[@]}"
while [ $# -gt 0 ]; do
  run_target "$1" &
  first=$!
  if [ $# -gt 1 ]; then
    run_target "$2" || failed=1
    shift
  fi
  wait $first || failed=1
  shift
done
[ $failed = 0 ] || exit 1
if [ $grow = yes ]; then
  for target in "${targets[@]}"; do
    grow_target "$target"
  done
fi
