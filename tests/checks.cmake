# SPDX-License-Identifier: Apache-2.0
# Tests of the sources themselves: layering, format, and the shell scripts.
find_program(BASH bash REQUIRED)
set(layering ${CMAKE_CURRENT_SOURCE_DIR}/support/layering.sh)
add_test(NAME layering COMMAND ${BASH} ${layering} ${PROJECT_SOURCE_DIR})

# How many lines and files there may be.
add_test(NAME budget COMMAND ${BASH} ${CMAKE_CURRENT_SOURCE_DIR}/support/budget.sh ${PROJECT_SOURCE_DIR})

# The check itself, on a tree with one violation of each kind and one comment that is none.
set(fixture ${CMAKE_CURRENT_BINARY_DIR}/layering_fixture)
file(WRITE ${fixture}/src/core/a.hpp "#include \"io/dataset.hpp\"\n// MPI_Init in a comment\n")
file(WRITE ${fixture}/src/cli/b.cpp "int rc = MPI_Init(nullptr, nullptr);\n")
file(WRITE ${fixture}/io/checkpoint.cpp "hid_t file = H5Fopen(name, H5F_ACC_RDONLY, H5P_DEFAULT);\n")
file(WRITE ${fixture}/src/ops/conv.cpp "dnnl::memory memory;\n")
file(WRITE ${fixture}/pipeline/executor.cpp "cudaFree(pointer);\n")
file(WRITE ${fixture}/src/ops/cudnn/op.cpp "cublasLtCreate(&handle);\n")
file(WRITE ${fixture}/src/ops/onednn/op.cpp "cudnnCreate(&handle);\n")
file(WRITE ${fixture}/src/device/parallel.cpp "ncclSend(data, count, type, peer, comm, stream);\n")
file(WRITE ${fixture}/src/ops/pool.cpp "hipMalloc(&pointer, 1);\n")
file(WRITE ${fixture}/src/ops/norm.cpp "KOKKOS_FUNCTION double mean(Sums s) {\n  return float(s.x * 0.5);\n}\n")
file(WRITE ${fixture}/models/graph.cpp "#include <Kokkos_Core.hpp>\n")
file(WRITE ${fixture}/io/data/a.cpp "#include \"io/checkpoint.hpp\"\n#include \"io/atomic_file.hpp\"\n")
file(WRITE ${fixture}/io/events.cpp "#include <google/protobuf/message_lite.h>\n")
file(WRITE ${fixture}/src/extra/c.hpp "#pragma once\n")
file(WRITE ${fixture}/io/images/resample.cpp "#include \"io/dataset.hpp\"\n")
file(WRITE ${fixture}/io/images/header.cpp "#include <jpeglib.h>\n")
file(WRITE ${fixture}/pipeline/CMakeLists.txt "millrace_library(program\n  SOURCES replay.cpp\n  LIBRARIES core)\n")
file(WRITE ${fixture}/pipeline/replay.cpp "#include \"pipeline/stage.hpp\"\n")
file(WRITE ${fixture}/pipeline/stage.hpp "#include \"ops/conv.hpp\"\n")
add_test(NAME layering_finds COMMAND ${BASH} ${layering} ${fixture})
set_tests_properties(layering_finds PROPERTIES PASS_REGULAR_EXPRESSION "18 violations")

# The engine without its tools, and a tree without a folder of src/tools. Builds the program twice.
add_test(NAME tools COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/support/tools.sh ${CMAKE_COMMAND} ${PROJECT_SOURCE_DIR})
set_tests_properties(tools PROPERTIES LABELS long TIMEOUT 7200 PROCESSORS 2)

find_program(CLANG_FORMAT clang-format-14)
if(CLANG_FORMAT)
  add_test(NAME format
    COMMAND ${BASH} ${CMAKE_CURRENT_SOURCE_DIR}/support/format.sh ${CLANG_FORMAT} ${PROJECT_SOURCE_DIR})
else()
  message(STATUS "clang-format-14 was not found: the format is not tested")
endif()

find_program(SHELLCHECK shellcheck)
if(SHELLCHECK)
  add_test(NAME shellcheck COMMAND ${SHELLCHECK} scripts/setup scripts/demo scripts/test scripts/check-cuda scripts/check-gpu .ci/run
    ${layering} tests/support/budget.sh tests/support/format.sh tests/support/tidy.sh tests/support/pack_corpus.sh
    tests/support/hardened.sh tests/e2e/hosts/hosts.sh tests/e2e/hosts/slow_links.sh tests/e2e/hosts/ssh.sh tests/e2e/hosts/elastic.sh tests/e2e/hosts/random_losses.sh tests/e2e/hosts/slurm.sh tests/e2e/supervise.sh tests/e2e/soak.sh
    tests/gpu/run.sh tests/gpu/filters.sh tests/gpu/pack.sh tests/gpu/packed.sh tests/gpu/pack_test.sh
    tests/support/check_gpu.sh tests/support/tools.sh tests/e2e/install.sh tests/e2e/library.sh tests/e2e/launch.sh configs/launch/supervise.sh configs/launch/slurm.sh
    configs/launch/mpirun.sh configs/launch/tf-config.sh WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
endif()

# The script for a machine with a GPU: its steps, within eight minutes.
add_test(NAME gpu_dry_run COMMAND ${BASH} tests/gpu/run.sh --dry-run
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
# Its filters name tests of this build. Only builds with a vendor's library have frugal kernels.
add_test(NAME gpu_filters COMMAND ${BASH} tests/gpu/filters.sh ${PROJECT_BINARY_DIR}
  $<$<NOT:$<OR:$<BOOL:${MILLRACE_ONEDNN}>,$<BOOL:${MILLRACE_CUDNN}>>>:*Frugal*>
  COMMAND_EXPAND_LISTS WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
set_tests_properties(gpu_filters PROPERTIES LABELS "e2e;device")
# What it does in Python: arithmetic and messages, and one of its measurements on a small network.
find_program(PYTHON3 python3)
if(PYTHON3)
  add_test(NAME gpu_scripts COMMAND ${PYTHON3} -B tests/gpu/scripts_test.py
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # The command lines of the documents, which name every tool.
  set(all_tools bench data dialects onnx predict report tensorboard weights)
  list(REMOVE_ITEM all_tools ${built_tools} "")
  if(NOT all_tools AND NOT MILLRACE_SANITIZE AND NOT MILLRACE_FAKE_DEVICE)
    add_test(NAME docs_lines COMMAND ${PYTHON3} -B tests/e2e/docs_lines_test.py $<TARGET_FILE:millrace>
      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(docs_lines PROPERTIES LABELS "e2e;mpi" PROCESSORS 2 TIMEOUT 600 COST 40)
  endif()
  # Comparisons with PyTorch on small networks; without PyTorch a stand-in has its part.
  if(bench IN_LIST built_tools)
    add_test(NAME bench_scripts COMMAND ${PYTHON3} -B tests/bench/scripts_test.py
      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(bench_scripts PROPERTIES LABELS "e2e;mpi" PROCESSORS 2 TIMEOUT 300
      ENVIRONMENT MILLRACE=$<TARGET_FILE:millrace>)
    add_test(NAME gpu_two_stages COMMAND ${PYTHON3} -B tests/gpu/stages.py resnet8 --batch 4 --depth 4 --steps 3
      --rounds 2 --millrace $<TARGET_FILE:millrace> --options "--threads-per-device 1"
      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(gpu_two_stages PROPERTIES LABELS "e2e;mpi" PROCESSORS 2 TIMEOUT 120
      PASS_REGULAR_EXPRESSION "two stages take [0-9.]+ times one stage .bar: 1.10., two processes [0-9.]+; 4 x 4 images\n")
  endif()
else()
  message(STATUS "python3 was not found: what tests/gpu/run.sh does in Python is not tested")
endif()
# Ranks start from what it packs. Skipped without Open MPI.
if(NOT MILLRACE_SANITIZE)
  add_test(NAME gpu_pack COMMAND ${BASH} tests/gpu/pack_test.sh ${PROJECT_BINARY_DIR}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(gpu_pack PROPERTIES LABELS "e2e;mpi" PROCESSORS 2 TIMEOUT 240
    SKIP_RETURN_CODE 77 ENVIRONMENT OMP_WAIT_POLICY=passive)
endif()
# That a Kokkos for another device is refused.
add_test(NAME check_gpu COMMAND ${BASH} tests/support/check_gpu.sh WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})

# What the compiler and the linker were told is in the program.
find_program(READELF readelf)
if(READELF AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT MILLRACE_SANITIZE
   AND CMAKE_BUILD_TYPE MATCHES "Rel")
  add_test(NAME hardened
    COMMAND ${BASH} ${CMAKE_CURRENT_SOURCE_DIR}/support/hardened.sh ${READELF} $<TARGET_FILE:millrace>)
  set_tests_properties(hardened PROPERTIES LABELS e2e)
endif()

foreach(check layering layering_finds format shellcheck gpu_dry_run gpu_scripts check_gpu)
  if(TEST ${check})
    set_tests_properties(${check} PROPERTIES LABELS fast)
  endif()
endforeach()
