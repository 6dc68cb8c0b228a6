#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# budget.sh ROOT: fails where the sources below ROOT have more lines or files than they may. Every
# line is read by everybody who changes the code, so a number is raised only in a commit of its own
# that says what its readers get for it. Lower them when something became smaller.
set -euo pipefail
cd "$1"

over=0
# within WHAT NUMBER LIMIT
within() {
  printf '%-40s %7d of %7d\n' "$1" "$2" "$3"
  (($2 <= $3)) || over=$((over + 1))
}
sources() { find "$@" \( -name '*.hpp' -o -name '*.cpp' -o -name '*.proto' \) -print0; }
lines() { sources "$@" | xargs -0r cat | wc -l; }
files() { sources "$@" | tr '\0' '\n' | wc -l; }
engine=(src models partition pipeline io -path src/tools -prune -o)

within 'engine: lines' "$(lines "${engine[@]}")" 79607
within 'engine and tools: files' "$(files src models partition pipeline io)" 630
declare -A tool_limits=([bench]=2561 [data]=2720 [onnx]=3221 [weights]=3760)
for tool in src/tools/*/; do
  name=$(basename "$tool")
  within "tool $name: lines" "$(lines "$tool")" "${tool_limits[$name]:-2500}"
done
within 'tests: lines' "$(lines tests)" 53523

if ((over > 0)); then
  echo "$over of these numbers are above their limits: make something smaller"
  exit 1
fi
