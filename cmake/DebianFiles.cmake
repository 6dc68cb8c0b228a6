# SPDX-License-Identifier: Apache-2.0
# What Debian asks of packages that `cmake --install` does not write: compressed manual pages, and
# share/doc/PACKAGE/copyright, which names the license text that every Debian has. Run by cpack
# before it makes the packages.
set(copyright "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: millrace

Files: *
Copyright: ${CPACK_PACKAGE_VENDOR}
License: Apache-2.0
 Licensed under the Apache License, Version 2.0 (the \"License\"); you may not use these files except
 in compliance with the License. Unless required by applicable law or agreed to in writing, software
 distributed under the License is distributed on an \"AS IS\" BASIS, WITHOUT WARRANTIES OR CONDITIONS
 OF ANY KIND, either express or implied. See the License for the specific language governing
 permissions and limitations under the License.
 .
 On Debian systems, the complete text of the Apache License, Version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
")
foreach(component ${CPACK_COMPONENTS_ALL})
  string(TOUPPER ${component} name)
  set(share ${CPACK_TEMPORARY_DIRECTORY}/${component}${CPACK_PACKAGING_INSTALL_PREFIX}/share)
  set(documents ${share}/doc/${CPACK_DEBIAN_${name}_PACKAGE_NAME})
  file(REMOVE ${documents}/LICENSE)
  file(WRITE ${documents}/copyright "${copyright}")
  file(GLOB pages ${share}/man/man*/*.[1-9])
  if(pages)
    execute_process(COMMAND gzip -9n ${pages} COMMAND_ERROR_IS_FATAL ANY)
  endif()
endforeach()
