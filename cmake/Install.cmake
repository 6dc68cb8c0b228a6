# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` writes: the program, recipes, manual pages, completion.
set(millrace_share ${CMAKE_INSTALL_DATADIR}/millrace)

# Without symbols, whether --strip is given or not: debuggers have the program of the build.
install(CODE "set(CMAKE_INSTALL_DO_STRIP TRUE)" COMPONENT program)
install(TARGETS millrace RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
install(DIRECTORY configs DESTINATION ${millrace_share} COMPONENT program USE_SOURCE_PERMISSIONS)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)

# Manual pages and completion come from the tables of commands and options, so from the program.
set(millrace_pages ${PROJECT_BINARY_DIR}/generated/pages)
add_custom_command(OUTPUT ${millrace_pages}/millrace ${millrace_pages}/man1/millrace.1
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${millrace_pages}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${millrace_pages}/man1
  COMMAND millrace --write-manuals ${millrace_pages}/man1
  COMMAND millrace --write-completion ${millrace_pages}/millrace
  COMMENT "Writing manual pages and completion" VERBATIM)
add_custom_target(millrace_pages ALL DEPENDS ${millrace_pages}/millrace)
install(DIRECTORY ${millrace_pages}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT program)
install(FILES ${millrace_pages}/millrace COMPONENT program
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
