# SPDX-License-Identifier: Apache-2.0
# Tells ctest what one program of GoogleTest can run. ctest includes this when it starts, with these
# variables, which millrace_run() (tests/CMakeLists.txt) sets:
#   name        the entries are <name>.<Suite>, or <name>.<Suite>.<Case>
#   program     the executable
#   list        a file that keeps what the program listed, for as long as program and script are older
#   only        what to list, as GoogleTest's filter; empty: everything
#   apart       suites whose cases are entries of their own; "*" for all
#   alone       suites that need the machine for themselves
#   properties  name, value, name, value, ... of every entry
#
# One entry a suite is the rule, as most cases take a millisecond or two, and a process 20 to 70 of
# them to start. Where cases take seconds they stand apart: the cores share them, and ctest's table
# shows which one is slow.
cmake_policy(VERSION 3.25)

if(NOT EXISTS "${program}")
  add_test(${name}_NOT_BUILT ${program})
  return()
endif()

if("${program}" IS_NEWER_THAN "${list}" OR "${CMAKE_PARENT_LIST_FILE}" IS_NEWER_THAN "${list}")
  execute_process(COMMAND "${program}" --gtest_list_tests "--gtest_filter=${only}"
    OUTPUT_VARIABLE listed ERROR_VARIABLE said RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${program} does not list its tests:\n${listed}${said}")
  endif()
  file(WRITE "${list}" "${listed}")
endif()

function(add_entry title suite filter)
  add_test("${title}" "${program}" "--gtest_filter=${filter}")
  set_tests_properties("${title}" PROPERTIES ${properties})
  if("${suite}" IN_LIST alone)
    set_tests_properties("${title}" PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

function(add_suite suite cases)
  if("*" IN_LIST apart OR "${suite}" IN_LIST apart)
    foreach(case IN LISTS cases)
      add_entry("${name}.${suite}.${case}" "${suite}" "${suite}.${case}")
    endforeach()
  elseif(only STREQUAL "*")
    add_entry("${name}.${suite}" "${suite}" "${suite}.*")
  else()
    list(TRANSFORM cases PREPEND "${suite}." OUTPUT_VARIABLE cases)
    list(JOIN cases ":" filter)
    add_entry("${name}.${suite}" "${suite}" "${filter}")
  endif()
endfunction()

# The program lists "Suite.", then "  Case" for each of its cases, some with a comment behind.
file(STRINGS "${list}" lines)
set(suite "")
set(cases "")
foreach(line IN LISTS lines)
  string(REGEX REPLACE " +#.*" "" line "${line}")
  if(line MATCHES "^  (.+)$")
    list(APPEND cases "${CMAKE_MATCH_1}")
  elseif(line MATCHES "^([^ ]+)[.]$")
    if(cases)
      add_suite("${suite}" "${cases}")
    endif()
    set(suite "${CMAKE_MATCH_1}")
    set(cases "")
  endif()
endforeach()
if(cases)
  add_suite("${suite}" "${cases}")
endif()
