# SPDX-License-Identifier: Apache-2.0
# Debian packages, by `cpack`: millrace, the shared library, and libmillrace-dev for programs that use it.
if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME millrace)
set(CPACK_PACKAGE_VENDOR "The millrace developers")
set(CPACK_PACKAGE_CONTACT "The millrace developers <millrace@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_COMPONENTS_ALL program library development)
set(CPACK_COMPONENT_PROGRAM_DESCRIPTION
  "Trains ResNet, ResNeXt, SqueezeNet and EfficientNet on CIFAR and ImageNet,\n\
cut into stages that run as a pipeline over processes. With the recipes of\n\
the IPU, NVIDIA, Habana and SURFsara trainers.")
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION
  "Shared library: trains and classifies in programs of their own.")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
  "Static library, headers and CMake package, for programs that train and\n\
classify.")
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME millrace)
# The libraries that the program is linked to, by dpkg-shlibdeps. mpirun starts the ranks.
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS openmpi-bin)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libmillrace${millrace_soversion})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libmillrace-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
  "libmillrace${millrace_soversion} (= ${PROJECT_VERSION}), libfmt-dev, libopenmpi-dev, libhdf5-dev, libdnnl-dev, libprotobuf-dev, libssl-dev, libisal-dev")
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/DebianFiles.cmake)
include(CPack)
