# SPDX-License-Identifier: Apache-2.0
# Prints the components of this build at the end of the configuration.
function(millrace_summary)
  set(sanitizers ${MILLRACE_SANITIZE})
  if(NOT sanitizers)
    set(sanitizers none)
  endif()
  set(tests "no")
  if(MILLRACE_TESTS)
    set(tests "GoogleTest ${GTest_VERSION}")
  endif()
  set(onednn "none: own kernels only")
  if(MILLRACE_ONEDNN)
    set(onednn "${ONEDNN_VERSION} in ${ONEDNN_LIBRARY}")
  endif()
  set(gpu "")
  if(MILLRACE_CUDNN)
    set(gpu "\n     cuDNN       ${CUDNN_VERSION} in ${CUDNN_LIBRARY}")
  elseif(Kokkos_DEVICES MATCHES "CUDA")
    set(gpu "\n     cuDNN       none: own kernels only")
  endif()
  if(MILLRACE_CUBLASLT)
    string(APPEND gpu "\n     cublasLt    ${CUBLASLT_VERSION} in ${CUDA_cublasLt_LIBRARY}")
  elseif(MILLRACE_CUDNN)
    string(APPEND gpu "\n     cublasLt    none: 16-bit weight gradients are rounded once a micro-batch")
  endif()
  if(MILLRACE_CUTLASS)
    string(APPEND gpu "\n     CUTLASS     ${CUTLASS_VERSION} in ${CUTLASS_INCLUDE_DIR}")
  endif()
  if(MILLRACE_NCCL AND MILLRACE_FAKE_DEVICE)
    string(APPEND gpu "\n     NCCL        a stand-in for tests")
  elseif(MILLRACE_NCCL)
    string(APPEND gpu "\n     NCCL        ${NCCL_VERSION} in ${NCCL_LIBRARY}")
  elseif(Kokkos_DEVICES MATCHES "CUDA")
    string(APPEND gpu "\n     NCCL        none: messages between GPUs by MPI")
  endif()
  string(REGEX MATCH "^[^,\n]+" mpi "${MPI_CXX_LIBRARY_VERSION_STRING}")
  string(REGEX REPLACE "[ \t]*Version:[ \t]*" " " mpi "${mpi}")  # format of MPICH
  list(JOIN Kokkos_DEVICES ", " devices)
  message(STATUS
    "millrace ${PROJECT_VERSION}
     compiler    ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, ${CMAKE_BUILD_TYPE}, \
native processor ${MILLRACE_NATIVE}, warnings as errors ${MILLRACE_WERROR}, sanitizers ${sanitizers}
     Kokkos      ${Kokkos_VERSION} (${devices}) in ${Kokkos_DIR}
     oneDNN      ${onednn}${gpu}
     MPI         ${mpi} (standard ${MPI_CXX_VERSION})
     HDF5        ${HDF5_VERSION}
     libraries   fmt ${fmt_VERSION}, toml11 ${toml11_VERSION}, \
nlohmann-json ${nlohmann_json_VERSION}, \
libjpeg ${JPEG_VERSION}, libpng ${PNG_VERSION_STRING}, protobuf ${Protobuf_VERSION}, \
OpenSSL ${OPENSSL_VERSION}
     tests       ${tests}")
endfunction()
