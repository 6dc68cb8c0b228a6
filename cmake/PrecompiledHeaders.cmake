# SPDX-License-Identifier: Apache-2.0
# Most sources include the same headers of the standard library and fmt, which take longer to
# compile than the sources themselves. They are precompiled once for all targets with the same
# flags: without Kokkos, with Kokkos (which adds -fopenmp), and both again with GoogleTest for the
# tests.
#
# Sources still include what they use: the presets clang and tidy compile without precompiled
# headers (CMAKE_DISABLE_PRECOMPILE_HEADERS) and detect missing includes.
set(millrace_common_headers
  <algorithm> <array> <charconv> <chrono> <cmath> <cstdint> <cstring> <filesystem> <functional> <limits>
  <map> <memory> <numeric> <optional> <set> <span> <string> <string_view> <utility> <variant> <vector>
  <fmt/format.h>)

# Whether `target` links `wanted`, directly or through its libraries.
function(millrace_links target wanted result)
  set(${result} FALSE PARENT_SCOPE)
  if(target STREQUAL wanted)
    set(${result} TRUE PARENT_SCOPE)
    return()
  endif()
  if(NOT TARGET ${target})
    return()
  endif()
  get_target_property(aliased ${target} ALIASED_TARGET)
  if(aliased)
    set(target ${aliased})
  endif()
  get_target_property(libraries ${target} INTERFACE_LINK_LIBRARIES)
  get_target_property(private ${target} LINK_LIBRARIES)
  foreach(library IN LISTS libraries private)
    millrace_links("${library}" ${wanted} found)
    if(found)
      set(${result} TRUE PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# millrace_precompile(<target> [GTest]): gives `target`, whose libraries must be linked already, the
# precompiled headers for its flags. A source with its own flags may not be able to use them and
# then includes the headers itself.
function(millrace_precompile target)
  if(NOT millrace_on_cpu)
    return()  # compilers for GPUs, which read a source twice, cannot use them
  endif()
  set(headers ${millrace_common_headers})
  set(libraries millrace::options fmt::fmt)
  set(owner millrace_headers)
  millrace_links(${target} Kokkos::kokkos with_kokkos)
  if(with_kokkos)
    list(APPEND headers <Kokkos_Core.hpp>)
    list(APPEND libraries Kokkos::kokkos onednn)
    string(APPEND owner _kokkos)
  endif()
  if("GTest" IN_LIST ARGN)
    list(APPEND headers <gtest/gtest.h>)
    list(APPEND libraries GTest::gtest)
    string(APPEND owner _gtest)
    # GCC does not treat precompiled headers as system headers and gives false warnings about code
    # inlined from them, e.g. from std::string in tests.
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>")
  endif()
  if(NOT TARGET ${owner})
    set(nothing ${PROJECT_BINARY_DIR}/generated/nothing.cpp)  # a target must have a source
    file(CONFIGURE OUTPUT ${nothing} CONTENT "")
    add_library(${owner} OBJECT EXCLUDE_FROM_ALL ${nothing})
    target_link_libraries(${owner} PRIVATE ${libraries})
    target_precompile_headers(${owner} PRIVATE ${headers})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${owner})
  set_target_properties(${target} PROPERTIES PCH_WARN_INVALID OFF)
endfunction()
