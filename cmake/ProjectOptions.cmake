# SPDX-License-Identifier: Apache-2.0
# One interface target holds language, warnings, architecture and sanitizers of all our code.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})

add_library(millrace_options INTERFACE)
add_library(millrace::options ALIAS millrace_options)
target_include_directories(millrace_options INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)

# Streaming kernels need full vectorization, which GCC does at -O3, as in CMake's Release. Debug
# information takes a third of the compile time, so only developers' presets enable it.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -g -DNDEBUG")
# No contraction of a*b+c: a fused kernel and its parts must give the same bits. Nothing reads
# floating-point flags or errno after arithmetic; if comparisons could raise a flag or roots set
# errno, GCC would not vectorize their loops below AVX-512.
set(millrace_compile -ffp-contract=off -fno-trapping-math -fno-math-errno)
# One compilation serves the program, the archive and the shared library. Nobody replaces our functions
# in a shared library, so that they may be inlined there as in a program.
list(APPEND millrace_compile -fPIC -fno-semantic-interposition)
if(millrace_on_cpu)
  list(APPEND millrace_compile -fopenmp-simd)  # clang would use it for kernels of GPUs as well
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "IntelLLVM")
  # Its default reorders sums. First, as it allows contractions.
  list(PREPEND millrace_compile -fp-model=precise)
endif()
list(APPEND millrace_compile
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wdouble-promotion -Wnon-virtual-dtor
  -Woverloaded-virtual -Wold-style-cast -Wformat=2)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 stores wrong constants with AVX-512: std::vector<double>{2, 2, 2, 0} became 2, 2, 2, 2.
  # It expands a copy of 256 bits as a broadcast of the first element if only zeros follow; copies
  # of 128 bits are correct. Most such copies come from the SLP vectorizer, which our loops do not
  # need.
  list(APPEND millrace_compile -fno-tree-slp-vectorize)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12)
    list(APPEND millrace_compile -mmove-max=128 -mstore-max=128)
  endif()
  # -Wrestrict of GCC 12 gives false warnings about std::string (GCC bug 105651).
  list(APPEND millrace_compile -Wduplicated-cond -Wlogical-op -Wno-restrict)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # A loop that clang cannot vectorize as requested is slow but correct.
  list(APPEND millrace_compile -Wno-pass-failed)
endif()
if(MILLRACE_WERROR)
  list(APPEND millrace_compile -Werror)
endif()
if(Kokkos_CXX_COMPILER_ID STREQUAL "NVIDIA")
  # nvcc passes generated code to the host compiler, so warnings would not be about our code. And
  # fmt 9 assumes that nvcc has no constexpr.
  list(FILTER millrace_compile EXCLUDE REGEX "^-W")
  list(APPEND millrace_compile -DFMT_USE_CONSTEXPR=1)
endif()
if(MILLRACE_VARIANTS)
  target_compile_definitions(millrace_options INTERFACE MILLRACE_VARIANTS)
endif()
# Hot loops are compiled for three levels of x86-64 and chosen at start-up
# (core/instruction_level.hpp), all other code for the lowest level. MILLRACE_NATIVE compiles
# everything for this machine only.
if(MILLRACE_NATIVE)
  list(APPEND millrace_compile -march=native)
  target_compile_definitions(millrace_options INTERFACE MILLRACE_NATIVE)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    # Streaming kernels are faster with 512-bit vectors; GCC prefers 256 by default.
    list(APPEND millrace_compile -mprefer-vector-width=512)
  endif()
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND millrace_compile -march=x86-64-v2)
endif()
target_compile_options(millrace_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${millrace_compile}>")
# Memory errors end the process instead of corrupting memory: bounds of standard containers and of
# libc's copies are checked, and the tables of library functions are read-only at run time. Not with
# sanitizers, which check more; not for GPUs, whose compilers would compile the checks for the device,
# where their functions do not exist; not without optimization, where libc's headers only warn.
if(NOT MILLRACE_SANITIZE AND millrace_on_cpu)
  target_compile_definitions(millrace_options INTERFACE _GLIBCXX_ASSERTIONS)
  target_compile_options(millrace_options INTERFACE
    "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release,RelWithDebInfo>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=3>")
endif()
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  target_link_options(millrace_options INTERFACE LINKER:-z,relro LINKER:-z,now)
endif()
if(MILLRACE_SANITIZE)
  # According to GCC's manual, its warnings about uninitialized values misfire on instrumented code.
  target_compile_options(millrace_options INTERFACE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
    -fsanitize=${MILLRACE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
    # Null pointers crash, and the address sanitizer finds what lies outside of an object; these checks
    # are a quarter of the time of compiling.
    -fno-sanitize=null,object-size)
  target_link_options(millrace_options INTERFACE -fsanitize=${MILLRACE_SANITIZE})
endif()

# millrace_united(<name> <result> <source> ..): with MILLRACE_UNITY, sources that include those given,
# eight each: the headers that they share are compiled once for all eight. A source with the property
# SKIP_UNITY_BUILD_INCLUSION stays alone.
function(millrace_united name result)
  set(units "")
  set(united "")
  foreach(source IN LISTS ARGN)
    get_source_file_property(alone ${source} SKIP_UNITY_BUILD_INCLUSION)
    if(MILLRACE_UNITY AND NOT alone AND NOT source MATCHES "\\$<")
      cmake_path(ABSOLUTE_PATH source)
      list(APPEND united "#include \"${source}\"\n")
    else()
      list(APPEND units ${source})
    endif()
  endforeach()
  list(LENGTH united count)
  set(begin 0)
  while(begin LESS count)
    list(SUBLIST united ${begin} 8 includes)
    list(JOIN includes "" includes)
    set(unit ${CMAKE_CURRENT_BINARY_DIR}/${name}_${begin}.cpp)
    file(CONFIGURE OUTPUT ${unit} CONTENT "${includes}")
    list(APPEND units ${unit})
    math(EXPR begin "${begin} + 8")
  endwhile()
  set(${result} ${units} PARENT_SCOPE)
endfunction()

# millrace_library(<folder> SOURCES ... COLD_SOURCES ... LIBRARIES ...): one static library per
# folder. Cold sources contain no loops that a training waits for. They are compiled at -O1, which
# takes a third less time than -O3, and several at once.
function(millrace_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;COLD_SOURCES;LIBRARIES")
  millrace_united(${name} cold ${arg_COLD_SOURCES})
  add_library(millrace_${name} STATIC ${arg_SOURCES} ${cold})
  add_library(millrace::${name} ALIAS millrace_${name})
  target_link_libraries(millrace_${name} PUBLIC millrace::options ${arg_LIBRARIES})
  set_source_files_properties(${cold} PROPERTIES
    COMPILE_OPTIONS "$<$<CONFIG:Release,RelWithDebInfo>:-O1>")
  millrace_precompile(millrace_${name})
endfunction()

# millrace_wire_format(<target> <name>): a library of the messages in <name>.proto. Generated code is
# compiled without our warnings, and its headers are system headers.
function(millrace_wire_format target name)
  add_custom_command(OUTPUT ${name}.pb.cc ${name}.pb.h
    COMMAND protobuf::protoc --cpp_out=${CMAKE_CURRENT_BINARY_DIR} -I${CMAKE_CURRENT_SOURCE_DIR}
      ${name}.proto
    DEPENDS ${name}.proto VERBATIM)
  add_library(${target} STATIC ${name}.pb.cc ${name}.pb.h)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${target} PUBLIC millrace::protobuf)
  target_include_directories(${target} SYSTEM PUBLIC ${CMAKE_CURRENT_BINARY_DIR})
  if(MILLRACE_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${MILLRACE_SANITIZE})
  endif()
endfunction()
