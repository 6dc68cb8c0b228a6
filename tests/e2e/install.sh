#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# install.sh CMAKE BUILD: installs the build into a new folder and uses everything from there: the
# program, its recipes, manual pages and completion. Then makes Debian packages. library.sh tests the
# library.
set -euo pipefail
cmake=$1
build=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/usr
export OMP_WAIT_POLICY=passive

failed() {
  echo "FAILED: $*"
  tail -n 30 "$work"/*.log 2>/dev/null || true
  exit 1
}
has() { [[ -e $prefix/$1 ]] || failed "$1 was not installed"; }

# What component program takes from the build but the program, which may be all that was built.
more=$(awk -v build="$build/" '/^if.*"program"/ { on = 1 } /^endif/ { on = 0 }
  on && index($0, build) && !index($0, build "millrace\"")' "$build/cmake_install.cmake")
[[ -z $more ]] || failed "component program needs more than the target millrace: $more"
"$cmake" --install "$build" --prefix "$prefix" >"$work/install.log" || failed "cmake --install"
cd "$work" # nothing may depend on the current folder
millrace=$prefix/bin/millrace

echo "== the program is small and stands alone"
for path in share/doc/millrace/{LICENSE,README.md,docs/data.md,configs/README.md} share/millrace/configs/resnet20-cifar10.toml \
  share/man/man1/millrace.1 share/man/man1/millrace-data-convert.1 \
  share/bash-completion/completions/millrace lib/libmillrace.a \
  include/millrace/millrace.hpp lib/libmillrace.so lib/cmake/millrace/millrace-config.cmake; do
  has "${path/#lib\//${LIBRARY_FOLDER:-lib}/}"
done
[[ $(stat -c %s "$millrace") -lt 13500000 ]] || failed "the program has $(stat -c %s "$millrace") bytes"
if readelf -S "$millrace" | grep -q '\.symtab'; then failed "the program is not stripped"; fi
if readelf -d "$millrace" | grep -E 'RPATH|RUNPATH'; then failed "the program has a search path"; fi
if ldd "$millrace" | grep -E "not found|$build|/\.cache/"; then failed "what it is linked to"; fi
if grep -rlF -e "$build" "$prefix"; then failed "these files name the build folder"; fi

echo "== recipes are found from anywhere"
"$millrace" train --config list | grep -q '^nvidia-resnet50-90epochs ' || failed "--config list"
"$millrace" train --config resnet20-cifar10 --smoke --compile-only >recipe.log || failed "a recipe"
grep -q 'Total Parameters: 269722' recipe.log || failed "another recipe"

echo "== manual pages and completion"
for page in "$prefix"/share/man/man1/*.1; do
  command -v groff >/dev/null || break
  complaints=$(groff -man -ww -z "$page" 2>&1) || true
  [[ -z $complaints ]] || failed "$page: $complaints"
done
bash -n "$prefix/share/bash-completion/completions/millrace" || failed "the completion"

echo "== Debian packages"
if command -v dpkg-shlibdeps >/dev/null; then
  "${cmake%cmake}cpack" --config "$build/CPackConfig.cmake" -B packages >package.log 2>&1 || failed "cpack"
  dpkg-deb -f packages/millrace_*.deb Depends >depends.txt
  grep -q 'libhdf5.*libstdc++6' depends.txt || failed "the package depends on $(cat depends.txt)"
  dpkg-deb -c packages/millrace_*.deb >program.txt
  dpkg-deb -c packages/libmillrace-dev_*.deb >development.txt
  for path in bin/millrace share/millrace/configs/resnet20-cifar10.toml \
    share/man/man1/millrace.1.gz share/doc/millrace/copyright share/doc/millrace/docs/data.md; do
    grep -q " \./usr/$path\$" program.txt || failed "the package has no $path"
  done
  if grep -E '/man1/.*\.1$|/doc/millrace/LICENSE$' program.txt; then failed "not as Debian has it"; fi
  grep -q '/libmillrace\.a$' development.txt || failed "the package has no library"
  dpkg-deb -c packages/libmillrace[0-9]*.deb >shared.txt
  grep -q '/libmillrace\.so\.[0-9.]*$' shared.txt || failed "no package has the shared library"
  grep -q '/usr/share/doc/libmillrace-dev/copyright$' development.txt || failed "no copyright"
else
  echo "skipped: dpkg-dev is not installed"
fi
echo "all tests passed"
