#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# hardened.sh READELF PROGRAM: checks that a program binds its functions at start, is
# position-independent, and uses the checked copies of libc and the checks of the standard library.
set -euo pipefail
readelf=$1
program=$2
missing=0
need() { # WHAT OPTION PATTERN
  if ! "$readelf" --wide "$2" "$program" | grep -E "$3" >/dev/null; then
    printf '%s: %s\n' "$program" "$1"
    missing=1
  fi
}
need 'functions are not bound at start-up (-z now)' --dynamic 'BIND_NOW|FLAGS_1.*NOW'
need 'tables of functions stay writable (-z relro)' --program-headers 'GNU_RELRO'
need 'not position-independent' --file-header 'Type:.*DYN'
need 'copies are not checked (_FORTIFY_SOURCE)' --dyn-syms ' __[a-z]+_chk'
need 'bounds are not checked (_GLIBCXX_ASSERTIONS)' --dyn-syms '__glibcxx_assert_fail'
exit $missing
