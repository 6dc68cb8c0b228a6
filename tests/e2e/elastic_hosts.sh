#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# elastic_hosts.sh MILLRACE: trains with --elastic over four hosts, which are network namespaces of
# this machine on a bridge. One cable is cut in the middle of a step and put back later. The run must
# end with the bits of an undisturbed one, on three hosts meanwhile and on four at the end. Prints how
# long the run stood still. Exits with 77 (skipped) without root or iproute2.
set -euo pipefail
millrace=$(realpath "$1")
[[ $EUID -eq 0 ]] || { echo "skipped: needs root"; exit 77; }
for program in ip unshare; do
  command -v "$program" >/dev/null || { echo "skipped: needs $program"; exit 77; }
done

work=$(mktemp -d)
name=millrace-elastic-$$
cleanup() {
  for host in 0 1 2 3 4; do
    ip netns pids "$name-$host" 2>/dev/null | xargs --no-run-if-empty kill -9 2>/dev/null || true
    ip netns delete "$name-$host" 2>/dev/null || true
  done
  rm -rf "$work"
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
# The way to another host, in place of ssh. A host without a cable says nothing.
cat >"$work/agent" <<END
#!/bin/sh
host=$name-\${1##*.}
shift
ip -n \$host -br link show eth9 | grep -q ' UP ' || exec sleep 60
exec ip netns exec \$host unshare --uts sh -c "hostname \$host && \$*"
END
chmod +x "$work/agent"
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
  --no-validation --gradients-to-accumulate 4 --shards 2 --pipeline-splits b2/0/relu --replicas 4
  --checkpoint-every 10 --log-freq 1)
# Long enough for the host to be back before the end, however fast the machine is.
updates=200
"$millrace" "${recipe[@]}" --iterations "$updates" --ranks 1 --run-dir "$work/alone" >/dev/null
expected=$("$millrace" inspect "$work/alone" --digest)

for host in 1 2 3 4; do echo "10.78.0.$host slots=2  # of the test"; done >"$work/hosts"
run=$work/run
ip netns exec "$name-1" unshare --uts sh -c "hostname $name-1 && exec \"\$@\"" sh \
  "$millrace" "${recipe[@]}" --iterations "$updates" --hosts "$work/hosts" --interface 10.78.0.0/24 \
  --hang-timeout 3 --elastic --min-ranks 5 --probe-every 1 --run-dir "$run" >"$work/out" 2>&1 &
job=$!
wait_for '^step: .*iteration: *2[1-9],' "$work/out"
begin=$(milliseconds)
ip -n "$name-3" link set eth9 down
wait_for 'elastic: 6 ranks on 10.78.0.1:2 10.78.0.2:2 10.78.0.4:2, from ckpt-' "$work/out"
lines=$(wc -l <"$work/out")
until tail -n "+$lines" "$work/out" | grep -q '^step:'; do sleep 0.02; kill -0 "$job" || break; done
echo "from the cut to the first new update: $(($(milliseconds) - begin)) ms"
ip -n "$name-3" link set eth9 up
wait_for 'elastic: 8 ranks on 10.78.0.1:2 10.78.0.2:2 10.78.0.3:2 10.78.0.4:2, from ckpt-[1-9]' "$work/out"
wait "$job" && code=0 || code=$?
check "the run ends well" 0 "$code"
check "its work was spread" 1 "$(grep -c 'elastic: 6 ranks .*, over which 3 stages are spread' "$work/out")"
check "the lost host was named" 1 "$(grep -c 'elastic: lost 10.78.0.3; restart 1 of 10' "$work/out")"
check "and its return" 1 "$(grep -c 'elastic: 10.78.0.3 answers again' "$work/out")"
check "with the bits of an undisturbed run" "$expected" "$("$millrace" inspect "$run" --digest)"
[[ $code -eq 0 ]] || cat "$work/out"
[[ $failures -eq 0 ]]
