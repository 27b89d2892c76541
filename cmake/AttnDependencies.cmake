# SPDX-License-Identifier: Apache-2.0
# The libraries beyond libc. Each option that is on must find its library: there is no silent fallback. A found library
# is the target attn_dep::NAME, which also defines ATTN_HAVE_NAME=1; one that is off only defines ATTN_HAVE_NAME=0.
# Headers and libraries are looked up plainly, since distributions differ in what CMake files they ship.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_library(ATTN_LIBM m)
mark_as_advanced(ATTN_LIBM)

# attn_find(PTHREADPOOL header library debian-package): answers to the option ATTN_WITH_PTHREADPOOL.
function(attn_find name header library package)
  add_library(attn_dep_${name} INTERFACE)
  add_library(attn_dep::${name} ALIAS attn_dep_${name})
  if(NOT ATTN_WITH_${name})
    target_compile_definitions(attn_dep_${name} INTERFACE ATTN_HAVE_${name}=0)
    return()
  endif()
  find_path(ATTN_${name}_INCLUDE_DIR "${header}")
  find_library(ATTN_${name}_LIBRARY "${library}")
  mark_as_advanced(ATTN_${name}_INCLUDE_DIR ATTN_${name}_LIBRARY)
  if(NOT ATTN_${name}_INCLUDE_DIR OR NOT ATTN_${name}_LIBRARY)
    message(FATAL_ERROR "ATTN_WITH_${name} is ON, but ${header} or lib${library} was not found: install ${package} "
                        "(Debian's name; make run and make test do), or configure with -DATTN_WITH_${name}=OFF")
  endif()
  target_include_directories(attn_dep_${name} SYSTEM INTERFACE "${ATTN_${name}_INCLUDE_DIR}")
  target_link_libraries(attn_dep_${name} INTERFACE "${ATTN_${name}_LIBRARY}")
  target_compile_definitions(attn_dep_${name} INTERFACE ATTN_HAVE_${name}=1)
endfunction()

if(NOT ATTN_BUILD_TOOLS) # the library itself uses none of the others
  set(ATTN_WITH_ONEDNN OFF)
  set(ATTN_WITH_PCRE2 OFF)
  set(ATTN_WITH_CJSON OFF)
endif()
attn_find(PTHREADPOOL pthreadpool.h pthreadpool libpthreadpool-dev)
attn_find(ONEDNN oneapi/dnnl/dnnl.h dnnl libdnnl-dev)
attn_find(PCRE2 pcre2.h pcre2-8 libpcre2-dev)
attn_find(CJSON cjson/cJSON.h cjson libcjson-dev)
if(ATTN_WITH_PCRE2)
  target_compile_definitions(attn_dep_PCRE2 INTERFACE PCRE2_CODE_UNIT_WIDTH=8)
endif()

if(ATTN_BUILD_TESTS)
  find_path(ATTN_CMOCKA_INCLUDE_DIR cmocka.h)
  find_library(ATTN_CMOCKA_LIBRARY cmocka)
  mark_as_advanced(ATTN_CMOCKA_INCLUDE_DIR ATTN_CMOCKA_LIBRARY)
  if(NOT ATTN_CMOCKA_INCLUDE_DIR OR NOT ATTN_CMOCKA_LIBRARY)
    message(FATAL_ERROR "ATTN_BUILD_TESTS is ON, but cmocka was not found: install libcmocka-dev (Debian's name; "
                        "make test does), or configure with -DATTN_BUILD_TESTS=OFF")
  endif()
  add_library(attn_dep_CMOCKA INTERFACE)
  add_library(attn_dep::CMOCKA ALIAS attn_dep_CMOCKA)
  target_include_directories(attn_dep_CMOCKA SYSTEM INTERFACE "${ATTN_CMOCKA_INCLUDE_DIR}")
  target_link_libraries(attn_dep_CMOCKA INTERFACE "${ATTN_CMOCKA_LIBRARY}")
endif()
