# SPDX-License-Identifier: Apache-2.0
# libmillrace.a: the trainer and everything of ours that it is made of, in one archive. Its front
# door is src/train/training.hpp.

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
millrace_parts(millrace_trainer millrace_library_parts)
list(TRANSFORM millrace_library_parts REPLACE ".+" "$<TARGET_OBJECTS:\\0>" OUTPUT_VARIABLE objects)
add_library(millrace_library STATIC ${objects})
set_target_properties(millrace_library PROPERTIES OUTPUT_NAME millrace LINKER_LANGUAGE CXX)
