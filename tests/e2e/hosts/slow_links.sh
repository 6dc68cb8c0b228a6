#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# slow_links.sh MILLRACE SLOW_LINK [measured]: trains over hosts (hosts.sh) with slow links by SLOW_LINK
# (tests/support/slow_link.cpp), and compares the time of a step with what `plan --link` says. The links
# take most of it, so that other programs matter little. With `measured` they are faster, devices and
# links are measured first, and nothing else may run. Exits with 77 (skipped) where hosts.sh does, and
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

machine=(--link "$work/link.toml")
most=15
compare() {  # WHAT HOSTS LAYOUT...
  local what=$1 hosts=$2
  shift 2
  local line=(--synthetic-data --threads-per-device 1 "$@")
  local planned measured
  planned=$("$millrace" plan "${line[@]}" "${machine[@]}" --format json |
    sed -nE 's/^  "seconds": ([0-9.e-]+),$/\1/p')
  rm -rf "$work/run"
  local names=()
  for host in $(seq "$hosts"); do names+=("10.79.0.$host:1"); done
  on 1 "$millrace" train "${line[@]}" --hosts "${names[@]}" --interface 10.79.0.0/24 --iterations 7 \
    --log-freq 1 --no-validation --disable-checkpoints --run-dir "$work/run" >"$work/out" 2>&1 || cat "$work/out"
  measured=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) if ($i == "total_time") c = i }
    NR > 3 { print $c - before } NR > 1 { before = $c }' "$work/run/training.csv" | sort -g | sed -n 3p)
  echo "$what|$planned|$measured" | tee -a "$work/times"
}

judge() {  # medians of what compare() has found
  local what
  cut -d'|' -f1 "$work/times" | sort -u | while read -r what; do
    median() { grep -F "$what|" "$work/times" | cut -d'|' -f"$1" | sort -g | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }
    awk -v p="$(median 2)" -v m="$(median 3)" -v most="$most" -v what="$what" 'BEGIN {
      off = 100 * (m / p - 1)
      printf "%s: %s: planned %.0f ms, run %.0f ms, %+.1f %%\n",
        (off > most || off < -most) ? "FAILED" : "ok", what, 1e3 * p, 1e3 * m, off }'
  done | tee "$work/judged"
  ! grep -q FAILED "$work/judged"
}

if [[ ${3-} == measured ]]; then
  set_link 5 1000
  for host in 1 2; do  # as on hosts that are set up for one job
    on "$host" sysctl -qw net.ipv4.tcp_congestion_control=reno net.ipv4.tcp_slow_start_after_idle=0
  done
  most=10
  machine=(--device "$work/machine.toml" --link "$work/machine.toml")
  resnet20=(--dataset cifar-10 --model-size 20 --batch-size 32)
  resnet50=(--dataset imagenet --model resnet --model-size 50 --batch-size 2)
  resnet18=(--dataset imagenet --model resnet --model-size 18 --batch-size 4)
  for _ in 1 2 3; do
    on 1 "$millrace" bench --machine-file "$work/machine.toml" --hosts 10.79.0.1:1 10.79.0.2:1 --interface 10.79.0.0/24 \
      --threads-per-device 1
    compare "ResNet-20, two stages" 2 "${resnet20[@]}" --shards 2 --gradients-to-accumulate 8
    compare "ResNet-20, two replicas" 2 "${resnet20[@]}" --replicas 2 --gradients-to-accumulate 4
    compare "ResNet-18, two stages" 2 "${resnet18[@]}" --shards 2 --gradients-to-accumulate 4
    compare "ResNet-18, two replicas" 2 "${resnet18[@]}" --replicas 2 --gradients-to-accumulate 2
    compare "ResNet-50, two stages" 2 "${resnet50[@]}" --shards 2 --gradients-to-accumulate 4
    compare "ResNet-50, two replicas" 2 "${resnet50[@]}" --replicas 2 --gradients-to-accumulate 2
  done
  judge
  exit
fi
resnet8=(--dataset cifar-10 --model-size 8 --batch-size 8)
stages=("${resnet8[@]}" --shards 2 --pipeline-splits b2/0/relu --gradients-to-accumulate 8)
for setting in "20 1" "100 5"; do
  # shellcheck disable=SC2086
  set_link $setting
  what="${setting/ / ms, } Mbit/s"
  compare "two stages, $what" 2 "${stages[@]}"
  compare "two stages x two replicas, $what" 4 "${stages[@]}" --replicas 2
  compare "two replicas, $what" 2 "${resnet8[@]}" --replicas 2
done
judge
