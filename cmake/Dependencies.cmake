# SPDX-License-Identifier: Apache-2.0
# Finds all third-party software. Nothing is downloaded.

# millrace_read_version(<variable> <header> <prefix> <last>): the version that a header defines as
# PREFIX_MAJOR, PREFIX_MINOR and PREFIX_LAST.
function(millrace_read_version variable header prefix last)
  file(STRINGS ${header} lines REGEX "define ${prefix}_(MAJOR|MINOR|${last}) ")
  string(REGEX REPLACE "[^0-9;]" "" numbers "${lines}")
  list(JOIN numbers "." version)
  set(${variable} ${version} PARENT_SCOPE)
endfunction()

# Kokkos: given by Kokkos_ROOT, or the newest built by scripts/setup, or Debian's Serial-only
# package.
if(NOT Kokkos_ROOT AND NOT DEFINED ENV{Kokkos_ROOT})
  set(millrace_cache $ENV{XDG_CACHE_HOME})
  if(NOT millrace_cache)
    set(millrace_cache $ENV{HOME}/.cache)
  endif()
  file(GLOB millrace_cached_kokkos LIST_DIRECTORIES true ${millrace_cache}/millrace/kokkos-*)
  list(SORT millrace_cached_kokkos COMPARE NATURAL ORDER DESCENDING)
  list(APPEND CMAKE_PREFIX_PATH ${millrace_cached_kokkos})
endif()
# No version here: Kokkos declares its major versions incompatible, but 3.4 to 5.x all work.
find_package(Kokkos QUIET)
if(NOT Kokkos_FOUND)
  message(FATAL_ERROR "Kokkos was not found: run scripts/setup, or set Kokkos_ROOT to your own")
elseif(Kokkos_VERSION VERSION_LESS 3.4)
  message(FATAL_ERROR "Kokkos ${Kokkos_VERSION} in ${Kokkos_DIR} is too old: 3.4 is the oldest "
    "that works; run scripts/setup, or set Kokkos_ROOT to a newer one")
endif()
# Debian's package names an include folder that does not exist, so that CMake fails to generate.
get_target_property(millrace_kokkos_includes Kokkos::kokkos INTERFACE_INCLUDE_DIRECTORIES)
foreach(folder IN LISTS millrace_kokkos_includes)
  if(folder MATCHES "^/" AND NOT EXISTS "${folder}")
    set_target_properties(Kokkos::kokkos PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${Kokkos_INCLUDE_DIRS}"
      INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${Kokkos_INCLUDE_DIRS}")
    break()
  endif()
endforeach()
# Whether kernels run on cores; otherwise a compiler for GPUs reads their sources twice, once for the
# host and once for the device.
set(millrace_on_cpu ON)
if(Kokkos_DEVICES MATCHES "CUDA|HIP|SYCL|OPENMPTARGET|OPENACC")
  set(millrace_on_cpu OFF)
endif()
# Flags of these compilers; those that hold for cores as well are in ProjectOptions.cmake.
if(Kokkos_CXX_COMPILER_ID STREQUAL "NVIDIA")
  # -fmad=false corresponds to -ffp-contract=off on the host. A kernel that calls a host function
  # would fail at run time, and nvcc would only warn. Kernels may call constexpr members of
  # std::array (blocks of random numbers) only with --expt-relaxed-constexpr.
  target_compile_options(Kokkos::kokkos INTERFACE -fmad=false --expt-relaxed-constexpr
    --Werror=cross-execution-space-call)
  # What does not use Kokkos is for the host alone, and goes to its compiler without nvcc.
  set(uses_kokkos $<IN_LIST:KOKKOS_DEPENDENCE,$<TARGET_PROPERTY:COMPILE_DEFINITIONS>>)
  add_compile_options($<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:${uses_kokkos}>>:--host-only>)
elseif(Kokkos_CXX_COMPILER_ID STREQUAL "HIPCC")
  # hipcc would read all sources twice, which takes long; clang does so where Kokkos tells it to.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-xc++>)
  target_compile_options(Kokkos::kokkos INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-xhip>)
endif()
if(Kokkos_DEVICES STREQUAL "SERIAL" AND NOT MILLRACE_SANITIZE STREQUAL "thread")
  message(WARNING "Kokkos ${Kokkos_VERSION} in ${Kokkos_DIR} runs own kernels on one core; "
    "scripts/setup builds one with OpenMP")
endif()

set(MPI_CXX_SKIP_MPICXX ON)
set(MPI_DETERMINE_LIBRARY_VERSION ON)
find_package(MPI REQUIRED COMPONENTS CXX)
find_package(fmt 9 REQUIRED)
find_package(toml11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Threads REQUIRED)

set(HDF5_PREFER_PARALLEL OFF)
find_package(HDF5 1.10 REQUIRED COMPONENTS C)
if(HDF5_IS_PARALLEL)
  message(STATUS "HDF5 is a parallel build; only its serial interface is used.")
endif()
if(NOT TARGET hdf5::hdf5)
  message(FATAL_ERROR "FindHDF5 gave no target hdf5::hdf5")
endif()

# Decoding parts of a JPEG image requires functions that only libjpeg-turbo has.
find_package(JPEG QUIET)
if(NOT JPEG_FOUND)
  message(FATAL_ERROR "libjpeg-turbo was not found: run scripts/setup, or set JPEG_INCLUDE_DIR and "
    "JPEG_LIBRARY")
endif()
include(CheckSymbolExists)
set(CMAKE_REQUIRED_INCLUDES ${JPEG_INCLUDE_DIRS})
set(CMAKE_REQUIRED_LIBRARIES ${JPEG_LIBRARIES})
check_symbol_exists(jpeg_crop_scanline "stdio.h;jpeglib.h" MILLRACE_JPEG_CROPS)
unset(CMAKE_REQUIRED_INCLUDES)
unset(CMAKE_REQUIRED_LIBRARIES)
if(NOT MILLRACE_JPEG_CROPS)
  unset(MILLRACE_JPEG_CROPS CACHE)  # so that another library is checked
  message(FATAL_ERROR "the libjpeg in ${JPEG_INCLUDE_DIRS} cannot decode parts of an image: "
    "libjpeg-turbo 1.5 is the oldest that works; set JPEG_INCLUDE_DIR and JPEG_LIBRARY to a newer one")
endif()
find_package(PNG QUIET)
if(NOT PNG_FOUND)
  message(FATAL_ERROR "libpng was not found: run scripts/setup, or set PNG_PNG_INCLUDE_DIR and "
    "PNG_LIBRARY")
endif()

# oneDNN computes in host memory, so it is off if Kokkos uses the memory of a GPU by default.
option(MILLRACE_ONEDNN "Convolution and dense by oneDNN (CPU only)" ${millrace_on_cpu})
if(MILLRACE_ONEDNN AND NOT millrace_on_cpu)
  message(FATAL_ERROR "MILLRACE_ONEDNN is ON, but Kokkos in ${Kokkos_DIR} computes on "
    "${Kokkos_DEVICES}: set MILLRACE_ONEDNN=OFF, or Kokkos_ROOT to a Kokkos for CPUs")
endif()
# 2.6 .. 3.x. Found without its CMake package, which on Debian requires unneeded OpenCL headers.
add_library(onednn INTERFACE)
if(MILLRACE_ONEDNN)
  find_path(ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
  find_library(ONEDNN_LIBRARY dnnl)
  if(NOT ONEDNN_INCLUDE_DIR OR NOT ONEDNN_LIBRARY)
    message(FATAL_ERROR "oneDNN was not found: run scripts/setup, or set ONEDNN_INCLUDE_DIR and "
      "ONEDNN_LIBRARY")
  endif()
  millrace_read_version(ONEDNN_VERSION ${ONEDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h
    DNNL_VERSION PATCH)
  if(ONEDNN_VERSION VERSION_LESS 2.6)
    message(FATAL_ERROR "oneDNN ${ONEDNN_VERSION} in ${ONEDNN_INCLUDE_DIR} is too old: 2.6 is the "
      "oldest that works; set ONEDNN_INCLUDE_DIR and ONEDNN_LIBRARY to a newer one")
  endif()
  target_include_directories(onednn SYSTEM INTERFACE ${ONEDNN_INCLUDE_DIR})
  target_link_libraries(onednn INTERFACE ${ONEDNN_LIBRARY})
  target_compile_definitions(onednn INTERFACE MILLRACE_ONEDNN)
endif()

# cuDNN computes what oneDNN does on cores. Its plans need no GPU, so that tests look at them where
# the library is, in builds for CPUs, too.
find_package(CUDAToolkit QUIET)
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
set(millrace_cudnn_found OFF)
if(CUDNN_INCLUDE_DIR AND CUDNN_LIBRARY AND CUDAToolkit_FOUND)
  millrace_read_version(CUDNN_VERSION ${CUDNN_INCLUDE_DIR}/cudnn_version.h CUDNN PATCHLEVEL)
  # The first with descriptions of devices that are not there.
  if(CUDNN_VERSION VERSION_GREATER_EQUAL 9.8)
    set(millrace_cudnn_found ON)
  endif()
endif()
set(millrace_use_cudnn OFF)
if(Kokkos_DEVICES MATCHES "CUDA" AND millrace_cudnn_found)
  set(millrace_use_cudnn ON)
endif()
option(MILLRACE_CUDNN "Convolution and dense by cuDNN (NVIDIA GPUs only)" ${millrace_use_cudnn})
if(MILLRACE_CUDNN AND NOT Kokkos_DEVICES MATCHES "CUDA")
  message(FATAL_ERROR "MILLRACE_CUDNN is ON, but Kokkos in ${Kokkos_DIR} computes on "
    "${Kokkos_DEVICES}: set MILLRACE_CUDNN=OFF, or Kokkos_ROOT to a Kokkos for CUDA")
elseif(MILLRACE_CUDNN AND NOT millrace_cudnn_found)
  message(FATAL_ERROR "cuDNN 9.8 or newer was not found: set CUDNN_INCLUDE_DIR and CUDNN_LIBRARY, "
    "or MILLRACE_CUDNN=OFF")
endif()
if(millrace_cudnn_found)
  add_library(cudnn INTERFACE)
  target_include_directories(cudnn SYSTEM INTERFACE ${CUDNN_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(cudnn INTERFACE ${CUDNN_LIBRARY})
endif()

# cublasLt computes weight gradients that are matrix products, for which cuDNN has no float32 result.
# Tests need its header only: a library of our own stands in for it (tests/support/cublas).
find_path(CUBLASLT_INCLUDE_DIR cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
set(millrace_use_cublaslt OFF)
if(CUBLASLT_INCLUDE_DIR AND TARGET CUDA::cublasLt)
  set(millrace_use_cublaslt ON)
endif()
include(CMakeDependentOption)
cmake_dependent_option(MILLRACE_CUBLASLT "Weight gradients of 1x1 convolutions and dense by cublasLt"
  ${millrace_use_cublaslt} "MILLRACE_CUDNN" OFF)
if(MILLRACE_CUBLASLT AND NOT millrace_use_cublaslt)
  message(FATAL_ERROR "cublasLt was not found beside CUDA: set CUDAToolkit_ROOT, or "
    "MILLRACE_CUBLASLT=OFF")
elseif(MILLRACE_CUBLASLT)
  millrace_read_version(CUBLASLT_VERSION ${CUBLASLT_INCLUDE_DIR}/cublas_api.h CUBLAS_VER PATCH)
endif()
if(CUBLASLT_INCLUDE_DIR AND CUDAToolkit_FOUND)
  add_library(cublaslt_headers INTERFACE)
  target_include_directories(cublaslt_headers SYSTEM INTERFACE
    ${CUBLASLT_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
endif()

# CUTLASS has the parts of our own products for Hopper GPUs. It is headers alone, which PyPI's
# nvidia-cutlass has as well.
set(millrace_use_cutlass OFF)
if(Kokkos_DEVICES MATCHES "CUDA" AND Kokkos_ARCH MATCHES "HOPPER90")
  find_package(Python3 QUIET COMPONENTS Interpreter)
  find_path(CUTLASS_INCLUDE_DIR cutlass/version.h
    HINTS ${CUDAToolkit_INCLUDE_DIRS} ${Python3_SITELIB}/cutlass_library/source/include)
  if(CUTLASS_INCLUDE_DIR)
    millrace_read_version(CUTLASS_VERSION ${CUTLASS_INCLUDE_DIR}/cutlass/version.h CUTLASS PATCH)
    # The oldest that was tried.
    if(CUTLASS_VERSION VERSION_GREATER_EQUAL 4.2)
      set(millrace_use_cutlass ON)
    endif()
  endif()
endif()
option(MILLRACE_CUTLASS "1x1 convolutions by products with a norm's sums (Hopper GPUs only)"
  ${millrace_use_cutlass})
if(MILLRACE_CUTLASS AND NOT millrace_use_cutlass)
  message(FATAL_ERROR "MILLRACE_CUTLASS is ON, which needs a Kokkos for CUDA and sm_90, and CUTLASS "
    "4.2 or newer: set CUTLASS_INCLUDE_DIR, or MILLRACE_CUTLASS=OFF")
endif()

# NCCL carries messages between GPUs, beside kernels. On the fake device, a library for tests stands in
# for it (tests/support/nccl), if this build has tests.
set(millrace_use_nccl OFF)
if(MILLRACE_FAKE_DEVICE AND MILLRACE_SIDE_QUEUES)
  set(millrace_use_nccl ${MILLRACE_TESTS})
elseif(MILLRACE_SIDE_QUEUES AND Kokkos_DEVICES MATCHES "CUDA")
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib)
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    millrace_read_version(NCCL_VERSION ${NCCL_INCLUDE_DIR}/nccl.h NCCL PATCH)
    # The first whose communicators can be told how many multiprocessors to use.
    if(NCCL_VERSION VERSION_GREATER_EQUAL 2.17)
      set(millrace_use_nccl ON)
    endif()
  endif()
endif()
option(MILLRACE_NCCL "Messages between ranks by NCCL (NVIDIA GPUs only)" ${millrace_use_nccl})
if(MILLRACE_NCCL AND NOT MILLRACE_SIDE_QUEUES)
  message(FATAL_ERROR "MILLRACE_NCCL is ON, but MILLRACE_SIDE_QUEUES, which it needs, is OFF")
elseif(MILLRACE_NCCL AND NOT millrace_use_nccl)
  if(Kokkos_DEVICES MATCHES "CUDA")
    message(FATAL_ERROR "NCCL 2.17 or newer was not found: set NCCL_INCLUDE_DIR and NCCL_LIBRARY, "
      "or MILLRACE_NCCL=OFF")
  endif()
  message(FATAL_ERROR "MILLRACE_NCCL is ON, but Kokkos in ${Kokkos_DIR} computes on "
    "${Kokkos_DEVICES}: set MILLRACE_NCCL=OFF, or Kokkos_ROOT to a Kokkos for CUDA")
endif()
if(MILLRACE_NCCL AND NOT MILLRACE_FAKE_DEVICE)
  add_library(nccl INTERFACE)
  target_include_directories(nccl SYSTEM INTERFACE ${NCCL_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(nccl INTERFACE ${NCCL_LIBRARY})
endif()

# protobuf 3.12 .. 21: CMake's own module. Later versions: their package, which also finds abseil.
find_package(Protobuf CONFIG QUIET)
if(NOT Protobuf_FOUND)
  find_package(Protobuf QUIET)
endif()
if(NOT TARGET protobuf::libprotobuf-lite OR NOT TARGET protobuf::protoc)
  message(FATAL_ERROR "protobuf was not found (the library and its compiler protoc): run "
    "scripts/setup, or set CMAKE_PREFIX_PATH to your own")
elseif(Protobuf_VERSION VERSION_LESS 3.12)
  message(FATAL_ERROR "protobuf ${Protobuf_VERSION} is too old: 3.12 is the oldest that works; set "
    "CMAKE_PREFIX_PATH to a newer one")
endif()
add_library(millrace_protobuf INTERFACE)
add_library(millrace::protobuf ALIAS millrace_protobuf)
target_link_libraries(millrace_protobuf INTERFACE protobuf::libprotobuf-lite)

# millrace_plain_library(NAME TARGET VARIABLE HEADER LIBRARY): millrace::TARGET for a library that is
# found by its files alone, in VARIABLE_INCLUDE_DIR and VARIABLE_LIBRARY.
function(millrace_plain_library name target variable header library)
  find_path(${variable}_INCLUDE_DIR ${header})
  find_library(${variable}_LIBRARY ${library})
  if(NOT ${variable}_INCLUDE_DIR OR NOT ${variable}_LIBRARY)
    message(FATAL_ERROR "${name} was not found: run scripts/setup, or set ${variable}_INCLUDE_DIR and "
      "${variable}_LIBRARY")
  endif()
  add_library(millrace_${target} INTERFACE)
  add_library(millrace::${target} ALIAS millrace_${target})
  target_include_directories(millrace_${target} SYSTEM INTERFACE ${${variable}_INCLUDE_DIR})
  target_link_libraries(millrace_${target} INTERFACE ${${variable}_LIBRARY})
endfunction()

# libzip's own package names programs that Debian keeps in another one.
millrace_plain_library(libzip zip LIBZIP zip.h zip)

# SHA-256 and CRC-32C.
find_package(OpenSSL 1.1 QUIET COMPONENTS Crypto)
if(NOT TARGET OpenSSL::Crypto)
  message(FATAL_ERROR "OpenSSL was not found: run scripts/setup, or set OPENSSL_ROOT_DIR to your own")
endif()
millrace_plain_library(isa-l isal ISAL isa-l/crc.h isal)

if(MILLRACE_TESTS)
  find_package(GTest REQUIRED)
endif()
