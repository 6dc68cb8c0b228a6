# SPDX-License-Identifier: Apache-2.0
# One interface target carries language, warnings, architecture and sanitizers for all of our code.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})

add_library(millrace_options INTERFACE)
add_library(millrace::options ALIAS millrace_options)
target_include_directories(millrace_options INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)

# Streaming kernels want full vectorisation, which GCC does at -O3. Debug information takes a third of
# the time of a compilation, so that only developers' presets ask for it.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -g -DNDEBUG")
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")
# No contraction of a*b+c behind our back: a fused kernel and its parts must give the same bits.
# Nobody looks at the floating-point flags or at errno behind arithmetic: as long as comparisons might
# raise a flag, or roots set errno, GCC leaves loops with them scalar below AVX-512.
set(millrace_compile -ffp-contract=off -fno-trapping-math -fno-math-errno -fopenmp-simd)
list(APPEND millrace_compile
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wdouble-promotion -Wnon-virtual-dtor
  -Woverloaded-virtual -Wold-style-cast -Wformat=2)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 stores wrong constants with AVX-512: std::vector<double>{2, 2, 2, 0} became 2, 2, 2, 2. A copy
  # of 256 bits is expanded as a broadcast of its first element when only zeros follow; copies of 128
  # bits are right. Most such copies come from the SLP vectoriser, which our loops do not need.
  list(APPEND millrace_compile -fno-tree-slp-vectorize)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12)
    list(APPEND millrace_compile -mmove-max=128 -mstore-max=128)
  endif()
  # -Wrestrict of GCC 12 cries wolf over std::string (GCC bug 105651).
  list(APPEND millrace_compile -Wduplicated-cond -Wlogical-op -Wno-restrict)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # A loop that clang cannot vectorise as asked is slower, not wrong.
  list(APPEND millrace_compile -Wno-pass-failed)
endif()
if(MILLRACE_WERROR)
  list(APPEND millrace_compile -Werror)
endif()
if(Kokkos_CXX_COMPILER_ID STREQUAL "NVIDIA")
  # nvcc shows the host's compiler code of its own making: warnings would not be about ours. And fmt 9
  # thinks that nvcc has no constexpr.
  list(FILTER millrace_compile EXCLUDE REGEX "^-W")
  list(APPEND millrace_compile -DFMT_USE_CONSTEXPR=1)
endif()
# Hot loops are compiled for three levels of x86-64 and chosen at start (core/instruction_level.hpp), the
# rest for the lowest of them; or all of it for the processor of this machine alone.
if(MILLRACE_NATIVE)
  list(APPEND millrace_compile -march=native)
  target_compile_definitions(millrace_options INTERFACE MILLRACE_NATIVE)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    # 512-bit vectors are worth it in streaming kernels; GCC prefers 256 by default.
    list(APPEND millrace_compile -mprefer-vector-width=512)
  endif()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND millrace_compile -march=x86-64-v2)
endif()
target_compile_options(millrace_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${millrace_compile}>")
# A mistake of ours ends the process instead of writing where it should not: bounds of the standard
# library's containers and of libc's copies are checked, and the tables of library functions are
# read-only once the program runs. Sanitizers check more, nvcc compiles the checks for the device, where
# they have no functions to call, and without optimisation libc's headers only warn.
if(NOT MILLRACE_SANITIZE AND NOT Kokkos_CXX_COMPILER_ID STREQUAL "NVIDIA")
  target_compile_definitions(millrace_options INTERFACE _GLIBCXX_ASSERTIONS)
  target_compile_options(millrace_options INTERFACE
    "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release,RelWithDebInfo>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=3>")
endif()
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  target_link_options(millrace_options INTERFACE LINKER:-z,relro LINKER:-z,now)
endif()
if(MILLRACE_SANITIZE)
  # GCC's own checks for uninitialised values misfire on instrumented code, says its manual.
  target_compile_options(millrace_options INTERFACE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
    -fsanitize=${MILLRACE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(millrace_options INTERFACE -fsanitize=${MILLRACE_SANITIZE})
endif()

# millrace_library(<folder> SOURCES ... COLD_SOURCES ... LIBRARIES ...): one static library per folder.
# Cold sources hold no loop that a training waits for: they are compiled at -O1, which takes a third
# less time than -O3.
function(millrace_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;COLD_SOURCES;LIBRARIES")
  add_library(millrace_${name} STATIC ${arg_SOURCES} ${arg_COLD_SOURCES})
  add_library(millrace::${name} ALIAS millrace_${name})
  target_link_libraries(millrace_${name} PUBLIC millrace::options ${arg_LIBRARIES})
  set_source_files_properties(${arg_COLD_SOURCES} PROPERTIES
    COMPILE_OPTIONS "$<$<CONFIG:Release,RelWithDebInfo>:-O1>")
  millrace_precompile(millrace_${name})
endfunction()
