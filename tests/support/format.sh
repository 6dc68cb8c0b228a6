#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# format.sh CLANG_FORMAT ROOT: fails and lists the lines that differ from .clang-format.
set -euo pipefail
cd "$2"
for folder in src models partition pipeline io tests; do
  if [[ -d $folder ]]; then
    find "$folder" -name '*.hpp' -o -name '*.cpp'
  fi
done | xargs --no-run-if-empty --max-args=40 --max-procs="$(nproc)" "$1" --dry-run --Werror
