#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tidy.sh CLANG_TIDY BUILD ROOT: runs clang-tidy on the sources changed by the last commit or in the
# work tree, for at most MILLRACE_TIDY_SECONDS (default 400); the preset tidy checks all sources.
# BUILD is configured with the preset clang. Exits with 77 (skipped) if there is no history.
set -euo pipefail
tidy=$1
build=$2
cd "$3"
git rev-parse --verify --quiet HEAD~1 >/dev/null || exit 77
deadline=$(($(date +%s) + ${MILLRACE_TIDY_SECONDS:-400}))
export tidy build deadline

look_at() {
  if (($(date +%s) < deadline)); then
    "$tidy" -p "$build" --quiet --warnings-as-errors='*' "$1"
  else
    printf '%s: not looked at, the time is over\n' "$1"
  fi
}
export -f look_at

# shellcheck disable=SC2016 # $1 is expanded by the shell that xargs starts
git diff --name-only --diff-filter=d HEAD~1 -- '*.cpp' | while IFS= read -r file; do
  if grep -q "/$file\"" "$build/compile_commands.json"; then printf '%s\n' "$file"; fi
done | xargs --no-run-if-empty -P "$(nproc)" -I {} bash -c 'look_at "$1"' look_at {}
