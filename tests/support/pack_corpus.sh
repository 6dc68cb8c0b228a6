#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pack_corpus.sh FOLDER ARCHIVE: packs the files of FOLDER as a reproducible .tar.gz, which depends
# only on their names and contents.
set -euo pipefail
(cd "$1" && LC_ALL=C find . -maxdepth 1 -type f -printf '%P\0' | LC_ALL=C sort -z |
  tar --create --null --files-from=- --format=ustar --mtime=@0 --mode=0644 \
    --owner=0 --group=0 --numeric-owner) | gzip -9n >"$2.new"
mv "$2.new" "$2"
printf '%s: %s inputs\n' "$2" "$(tar -tzf "$2" | wc -l)"
