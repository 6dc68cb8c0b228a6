# SPDX-License-Identifier: Apache-2.0
include(GNUInstallDirs)
install(TARGETS millrace RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/millrace)
