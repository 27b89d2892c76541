#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check-install.sh BUILD CMAKE CC [CXX]: installs the build tree BUILD into a prefix of its own, moves the prefix, and
# tries it as a user would: what is there, the commands, and a consumer (C11, and C++17 where there is a CXX) by
# pkg-config and by CMake, shared and static, compiled and run.
# Also, that the version numbers, which stand in files of several formats, agree.
set -euo pipefail
build=$1 cmake=$2 cc=$3 cxx=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset LD_LIBRARY_PATH CFLAGS CXXFLAGS LDFLAGS DESTDIR PKG_CONFIG_PATH PKG_CONFIG_LIBDIR CMAKE_PREFIX_PATH

fail() {
  echo "check-install: $*" >&2
  exit 1
}

command -v pkg-config >/dev/null || fail "pkg-config is not installed (Debian's package: pkgconf)"
version=$(awk '$2 ~ /^ATTN_VERSION_(MAJOR|MINOR|PATCH)$/ { v = v dot $3; dot = "." } END { print v }' \
  "$root/include/attn/attn.h")
abi=$(sed -n 's/^abi //p' "$root/abi.txt")
grep -q "^## $version\b" "$root/CHANGELOG.md" || fail "CHANGELOG.md has no section for $version, the version of attn.h"
[ "$(sed -n '1s/^libattn (\([0-9.]*\)).*/\1/p' "$root/debian/changelog")" = "$version" ] ||
  fail "the first line of debian/changelog is not of $version, the version of attn.h"
grep -qx "Package: libattn$abi" "$root/debian/control" || fail "debian/control has no libattn$abi, the ABI of abi.txt"

prefix=$work/moved
"$cmake" --install "$build" --prefix "$work/first" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "cmake --install"; }
mv "$work/first" "$prefix"
libdir=$(dirname "$(find "$prefix" -name libattn.a)")

# What is there: every header, the names that a loader and a linker ask for, no path of this machine.
diff <(cd "$root/include" && ls attn/*.h) <(cd "$prefix/include" && ls attn/*.h) >&2 || fail "headers differ"
[ "$(readlink "$libdir/libattn.so")" = "libattn.so.$abi" ] || fail "libattn.so does not lead to libattn.so.$abi"
[ "$(readlink "$libdir/libattn.so.$abi")" = "libattn.so.$abi.$version" ] || fail "libattn.so.$abi leads elsewhere"
if grep -rIlF -e "$build" -e "$root" -e "$work/first" "$prefix" >&2; then
  fail "these files name a folder that is gone once installed"
fi
if grep -rInE 'LINK_LIBRARIES.*[";:>]/' "$libdir/cmake" >&2; then
  fail "a CMake target names a library by a path of this machine"
fi
foreign=$(nm -g --defined-only "$libdir/libattn.a" 2>/dev/null | awk 'NF == 3 && $3 !~ /^attn_/ { print $3 }')
[ -z "$foreign" ] || fail "libattn.a defines names without attn_ in front:" $foreign

# A dlpack.h that the consumer has on its own search path: the library's copy must not stand before it.
mkdir "$work/own"
echo '#define CONSUMER_OWN_DLPACK 1' >"$work/own/dlpack.h"

# The commands, without a word about where the library is.
[ "$("$prefix/bin/attn" --version)" = "attn $version" ] || fail "attn --version"
[ "$("$prefix/bin/attn-lm" --version)" = "attn-lm $version" ] || fail "attn-lm --version"
"$prefix/bin/attn" check --cases 20 --seed 7 --quiet >/dev/null || fail "the installed attn check"
for command in attn attn-lm; do
  path=$(readelf -d "$prefix/bin/$command" | sed -n 's/.*(\(RPATH\|RUNPATH\)).*\[\(.*\)\]$/\2/p')
  case $path in "" | '$ORIGIN/'*) ;; *) fail "$command is looking for libraries in $path" ;; esac
done

# run PROGRAM SHARED: it runs from the moved tree, and links libattn.so exactly if SHARED says so.
run() {
  local linked=no
  ! readelf -d "$1" | grep -qF "[libattn.so.$abi]" || linked=yes
  [ "$linked" = "$2" ] || fail "$(basename "$1"): links libattn.so: $linked; expected: $2"
  [ "$(LD_LIBRARY_PATH=$libdir "$1")" = "consumer: libattn $version" ] || fail "$(basename "$1") failed"
}

# pkg-config. A static link names the archive: -lattn alone takes the shared library where both are there.
export PKG_CONFIG_PATH=$libdir/pkgconfig
[ "$(pkg-config --modversion libattn)" = "$version" ] || fail "pkg-config has another version"
compile() {
  local name=$1 compiler=$2 standard=$3 source=$here/$4
  "$compiler" "-std=$standard" -Wall -Wextra -Wpedantic -Werror $(pkg-config --cflags libattn) -I"$work/own" "$source" \
    $(pkg-config --libs libattn) -lm -o "$work/${name}_shared"
  "$compiler" "-std=$standard" $(pkg-config --static --cflags libattn) -I"$work/own" "$source" \
    $(pkg-config --static --libs libattn | sed 's/-lattn\b/-l:libattn.a/') -o "$work/${name}_static"
  run "$work/${name}_shared" yes
  run "$work/${name}_static" no
}
compile c "$cc" c11 consumer.c
[ -z "$cxx" ] || compile cxx "$cxx" c++17 consumer_cxx.cpp

# CMake: each language alone; another minor version and an unknown component are refused.
project() {
  "$cmake" -S "$here/project" -B "$work/$1" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
    ${cxx:+-DCMAKE_CXX_COMPILER="$cxx"} -DWANTED_LANGUAGES="$2" -DWANTED_VERSION="$3" -DWANTED_COMPONENTS="$4" \
    -DWANTED_INCLUDE="$work/own" --no-warn-unused-cli >"$work/log" 2>&1
}
for language in C ${cxx:+CXX}; do
  project "$language" "$language" "$version" "shared;static" || { cat "$work/log" >&2; fail "find_package, $language"; }
  "$cmake" --build "$work/$language" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "a CMake consumer, $language"; }
  run "$work/$language/${language}_shared" yes
  run "$work/$language/${language}_static" no
done
! project other C "${version%%.*}.999" shared || fail "find_package takes version ${version%%.*}.999"
! project unknown C "$version" nonsense || fail "find_package takes the component nonsense"
echo "check-install: libattn $version, ABI $abi"
