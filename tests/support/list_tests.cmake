# SPDX-License-Identifier: Apache-2.0
# Tells ctest which tests a GoogleTest program contains. ctest includes this at start-up, with these
# variables, which millrace_run() (tests/CMakeLists.txt) sets:
#   name        the entries are <name>.<Suite>, or <name>.<Suite>.<Case>
#   program     the executable
#   list        a file that caches the program's list until program or script change
#   only        what to list, as a GoogleTest filter; empty: everything
#   apart       suites whose cases have their own entries; "*" for all
#   alone       suites that run while no other test runs
#   properties  name, value, name, value, ... of every entry
#
# Usually an entry is a suite: most cases take a millisecond or two, but starting a process takes 20
# to 70. Cases that take seconds have their own entries, so that they run in parallel and ctest's
# table shows the slow ones.
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

# The program lists "Suite.", then "  Case" for each of its cases, some followed by a comment.
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
