#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# filters.sh BUILD [PATTERN..]: that every pattern of every --gtest_filter in run.sh names at least one
# test of the programs in BUILD, also behind a "-", and that every filter leaves tests to run. A
# PATTERN that is given may name none, because this build lacks what it is for.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
set -f # patterns are not names of files
build=$1
shift
absent=("$@")
failed=0
filters=0

# count PROGRAM FILTER: sets `matching` to the number of tests of the program that match.
count() {
  local listed
  if ! listed=$("$1" --gtest_list_tests --gtest_filter="$2" 2>&1); then
    echo "$1 does not list its tests: $listed"
    exit 1
  fi
  matching=$(grep -c '^  ' <<<"$listed" || true)
}

# check PROGRAM FILTER: all patterns of a filter.
check() {
  local program=$1 filter=$2 pattern patterns
  count "$program" "$filter"
  if ((matching == 0)); then
    echo "run.sh: $filter leaves no test of $program to run"
    failed=1
  fi
  IFS=: read -ra patterns <<<"${filter/-/:}"
  for pattern in "${patterns[@]}"; do
    [[ -n $pattern ]] || continue # in front of "-"
    count "$program" "$pattern"
    ((matching == 0)) || continue
    if [[ " ${absent[*]-} " == *" $pattern "* ]]; then
      echo "run.sh: $pattern names no test of $program, which this build may lack"
    else
      echo "run.sh: $pattern names no test of $program: was a test renamed?"
      failed=1
    fi
  done
}

while read -ra words; do
  program=
  for word in "${words[@]}"; do
    case $word in
      */*_test) program=$word ;;
      --gtest_filter=*)
        [[ -x $program ]] || { echo "build $program first"; exit 1; }
        check "$program" "${word#*=}"
        filters=$((filters + 1))
        ;;
      --gtest*)
        echo "run.sh: $word is not --gtest_filter=PATTERNS"
        failed=1
        ;;
    esac
  done
done < <(tests/gpu/run.sh --dry-run --build "$build")

written=$(grep -v '^ *#' tests/gpu/run.sh | grep -o -e '--gtest_filter=' | wc -l)
if ((filters == 0 || filters != written)); then
  echo "run.sh has $written filters, of which its dry run shows $filters"
  failed=1
fi
((failed)) || echo "all patterns of $filters filters name tests"
exit "$failed"
