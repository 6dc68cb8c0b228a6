# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` writes. Component `program`: the program, recipes, documents, manual pages,
# completion.
# Component `library`: the shared library.
# Component `development`: the static library, headers, CMake package.
set(millrace_share ${CMAKE_INSTALL_DATADIR}/millrace)

# Without symbols, whether --strip is given or not: debuggers have the program of the build.
install(CODE "set(CMAKE_INSTALL_DO_STRIP TRUE)" COMPONENT program)
install(CODE "set(CMAKE_INSTALL_DO_STRIP TRUE)" COMPONENT library)
# A oneDNN of your own is found where this build found it.
if(MILLRACE_ONEDNN)
  cmake_path(GET ONEDNN_LIBRARY PARENT_PATH folder)
  if(NOT folder IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
    set_property(TARGET millrace PROPERTY INSTALL_RPATH ${folder})
  endif()
endif()
install(TARGETS millrace RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
install(DIRECTORY configs DESTINATION ${millrace_share} COMPONENT program USE_SOURCE_PERMISSIONS)
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
# The documents refer to the recipes as in the source tree.
file(RELATIVE_PATH millrace_configs /${CMAKE_INSTALL_DOCDIR} /${millrace_share}/configs)
install(CODE "file(CREATE_LINK ${millrace_configs}
  \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DOCDIR}/configs SYMBOLIC)"
  COMPONENT program)

# Manual pages and completion come from the tables of commands and options: the installed program
# writes them. So whoever builds the target millrace alone can install this component.
install(CODE "
  set(root \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
  set(manuals \"\${root}/${CMAKE_INSTALL_MANDIR}/man1\")
  set(completions \"\${root}/${CMAKE_INSTALL_DATADIR}/bash-completion/completions\")
  file(MAKE_DIRECTORY \"\${manuals}\" \"\${completions}\")
  foreach(words \"--write-manuals;\${manuals}\" \"--write-completion;\${completions}/millrace\")
    execute_process(COMMAND \"\${root}/${CMAKE_INSTALL_BINDIR}/millrace\" \${words}
      COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  file(GLOB written \"\${manuals}/millrace*.1\" \"\${completions}/millrace\")
  file(CHMOD \${written} PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES \${written})"
  COMPONENT program)

if(NOT TARGET millrace_library)
  return()
endif()
include(CMakePackageConfigHelpers)
install(TARGETS millrace_library millrace_shared
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development)
configure_file(cmake/InstallHeaders.cmake.in ${PROJECT_BINARY_DIR}/generated/InstallHeaders.cmake @ONLY)
install(SCRIPT ${PROJECT_BINARY_DIR}/generated/InstallHeaders.cmake COMPONENT development)

# A static Kokkos is installed too, because scripts/setup keeps it in a cache. A consumer that has
# found a Kokkos of its own gets that one; any other Kokkos must be found by the consumer.
get_target_property(millrace_kokkos_type Kokkos::kokkoscore TYPE)
set(millrace_own_kokkos "")
if(millrace_kokkos_type STREQUAL "STATIC_LIBRARY")
  foreach(library kokkoscontainers kokkoscore)
    install(FILES $<TARGET_FILE:Kokkos::${library}> COMPONENT development
      DESTINATION ${CMAKE_INSTALL_LIBDIR}/millrace)
    list(APPEND millrace_own_kokkos lib${library}.a)
  endforeach()
endif()
# Shared libraries that programs are linked to, where this build found them.
set(millrace_needed ${MPI_CXX_LIBRARIES} ${HDF5_C_LIBRARY_hdf5} ${ONEDNN_LIBRARY}
  ${OPENSSL_CRYPTO_LIBRARY} ${ISAL_LIBRARY} ${LIBZIP_LIBRARY} ${JPEG_LIBRARIES} ${PNG_LIBRARIES})
# protobuf reads ONNX files. Its later versions also need abseil, which their own package finds.
set(millrace_own_protobuf ${Protobuf_CONFIG})
if(NOT millrace_own_protobuf)
  list(APPEND millrace_needed ${Protobuf_LITE_LIBRARY_RELEASE})
endif()
set(millrace_package ${CMAKE_INSTALL_LIBDIR}/cmake/millrace)
configure_package_config_file(cmake/millrace-config.cmake.in
  ${PROJECT_BINARY_DIR}/generated/millrace-config.cmake INSTALL_DESTINATION ${millrace_package}
  PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/generated/millrace-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/generated/millrace-config.cmake
  ${PROJECT_BINARY_DIR}/generated/millrace-config-version.cmake
  DESTINATION ${millrace_package} COMPONENT development)
