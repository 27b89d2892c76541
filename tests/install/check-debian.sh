#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check-debian.sh: builds the Debian packages of this tree in one clean root, installs them in a second, empty one, and
# tries them there: the commands, then the consumer against the development package, shared and static, by pkg-config
# and by CMake. Both roots are made by mmdebstrap, of the suite that this machine runs, and thrown away. The packages
# go to build/debian. Nothing of the machine is changed.
set -euo pipefail
cd "$(dirname "$0")/../.."

fail() {
  echo "check-debian: $*" >&2
  exit 2
}

command -v mmdebstrap >/dev/null || fail "mmdebstrap is not installed (Debian's package: mmdebstrap)"
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[ -n "$suite" ] || fail "/etc/os-release names no VERSION_CODENAME (accepted: those of Debian and Ubuntu)"
out=$PWD/build/debian
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
rm -rf "$out"
mkdir -p "$out"
tar --exclude=./build --exclude=./.git -cf "$work/source.tar" .
tar -cf "$work/consumer.tar" -C tests/install .

cat >"$work/build.sh" <<'BUILD'
set -eu
cd /src
apt-get -qq -y --no-install-recommends build-dep ./ >/dev/null
dpkg-buildpackage -us -uc -b
mkdir /debs
mv ../*.deb /debs
BUILD

cat >"$work/try.sh" <<'TRY'
set -eu
install() { apt-get -qq -y --no-install-recommends install "$@" >/dev/null; }
cd /debs
install ./libattn0_*.deb ./attn-tools_*.deb
attn --version
attn info >/dev/null
attn check --backend all --cases 200 --seed 7 --quiet
attn --help >/dev/null
attn-lm --help >/dev/null
install ./libattn-dev_*.deb g++ pkgconf cmake make
cd /consumer
mkdir own
echo '#define CONSUMER_OWN_DLPACK 1' >own/dlpack.h
cc -std=c11 $(pkg-config --cflags libattn) -Iown consumer.c $(pkg-config --libs libattn) -lm -o shared
cc -std=c11 $(pkg-config --cflags libattn) -Iown consumer.c \
  $(pkg-config --static --libs libattn | sed 's/-lattn\b/-l:libattn.a/') -o static
./shared
./static
cmake -S project -B built -DWANTED_LANGUAGES='C;CXX' \
  -DWANTED_COMPONENTS='shared;static' -DWANTED_INCLUDE=/consumer/own >/dev/null
cmake --build built >/dev/null
for program in built/C_shared built/C_static built/CXX_shared built/CXX_static; do $program; done
apt-get -qq -y purge libattn0 libattn-dev attn-tools >/dev/null
left=$(find /usr/include /usr/lib /usr/bin \( -name 'libattn*' -o -name attn -o -name attn-lm \))
[ -z "$left" ] || { echo "check-debian: left behind by purge: $left" >&2; exit 1; }
TRY

echo "check-debian: building in a clean root of $suite"
mmdebstrap --quiet --variant=buildd --customize-hook='mkdir "$1/src"' --customize-hook="tar-in $work/source.tar /src" \
  --customize-hook="copy-in $work/build.sh /" --customize-hook='chroot "$1" sh /build.sh' \
  --customize-hook="sync-out /debs $out" "$suite" /dev/null >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; exit 1; }
ls "$out"
echo "check-debian: trying the packages in an empty root of $suite"
mmdebstrap --quiet --variant=apt --customize-hook='mkdir "$1/debs" "$1/consumer"' \
  --customize-hook="sync-in $out /debs" --customize-hook="tar-in $work/consumer.tar /consumer" \
  --customize-hook="copy-in $work/try.sh /" --customize-hook='chroot "$1" sh /try.sh' \
  "$suite" /dev/null >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; exit 1; }
grep -E '^(attn|consumer)' "$work/log"
