# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: both libraries, the public headers, libattn.pc, attnConfig.cmake with the targets
# attn::attn (static) and attn::attn_shared, and the two commands. Every path is relative to the prefix, so an installed
# tree may be moved. The headers go to include/attn, dlpack.h with them, and only include/ is ever on a search path:
# <dlpack/dlpack.h> and <dlpack.h> stay the system's or the user's. Components: runtime, development, tools.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS attn EXPORT attn_static ARCHIVE COMPONENT development
        INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(TARGETS attn_shared EXPORT attn_shared LIBRARY COMPONENT runtime NAMELINK_COMPONENT development
        INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/attn" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        COMPONENT development FILES_MATCHING PATTERN "*.h")

# CMake: two export files, since a program that links the shared library needs nothing that the static one wants.
set(attn_config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/attn")
foreach(kind IN ITEMS static shared)
  install(EXPORT attn_${kind} NAMESPACE attn:: DESTINATION "${attn_config_dir}" FILE attn_${kind}.cmake
          COMPONENT development)
endforeach()
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/attnConfig.cmake.in" "${PROJECT_BINARY_DIR}/attnConfig.cmake"
                              INSTALL_DESTINATION "${attn_config_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/attnConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/attnConfig.cmake" "${PROJECT_BINARY_DIR}/attnConfigVersion.cmake"
        DESTINATION "${attn_config_dir}" COMPONENT development)

# pkg-config: the prefix is found from the file's own place. An absolute folder, which some packagers set, is kept.
set(attn_pc_prefix "${CMAKE_INSTALL_PREFIX}")
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  file(RELATIVE_PATH attn_pc_prefix "/p/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/p")
  string(REGEX REPLACE "/$" "" attn_pc_prefix "\${pcfiledir}/${attn_pc_prefix}")
endif()
foreach(folder IN ITEMS LIBDIR INCLUDEDIR)
  set(attn_pc_${folder} "\${prefix}")
  cmake_path(APPEND attn_pc_${folder} "${CMAKE_INSTALL_${folder}}")
endforeach()
set(attn_pc_private "${CMAKE_THREAD_LIBS_INIT}")
if(ATTN_LIBM)
  string(PREPEND attn_pc_private "-lm ")
endif()
if(ATTN_WITH_PTHREADPOOL)
  string(PREPEND attn_pc_private "-lpthreadpool ")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/libattn.pc.in" "${PROJECT_BINARY_DIR}/libattn.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/libattn.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)

# attn holds the library; attn-lm links the shared one, and finds it beside itself wherever the tree lies.
if(ATTN_BUILD_TOOLS)
  file(RELATIVE_PATH attn_rpath "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")
  set_target_properties(attn_lm PROPERTIES INSTALL_RPATH "$ORIGIN/${attn_rpath}")
  install(TARGETS attn_cli attn_lm RUNTIME COMPONENT tools)
endif()
