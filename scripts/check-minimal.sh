#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check-minimal.sh: builds the preset minimal and tries what it promises: nothing linked beyond libc and libm (pthreads
# are part of libc, or a library of it); info, explain, check, bench and attn-lm from token ids work; attn run, text prompts
# and a second thread are each refused in one line that names the missing library. ATTN_MODEL: the model's file.
set -euo pipefail
cd "$(dirname "$0")/.."
model=${ATTN_MODEL:-$(scripts/fetch-model.sh --where)}
attn=build/minimal/bin/attn
lm=build/minimal/bin/attn-lm
err=$(mktemp)
trap 'rm -f "$err"' EXIT

fail() {
  echo "check-minimal: $*" >&2
  exit 1
}

# refused LIBRARY COMMAND...: exit 2 and one line on standard error that holds the library's name.
refused() {
  local library=$1 status=0
  shift
  "$@" >/dev/null 2>"$err" || status=$?
  [ "$status" = 2 ] || fail "exit $status, expected 2: $*"
  [ "$(wc -l <"$err")" = 1 ] || fail "not one line on standard error: $*"
  grep -q -- "$library" "$err" || fail "the refusal does not name $library: $(cat "$err")"
  echo "refused as it should be: $(cat "$err")"
}

scripts/build.sh minimal
for binary in "$attn" "$lm"; do
  extra=$(ldd "$binary" | grep -vE 'linux-vdso|ld-linux|lib(c|m|pthread|attn)\.so' || true)
  [ -z "$extra" ] || fail "$binary links more than libc, libm and pthreads: $extra"
done

tensors=(q=BF16[8,32,128] k_cache=BF16[64,16,8,128] v_cache=BF16[64,16,8,128])
lists=(block_table=I32[8,8] seq_lens=I32[8] query_start_loc=I32[9])
"$attn" info >/dev/null
"$attn" explain op=attention "${tensors[@]}" "${lists[@]}" >/dev/null
"$attn" check --backend all --cases 60 --seed 7 --quiet
"$attn" bench op=attention "${tensors[@]}" "${lists[@]}" --rounds 5 >/dev/null
"$lm" generate --model "$model" --ids 1,2,3 --max-tokens 2 >/dev/null

refused cJSON "$attn" run request.safetensors -o out.safetensors
refused PCRE2 "$lm" generate --model "$model" --prompt "one" --max-tokens 2
refused pthreadpool "$lm" generate --model "$model" --ids 1,2,3 --max-tokens 2 --threads 2
refused pthreadpool "$attn" info --threads 2
