#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# elastic_hosts.sh MILLRACE: trains with --elastic over four hosts, which are network namespaces of
# this machine on a bridge, each with memory of its own. One cable is cut in the middle of a step and
# put back later. The run must go on from a snapshot in the memory of the others, and end with the bits
# of an undisturbed one, on three hosts meanwhile and on four at the end. Then a pipeline loses the host
# of one of its two stages. Prints how long the first run stood still. Exits with 77 (skipped) without
# root or iproute2.
set -euo pipefail
millrace=$(realpath "$1")
[[ $EUID -eq 0 ]] || { echo "skipped: needs root"; exit 77; }
for program in ip unshare; do
  command -v "$program" >/dev/null || { echo "skipped: needs $program"; exit 77; }
done

work=$(mktemp -d)
memory=$(mktemp -d -p /dev/shm)
name=millrace-elastic-$$
cleanup() {
  for host in 0 1 2 3 4; do
    ip netns pids "$name-$host" 2>/dev/null | xargs --no-run-if-empty kill -9 2>/dev/null || true
    ip netns delete "$name-$host" 2>/dev/null || true
  done
  rm -rf "$work" "$memory"
}
trap cleanup EXIT
ip netns add "$name-0" 2>/dev/null || { echo "skipped: no network namespaces here"; exit 77; }
ip -n "$name-0" link add bridge type bridge 2>/dev/null || { echo "skipped: no bridges here"; exit 77; }
ip -n "$name-0" link set bridge up
for host in 1 2 3 4; do
  ip netns add "$name-$host"
  ip link add eth9 netns "$name-$host" type veth peer name "port$host" netns "$name-0"
  ip -n "$name-0" link set "port$host" master bridge up
  ip -n "$name-$host" addr add "10.78.0.$host/24" dev eth9
  ip -n "$name-$host" link set lo up
  ip -n "$name-$host" link set eth9 up
done
# What is typed on a host, which has memory of its own.
cat >"$work/on" <<END
#!/bin/sh
host=\$1
shift
exec ip netns exec $name-\$host unshare --uts sh -c \
  "hostname $name-\$host && MILLRACE_MEMORY_DIRECTORY=$memory/\$host \$*"
END
# The way to another host, in place of ssh. A host without a cable says nothing.
cat >"$work/agent" <<END
#!/bin/sh
host=\${1##*.}
shift
ip -n $name-\$host -br link show eth9 | grep -q ' UP ' || exec sleep 60
exec $work/on \$host "\$*"
END
chmod +x "$work/on" "$work/agent"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_WAIT_POLICY=passive
export OMPI_MCA_plm_rsh_agent=$work/agent

failures=0
check() {  # WHAT EXPECTED GOT
  if [[ $2 == "$3" ]]; then echo "ok: $1"; else
    echo "FAILED: $1: expected $2, got $3"
    failures=$((failures + 1))
  fi
}
# Ends with the test if the run hangs.
wait_for() {  # PATTERN FILE
  for _ in $(seq 600); do
    grep -qs -- "$1" "$2" && return
    kill -0 "$job" 2>/dev/null || break
    sleep 0.1
  done
  cat "$work/out"
  echo "FAILED: $1 never came"
  exit 1
}
milliseconds() { date +%s%3N; }

recipe=(train --synthetic-data --dataset cifar-10 --model-size 8 --batch-size 4 --threads-per-device 1
  --no-validation --gradients-to-accumulate 4 --shards 2 --pipeline-splits b2/0/relu
  --checkpoint-every 1000 --log-freq 1)
elastic=(--interface 10.78.0.0/24 --hang-timeout 3 --elastic --partner-every 5 --probe-every 1)
# How many updates are computed again: none is older than the snapshot before the one in the making.
check_lost() {  # OUTPUT UPDATE
  local taken
  taken=$(sed -n 's/^The run goes on from the snapshot after update \([0-9]*\) in memory$/\1/p' "$1" | head -1)
  check "snapshot ${taken:-none} is taken after update $2" yes \
    "$([[ -n $taken && $(($2 - taken)) -lt 10 ]] && echo yes || echo no)"
}
last_update() { grep '^step:' "$1" | tail -1 | sed 's/.*iteration: *\([0-9]*\),.*/\1/'; }

# Long enough for the host to be back before the end, however fast the machine is.
updates=200
"$millrace" "${recipe[@]}" --replicas 4 --iterations "$updates" --ranks 1 --run-dir "$work/alone" >/dev/null
expected=$("$millrace" inspect "$work/alone" --digest)

for host in 1 2 3 4; do echo "10.78.0.$host slots=2  # of the test"; done >"$work/hosts"
run=$work/run
"$work/on" 1 "$millrace" "${recipe[@]}" "${elastic[@]}" --replicas 4 --iterations "$updates" \
  --hosts "$work/hosts" --min-ranks 5 --run-dir "$run" >"$work/out" 2>&1 &
job=$!
wait_for '^step: .*iteration: *2[1-9],' "$work/out"
begin=$(milliseconds)
ip -n "$name-3" link set eth9 down
wait_for 'elastic: 6 ranks on 10.78.0.1:2 10.78.0.2:2 10.78.0.4:2, from ckpt-0 or a newer' "$work/out"
last=$(last_update "$work/out")
lines=$(wc -l <"$work/out")
until tail -n "+$lines" "$work/out" | grep -q '^step:'; do sleep 0.02; kill -0 "$job" || break; done
echo "from the cut to the first new update: $(($(milliseconds) - begin)) ms"
ip -n "$name-3" link set eth9 up
wait_for 'elastic: 8 ranks on 10.78.0.1:2 10.78.0.2:2 10.78.0.3:2 10.78.0.4:2, from ckpt-[1-9]' "$work/out"
wait "$job" && code=0 || code=$?
check "the run ends well" 0 "$code"
check "the lost host was named" 1 "$(grep -c 'elastic: lost 10.78.0.3; restart 1 of 10' "$work/out")"
check "and its return" 1 "$(grep -c 'elastic: 10.78.0.3 answers again' "$work/out")"
check_lost "$work/out" "$last"
check "with the bits of an undisturbed run" "$expected" "$("$millrace" inspect "$run" --digest)"
check "and nothing left in the memory of the hosts" "" "$(find "$memory" -type f)"
[[ $code -eq 0 ]] || cat "$work/out"

# One replica: its parts are sent.
"$millrace" "${recipe[@]}" --iterations 60 --ranks 1 --run-dir "$work/pipeline-alone" >/dev/null
expected=$("$millrace" inspect "$work/pipeline-alone" --digest)
"$work/on" 1 "$millrace" "${recipe[@]}" "${elastic[@]}" --iterations 60 \
  --hosts 10.78.0.1:1 10.78.0.2:1 --run-dir "$work/pipeline" >"$work/out" 2>&1 &
job=$!
wait_for '^step: .*iteration: *2[1-9],' "$work/out"
ip -n "$name-2" link set eth9 down
wait_for 'elastic: 1 rank on 10.78.0.1:1, from ckpt-0 or a newer' "$work/out"
last=$(last_update "$work/out")
wait "$job" && code=0 || code=$?
check "a pipeline without one of its hosts ends well" 0 "$code"
check "both parts are sent" 1 "$(grep -c 'each part on two hosts, 2 of 2 sent' "$work/out")"
check_lost "$work/out" "$last"
check "with the bits of an undisturbed pipeline" "$expected" "$("$millrace" inspect "$work/pipeline" --digest)"
[[ $code -eq 0 ]] || cat "$work/out"
[[ $failures -eq 0 ]]
