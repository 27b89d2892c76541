# SPDX-License-Identifier: Apache-2.0
# Toolchain of the preset cross-aarch64: Debian's gcc-aarch64-linux-gnu. Where there is a qemu-aarch64, it runs the test
# programs, with the shared C library of the cross packages.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
find_program(ATTN_QEMU_AARCH64 NAMES qemu-aarch64 qemu-aarch64-static)
mark_as_advanced(ATTN_QEMU_AARCH64)
if(ATTN_QEMU_AARCH64)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${ATTN_QEMU_AARCH64};-L;/usr/aarch64-linux-gnu")
endif()
