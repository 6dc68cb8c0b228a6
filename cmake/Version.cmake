# SPDX-License-Identifier: Apache-2.0
# Generates a header with version and commit. Included, it adds the target millrace::version, which
# checks the commit on every build; run as a script, it writes the header if the text has changed.
if(CMAKE_SCRIPT_MODE_FILE)
  set(MILLRACE_COMMIT "")
  execute_process(
    COMMAND git -C ${SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE MILLRACE_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(MILLRACE_COMMIT STREQUAL "")
    set(MILLRACE_COMMIT "unknown")
  endif()
  configure_file(${SOURCE_DIR}/cmake/millrace_version.hpp.in ${HEADER} @ONLY)
  return()
endif()

set(millrace_version_header ${PROJECT_BINARY_DIR}/generated/millrace_version.hpp)
add_custom_target(millrace_version_header
  COMMAND ${CMAKE_COMMAND} -D SOURCE_DIR=${PROJECT_SOURCE_DIR} -D HEADER=${millrace_version_header}
    -D MILLRACE_VERSION=${PROJECT_VERSION} -P ${CMAKE_CURRENT_LIST_FILE}
  BYPRODUCTS ${millrace_version_header}
  COMMENT "Checking the commit" VERBATIM)
add_library(millrace_version INTERFACE)
add_library(millrace::version ALIAS millrace_version)
add_dependencies(millrace_version millrace_version_header)
target_include_directories(millrace_version INTERFACE ${PROJECT_BINARY_DIR}/generated)
