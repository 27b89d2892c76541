# SPDX-License-Identifier: Apache-2.0
# Folders to object libraries. Each object library exists once as it is shipped and, where the tests want it, once more
# with the suffix _faulty, compiled with ATTN_TEST_FAULTS=1: the test-only build whose faults `attn check` must catch.
# It is made in optimised builds only, where many thousand cases are cheap.
set(ATTN_FAULTY OFF)
if(ATTN_BUILD_TESTS AND NOT ATTN_SANITIZE)
  set(ATTN_FAULTY ON)
endif()

# attn_objects(NAME FOLDERS f... INCLUDES i... LIBS l... OPTIONS o...): the *.c files of the folders become the object
# library NAME (nothing, if there are none). Headers come from include/ (the public ones), src/ ("core/x.h") and
# INCLUDES; never from a folder of src itself, whose file names may be those of the C library.
function(attn_objects name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "FOLDERS;INCLUDES;LIBS;OPTIONS")
  set(sources)
  foreach(folder IN LISTS arg_FOLDERS)
    file(GLOB found CONFIGURE_DEPENDS "${folder}/*.c")
    list(APPEND sources ${found})
  endforeach()
  if(NOT sources)
    return()
  endif()
  set(variants "${name}")
  if(ATTN_FAULTY)
    list(APPEND variants "${name}_faulty")
  endif()
  foreach(variant IN LISTS variants)
    add_library(${variant} OBJECT ${sources})
    target_include_directories(${variant} PUBLIC "${PROJECT_SOURCE_DIR}/include" PRIVATE "${PROJECT_SOURCE_DIR}/src"
                               ${arg_INCLUDES})
    target_link_libraries(${variant} PRIVATE ${arg_LIBS})
    target_compile_options(${variant} PRIVATE ${arg_OPTIONS})
    if(variant MATCHES "_faulty$")
      target_compile_definitions(${variant} PRIVATE ATTN_TEST_FAULTS=1)
    endif()
  endforeach()
endfunction()
