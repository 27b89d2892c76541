# SPDX-License-Identifier: Apache-2.0
# Compiler settings of the whole tree. No -march: code for one instruction set names its own flags, file by file.
# Contraction is off everywhere, so that one source gives one result; -ffast-math appears nowhere.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug or Release" FORCE)
endif()
# A build that asked for flags of its own (CFLAGS, -DCMAKE_C_FLAGS) keeps them: these only replace CMake's defaults.
set(CMAKE_C_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_C_FLAGS_DEBUG "-O1 -g")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")

add_compile_options(-ffp-contract=off -Wall -Wextra -Wshadow -Wvla)
add_compile_options("$<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes;-Wmissing-prototypes;-Wconversion>")
if(ATTN_WERROR)
  add_compile_options(-Werror)
endif()
if(ATTN_SANITIZE)
  add_compile_options(-fsanitize=${ATTN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${ATTN_SANITIZE})
endif()
if(ATTN_FUZZ)
  include(CheckCSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS -fsanitize=fuzzer)
  check_c_source_compiles(
    "#include <stddef.h>
     int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);
     int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) { (void)data; return size == 0; }"
    ATTN_HAVE_LIBFUZZER)
  unset(CMAKE_REQUIRED_FLAGS)
  if(ATTN_HAVE_LIBFUZZER)
    add_compile_options("$<$<COMPILE_LANGUAGE:C>:-fsanitize=fuzzer-no-link>")
  else()
    message(WARNING "ATTN_FUZZ is ON, but this compiler has no libFuzzer: fuzzing is skipped, the corpora are replayed. "
                    "It comes with clang 14 or later (Debian's packages: clang and libclang-rt-dev)")
    set(ATTN_FUZZ OFF)
  endif()
endif()

# What the kernels of src/cpu get on top, and what the loops get that measure this machine's limits for comparison:
# no errno, no floating-point traps, and the optimiser's higher level in a release build.
set(ATTN_KERNEL_OPTIONS -fno-math-errno -fno-trapping-math "$<$<CONFIG:Release>:-O3>" "$<$<CONFIG:Debug>:-O2>")
