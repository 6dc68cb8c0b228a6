#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# slow_links.sh MILLRACE SLOW_LINK: trains over hosts (hosts.sh) with slow links by SLOW_LINK
# (tests/support/slow_link.cpp), and compares the time of a step with what `plan --link` says. The links
# take most of it, so that other programs matter little. Exits with 77 (skipped) where hosts.sh does, and
# without TUN devices.
set -euo pipefail
millrace=$(realpath "$1")
slow_link=$(realpath "$2")
# shellcheck source=tests/e2e/hosts/hosts.sh
source "$(dirname "$0")/hosts.sh"
[[ -c /dev/net/tun ]] || skip "needs /dev/net/tun"
make_hosts 4
link=
trap '[[ -z $link ]] || kill "$link" 2>/dev/null; leave_hosts' EXIT

set_link() {  # MILLISECONDS MEGABITS
  if [[ -n $link ]]; then
    kill "$link"
    wait "$link" || true
  fi
  local ends=()
  for host in 1 2 3 4; do ends+=("$net-$host/10.79.0.$host"); done
  "$slow_link" "$1" "$2" "${ends[@]}" &
  link=$!
  # Of 1,500 bytes of a packet, 1,448 are the message's.
  printf '[link]\nlatency = %se-3\nbytes-per-second = %s\nreceiver-copies = false\n' "$1" \
    "$((10#$2 * 125000 * 1448 / 1500))" >"$work/link.toml"
  for _ in $(seq 50); do
    ip -n "$net-4" -br link show slow0 2>/dev/null | grep -q UP && return
    sleep 0.1
  done
  ip -n "$net-4" -br link show slow0 | grep -q LOWER_UP || skip "no TUN device"
}

compare() {  # WHAT HOSTS LAYOUT...
  local what=$1 hosts=$2 most=15
  shift 2
  local line=(--synthetic-data --dataset cifar-10 --model-size 8 --batch-size 8 --threads-per-device 1 "$@")
  local planned measured
  planned=$("$millrace" plan "${line[@]}" --link "$work/link.toml" --format json |
    sed -nE 's/^  "seconds": ([0-9.e-]+),$/\1/p')
  rm -rf "$work/run"
  local names=()
  for host in $(seq "$hosts"); do names+=("10.79.0.$host:1"); done
  on 1 "$millrace" train "${line[@]}" --hosts "${names[@]}" --interface 10.79.0.0/24 --iterations 5 \
    --log-freq 1 --no-validation --disable-checkpoints --run-dir "$work/run" >"$work/out" 2>&1 || cat "$work/out"
  measured=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) if ($i == "total_time") c = i }
    NR > 3 { print $c - before } NR > 1 { before = $c }' "$work/run/training.csv" | sort -g | sed -n 2p)
  awk -v p="$planned" -v m="$measured" -v most="$most" -v what="$what" 'BEGIN {
    off = 100 * (m / p - 1)
    bad = off > most || off < -most
    printf "%s: %s: planned %.0f ms, run %.0f ms, %+.1f %%\n", bad ? "FAILED" : "ok", what, 1e3 * p, 1e3 * m, off
    exit bad }' || failures=$((failures + 1))
}

stages=(--shards 2 --pipeline-splits b2/0/relu --gradients-to-accumulate 8)
for setting in "20 1" "100 5"; do
  # shellcheck disable=SC2086
  set_link $setting
  what="${setting/ / ms, } Mbit/s"
  compare "two stages, $what" 2 "${stages[@]}"
  compare "two stages x two replicas, $what" 4 "${stages[@]}" --replicas 2
  compare "two replicas, $what" 2 --replicas 2
done
[[ $failures -eq 0 ]]
