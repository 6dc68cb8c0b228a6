# SPDX-License-Identifier: Apache-2.0
# libmillrace.a and libmillrace.so: the trainer and everything of ours that it is made of. Their front
# door is src/library/millrace.hpp.

# The targets of ours that `target` is made of, itself included.
function(millrace_parts target result)
  get_target_property(aliased ${target} ALIASED_TARGET)
  if(aliased)
    set(target ${aliased})
  endif()
  get_target_property(type ${target} TYPE)
  if(NOT type STREQUAL "STATIC_LIBRARY" OR NOT target MATCHES "^millrace_" OR target IN_LIST ${result})
    return()
  endif()
  set(parts ${${result}} ${target})
  get_target_property(libraries ${target} LINK_LIBRARIES)
  foreach(library IN LISTS libraries)
    if(TARGET ${library})
      millrace_parts(${library} parts)
    endif()
  endforeach()
  set(${result} ${parts} PARENT_SCOPE)
endfunction()

set(millrace_library_parts "")
millrace_parts(millrace_interface millrace_library_parts)
list(TRANSFORM millrace_library_parts REPLACE ".+" "$<TARGET_OBJECTS:\\0>" OUTPUT_VARIABLE objects)
add_library(millrace_library STATIC ${objects})
add_library(millrace_shared SHARED ${objects})
set_target_properties(millrace_library millrace_shared PROPERTIES OUTPUT_NAME millrace LINKER_LANGUAGE CXX)
# A program runs with a library of the same minor version: its symbols carry that number.
set(millrace_soversion ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(millrace_symbols ${PROJECT_BINARY_DIR}/generated/millrace.symbols)
configure_file(cmake/millrace.symbols.in ${millrace_symbols} @ONLY)
set_target_properties(millrace_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${millrace_soversion}
  LINK_DEPENDS ${millrace_symbols})
target_link_libraries(millrace_shared PRIVATE millrace::interface)
target_link_options(millrace_shared PRIVATE LINKER:--version-script=${millrace_symbols} LINKER:-z,defs)
