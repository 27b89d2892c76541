#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make check-long [PART=NAME]: the long tier, in parts of at most 60 minutes on 2 cores each; without a name all of them
# in turn, `list` prints them. A new part is a function part_NAME, with its line in the list below.
set -euo pipefail
cd "$(dirname "$0")/.."

parts=(
  "check-sanitized: every backend against the reference, 20000 cases under ASan and UBSan"
  "check-release: every backend against the reference, 40000 cases of the release build"
  "check-latent: the same over latent rows, 20000 cases of the release build; 32768 rows of 128 heads in 64 MiB"
  "check-latent-sanitized: 20000 cases over latent rows under ASan and UBSan"
  "pairs: 20000 cases of the release build, and how often each pair of option values was drawn"
  "faults: each planted fault of the test-only build among cases of any kind, 2000 at most"
  "full: the quick tests of a sanitized build, none of their loops shortened, and uses of a stack after return found"
  "geometry: one pool of pages for four groups of layers, 100000 steps, and a pool of groups against its model"
  "speed: decode as a fraction of this machine's limits, one thread and two; wants a quiet machine"
  "bench: every case of attn bench twice, the fractions within 10 % of each other; wants a quiet machine"
  "serving: attn-lm with a quarter of the blocks that 64 prompts need, and 20000 random schedules"
  "perplexity: what each cache format costs the model on the text of the GPL, near what a simulation says"
  "perplexity-bytes: the same from the bytes of the cache, decoded and computed by numpy; wants numpy and gguf"
  "clang: everything built with clang, warnings as errors, and the quick tests of that build"
  "fuzz: each fuzz target with libFuzzer for FUZZ_SECONDS (600), two at a time; says so where no clang has it"
  "debian: the Debian packages built in a clean root, installed and used in an empty one; wants mmdebstrap"
  "pool: 1000000 random operations on the block manager under ASan, checked after each, and its speed on one core"
  "tsan: every backend under ThreadSanitizer, 2000 cases in the checker's own threads, and the tests of threads"
  "valgrind: every backend under memcheck, 500 cases in the checker's own threads, and the examples"
  "sigill: the release build on emulated x86-64 processors without AVX and without AVX-512"
  "aarch64: the preset cross-aarch64, its examples and 1000 cases under qemu-aarch64"
)

part_check_sanitized() {
  scripts/build.sh dev attn_cli
  ASAN_OPTIONS=detect_stack_use_after_return=1 build/dev/bin/attn check --backend all --cases 20000 --seed 7
}

part_check_release() {
  scripts/build.sh release attn_cli
  build/release/bin/attn check --backend all --cases 40000 --seed 7
}

part_check_latent() {
  scripts/build.sh release attn_cli test_no_allocation
  ATTN_LONG_CONTEXT=1 build/release/tests/test_no_allocation
  build/release/bin/attn check --op latent --cases 20000 --seed 7
}

part_check_latent_sanitized() {
  scripts/build.sh dev attn_cli
  ASAN_OPTIONS=detect_stack_use_after_return=1 build/dev/bin/attn check --op latent --cases 20000 --seed 7
}

part_pairs() {
  scripts/build.sh release attn_cli
  build/release/bin/attn check --backend all --cases 20000 --seed 7 --pairs
}

part_faults() {
  scripts/build.sh release attn_faulty
  build/release/bin/attn-faulty check --fault all --cases 2000 --seed 7
  build/release/bin/attn-faulty check --op latent --fault all --cases 2000 --seed 7
}

part_full() {
  cmake --preset dev -B build/full -DATTN_TEST_FULL=ON --log-level=WARNING >/dev/null
  cmake --build build/full
  ATTN_MODEL=$(scripts/fetch-model.sh) ctest --test-dir build/full --label-regex '^quick$' --output-on-failure \
    --parallel "$(nproc)"
}

part_geometry() {
  scripts/build.sh release test_geometry_pool test_pool_groups_model
  ATTN_GEOMETRY_STEPS=100000 build/release/tests/test_geometry_pool
  ATTN_POOL_OPERATIONS=1000000 build/release/tests/test_pool_groups_model
}

part_speed() {
  scripts/build.sh release speed_decode speed_formats speed_latent
  build/release/tests/speed_decode 0.15 0.9
  build/release/tests/speed_formats 1.1
  build/release/tests/speed_latent 0.35
}

part_bench() {
  scripts/build.sh release attn_cli
  build/release/bin/attn bench --json >build/release/bench-1.json
  build/release/bin/attn bench --json >build/release/bench-2.json
  tests/bench/compare-bench.py build/release/bench-1.json build/release/bench-2.json
}

part_serving() {
  scripts/build.sh release attn_lm golden_text golden_text_serving test_lm_schedule
  ATTN_LM_BIN=build/release/bin/attn-lm ATTN_MODEL=$(scripts/fetch-model.sh) build/release/tests/golden_text all
  ATTN_LM_BIN=build/release/bin/attn-lm ATTN_MODEL=$(scripts/fetch-model.sh) build/release/tests/golden_text_serving all
  build/release/tests/test_lm_schedule 20000
}

perplexity_text=/usr/share/common-licenses/GPL-3

part_perplexity() {
  local out=build/release/perplexity.json
  [ -r "$perplexity_text" ] || fail "$perplexity_text is not there (Debian's package: base-files)"
  scripts/build.sh release attn_lm perplexity_table
  build/release/bin/attn-lm perplexity --model "$(scripts/fetch-model.sh)" --file "$perplexity_text" --all-formats \
    --kv-scales both --json >"$out"
  build/release/tests/perplexity_table "$out" tests/golden/formats/perplexity.json
}

part_perplexity_bytes() {
  local model formats python=${PYTHON:-python3}
  [ -r "$perplexity_text" ] || fail "$perplexity_text is not there (Debian's package: base-files)"
  "$python" -c 'import numpy, gguf' 2>/dev/null ||
    fail "$python has no numpy or no gguf (pip install numpy==2.4.6 gguf==0.19.0; another Python: PYTHON=FILE)"
  scripts/build.sh release attn_lm perplexity_bytes
  model=$(scripts/fetch-model.sh)
  read -ra formats < <("$python" tests/golden/formats/simulate_perplexity.py --list)
  build/release/tests/perplexity_bytes "$model" "$perplexity_text" "${formats[@]}" |
    "$python" tests/golden/formats/simulate_perplexity.py "$model" tests/golden/tokens/gpl3.ids.bin --bytes -
}

part_clang() {
  command -v clang >/dev/null || fail "clang is not installed"
  CC=clang CXX=clang++ cmake --preset dev -B build/clang --log-level=WARNING >/dev/null
  cmake --build build/clang
  ATTN_MODEL=$(scripts/fetch-model.sh) ctest --test-dir build/clang --label-regex '^quick$' --output-on-failure \
    --parallel "$(nproc)"
}

part_fuzz() {
  scripts/fuzz.sh
}

part_debian() {
  tests/install/check-debian.sh
}

part_pool() {
  scripts/build.sh dev test_pool_model
  ATTN_POOL_OPERATIONS=1000000 build/dev/tests/test_pool_model
  scripts/build.sh release test_speed_pool
  build/release/tests/test_speed_pool
}

part_tsan() {
  local tests=(test_threads test_workspace_manager test_context test_cases_repeats) test
  cmake --preset tsan -DATTN_BUILD_TESTS=ON --log-level=WARNING >/dev/null
  cmake --build build/tsan --target attn_cli "${tests[@]}"
  for test in "${tests[@]}"; do
    TSAN_OPTIONS=halt_on_error=1 build/tsan/tests/"$test"
  done
  TSAN_OPTIONS=halt_on_error=1 build/tsan/bin/attn check --backend all --cases 2000 --seed 7 --executor own
  TSAN_OPTIONS=halt_on_error=1 build/tsan/bin/attn check --op latent --cases 500 --seed 7 --executor own
}

# No suppressions. A release build with line numbers; the level is capped below what valgrind does not know.
part_valgrind() {
  local example memcheck=(valgrind -q --error-exitcode=9 --exit-on-first-error=yes --leak-check=full)
  command -v valgrind >/dev/null || fail "valgrind is not installed (Debian's package: valgrind)"
  CFLAGS=-g cmake --preset release -B build/valgrind -DATTN_BUILD_TESTS=OFF --log-level=WARNING >/dev/null
  cmake --build build/valgrind
  for example in build/valgrind/examples/0*; do
    ATTN_CPU=avx2 "${memcheck[@]}" "$example" >/dev/null || fail "$example: exit $?"
  done
  ATTN_CPU=avx2 "${memcheck[@]}" build/valgrind/bin/attn check --backend all --cases 500 --seed 7 --executor own
  ATTN_CPU=avx2 "${memcheck[@]}" build/valgrind/bin/attn check --op latent --cases 150 --seed 7 --executor own
}

part_sigill() {
  scripts/check-sigill.sh
}

part_aarch64() {
  local emulated example
  command -v aarch64-linux-gnu-gcc >/dev/null || fail "aarch64-linux-gnu-gcc is not installed (Debian's package: \
gcc-aarch64-linux-gnu)"
  [ -e /usr/aarch64-linux-gnu/include/stdio.h ] || fail "the C library for aarch64 is not installed (Debian's package: \
libc6-dev-arm64-cross)"
  emulated=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) ||
    fail "qemu-aarch64 is not installed (Debian's package: qemu-user)"
  emulated="$emulated -L /usr/aarch64-linux-gnu"
  scripts/build.sh cross-aarch64
  for example in build/cross-aarch64/examples/0*; do
    $emulated "$example" >/dev/null
  done
  $emulated build/cross-aarch64/bin/attn check --backend all --cases 1000 --seed 7
  $emulated build/cross-aarch64/bin/attn check --op latent --cases 300 --seed 7
}

fail() {
  echo "check-long: $*" >&2
  exit 2
}

names=()
for line in "${parts[@]}"; do
  names+=("${line%%:*}")
done
wanted=("${@:-${names[@]}}")
if [ "${wanted[0]}" = list ]; then
  printf '%s\n' "${parts[@]}"
  exit 0
fi
for name in "${wanted[@]}"; do
  printf '%s\n' "${names[@]}" | grep -qxF -- "$name" || fail "unknown PART '$name' (accepted: list ${names[*]})"
done
scripts/setup.sh
for name in "${wanted[@]}"; do
  echo "== $name"
  start=$SECONDS
  "part_${name//-/_}"
  echo "== $name passed in $((SECONDS - start)) s"
done
