#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# elastic.sh MILLRACE [whole]: trains with --elastic over four hosts, which are network namespaces of
# this machine on a bridge, each with memory of its own. One host is slowed, and another one's cable is
# cut in the middle of a step and put back later. The run must go on from a snapshot in the memory of the
# others, and end with the bits of an undisturbed one, on three hosts meanwhile and on four at the end.
# With "whole", pipelines then lose the host of one of their two stages, which comes back without the run directory;
# a rank, whose host has lost that directory; the cable of the host that has the supervisor; and a host just
# before they are asked to stop. Then somebody stops the launcher or its daemon, or a host does not start it.
# Nothing may be left of them on any host. At last a slow host gets less of the work after a checkpoint.
# Prints how long the first run stood still. See hosts.sh for when it is skipped.
set -euo pipefail
millrace=$(realpath "$1")
# shellcheck source=tests/e2e/hosts/hosts.sh
source "$(dirname "$0")/hosts.sh"
make_hosts 4 10.78.0

recipe=(train --synthetic-data --dataset cifar-10 --model-size 8 --batch-size 4 --threads-per-device 1
  --no-validation --gradients-to-accumulate 4 --shards 2 --pipeline-splits b2/0/relu --log-freq 1)
elastic=(--interface 10.78.0.0/24 --hang-timeout 3 --elastic --partner-every 5 --checkpoint-every 1000)
# How many updates are computed again: none is older than the snapshot before the one in the making. A
# snapshot that is taken becomes a checkpoint.
check_lost() {  # OUTPUT UPDATE
  local taken
  taken=$(sed -n 's/^Restoring training from latest checkpoint: .*ckpt-\([0-9]*\)$/\1/p' "$1" | head -1)
  check "the run goes on from ${taken:-nothing} after update $2" yes \
    "$([[ -n $taken && $(($2 - taken)) -le 10 ]] && echo yes || echo no)"
}
last_update() { grep '^step:' "$1" | tail -1 | sed 's/.*iteration: *\([0-9]*\),.*/\1/'; }
ends_with() {  # CODE
  wait "$job" && code=0 || code=$?
  check "the run ends with code $1" "$1" "$code"
  [[ $code -eq $1 ]] || cat "$work/out"
}
# Daemons of Open MPI that were cut off end, and remove their files, about 12 s after their ranks.
finish() {
  for _ in $(seq 200); do [[ -n $(find "$work/tmp" -mindepth 1 -print -quit) ]] || break; sleep 0.1; done
  check "no files of Open MPI are left" "" "$(find "$work/tmp" -mindepth 1 -maxdepth 3)"
  exit $((failures > 0))
}
check_memory() {
  check "and nothing is left in the memory of the hosts" "" "$(find "$work"/memory-* -mindepth 1)"
}

# Long enough for the host to be back before the end, however fast the machine is.
updates=600
"$millrace" "${recipe[@]}" --replicas 4 --iterations "$updates" --ranks 1 --run-dir "$work/alone" >/dev/null
expected=$("$millrace" inspect "$work/alone" --digest)

for host in 1 2 3 4; do echo "10.78.0.$host slots=2  # of the test"; done >"$work/hosts"
run=$work/run
on 1 "$millrace" "${recipe[@]}" "${elastic[@]}" --checkpoint-every 150 --probe-every 1 --replicas 4 --iterations "$updates" \
  --hosts "$work/hosts" --min-ranks 5 --run-dir "$run" >"$work/out" 2>&1 &
job=$!
wait_for '^step: .*iteration: *1,' "$work/out"
slow_down 2
wait_for 'elastic: 10.78.0.2 takes [0-9.]* times as long as others, and gets 0.* of their work' "$work/out"
kill "$slowing"
begin=$(milliseconds)
unplug 3
wait_for 'elastic: 6 ranks on 10.78.0.1:2 10.78.0.2:2 10.78.0.4:2, from ckpt-' "$work/out"
last=$(last_update "$work/out")
lines=$(wc -l <"$work/out")
until tail -n "+$lines" "$work/out" | grep -q '^step:'; do sleep 0.02; kill -0 "$job" || break; done
echo "from the cut to the first new update: $(($(milliseconds) - begin)) ms"
plug 3
wait_for 'elastic: 8 ranks on 10.78.0.1:2 10.78.0.2:2 10.78.0.3:2 10.78.0.4:2, from ckpt-[1-9]' "$work/out"
ends_with 0
check "its work was spread" 1 "$(grep -c 'elastic: 6 ranks .*, over which [0-9]* stages are spread' "$work/out")"
check "with less of it for a slow host" 1 "$(grep -c '^speeds-of-ranks = "1 1 0\.[0-9]* 0\.[0-9]* 1 1' "$run/config.toml")"
check "the lost host was named" 1 "$(grep -c 'elastic: lost 10.78.0.3; restart 1 of 10' "$work/out")"
check "and its return" 1 "$(grep -c 'elastic: 10.78.0.3 answers again' "$work/out")"
check_lost "$work/out" "$last"
check "with the bits of an undisturbed run" "$expected" "$("$millrace" inspect "$run" --digest)"
check_memory
[[ ${2-} == whole ]] || finish

# One replica: its parts are sent. Long enough, too.
updates=500
"$millrace" "${recipe[@]}" --iterations "$updates" --ranks 1 --run-dir "$work/pipeline-alone" >/dev/null
expected=$("$millrace" inspect "$work/pipeline-alone" --digest)
pipeline() {  # NAME OPTIONS..
  run=$work/$1
  on 1 "$millrace" "${recipe[@]}" "${elastic[@]}" --iterations "$updates" --hosts 10.78.0.1:1 10.78.0.2:1 \
    --run-dir "$run" "${@:2}" >"$work/out" 2>&1 &
  job=$!
  wait_for '^step: .*iteration: *2[1-9],' "$work/out"
}
check_bits() {
  check "with the bits of an undisturbed pipeline" "$expected" "$("$millrace" inspect "$run" --digest)"
}

pipeline stage --probe-every 1
unplug 2
wait_for 'elastic: 1 rank on 10.78.0.1:1, from ckpt-' "$work/out"
last=$(last_update "$work/out")
hide 2 "$run"
plug 2
wait_for 'elastic: 2 ranks on 10.78.0.1:1 10.78.0.2:1, from ckpt-[1-9]' "$work/out"
ends_with 0
check "a host that comes back without the run directory is left out" 1 \
  "$(grep -c 'elastic: 10.78.0.2 is left out: the start with it failed (code [1-9]' "$work/out")"
check "both parts are sent" 1 "$(grep -c 'each part on two hosts, 2 of 2 sent' "$work/out")"
check_lost "$work/out" "$last"
check_bits
check_memory
show 2

# A host that answers after the loss of its rank may have become a bad one.
pipeline bad --probe-every 1000
hide 2 "$run"
ranks_on 2 | xargs kill -KILL
ends_with 0
check "a host that lost its rank and the run directory is left out" 1 \
  "$(grep -c 'elastic: 10.78.0.2 is left out: the start with it failed (code [1-9]' "$work/out")"
check_bits
check_memory
show 2

# The supervisor's own host goes on alone. The other one is not asked again before the end.
pipeline cable --probe-every 1000
unplug 1
wait_for 'elastic: 1 rank on 10.78.0.1:1, from ckpt-' "$work/out"
last=$(last_update "$work/out")
plug 1
ends_with 0
check_lost "$work/out" "$last"
check_bits
check_memory

# Ranks that cannot save as they wait for a lost host are started once more for it.
pipeline stopped
unplug 2
kill -TERM "$(head -1 "$run/.supervisor")"
last=$(last_update "$work/out")
ends_with 75
check "a snapshot was saved" 1 "$(grep -c 'elastic: 1 rank on 10.78.0.1:1, from .*, to save and stop' "$work/out")"
check_lost "$work/out" "$last"
plug 2
on 1 "$millrace" restore --restore-path "$run" --elastic --hosts 10.78.0.1:1 10.78.0.2:1 \
  --interface 10.78.0.0/24 >"$work/out" 2>&1 &
job=$!
ends_with 0
check_bits
check_memory

# Somebody stops the launcher, or its daemon on the other host, which then keeps the job from ending.
sed -i 's/^exec env/exec setsid --wait env/' "$work/agent" # a daemon that SSH has started outlives it
for frozen in 'mpiexec 1' 'orted 2'; do
  pipeline "${frozen% *}"
  freeze "${frozen#* }" "${frozen% *}"
  ends_with 0
  check_bits
done

# A host answers, but the daemon does not come up there.
cat >"$work/late-agent" <<END
#!/bin/sh
case "\$*" in 10.78.0.2*orted*) sleep 1000 ;; esac
exec $work/agent "\$@"
END
chmod +x "$work/late-agent"
OMPI_MCA_plm_rsh_agent=$work/late-agent pipeline daemon --probe-every 1000
ends_with 0
check "a host without the daemon is left out" 1 \
  "$(grep -c 'elastic: 10.78.0.2 is left out: no daemon of the launcher has started there in time' "$work/out")"
check_bits
check_memory

# Two replicas on two hosts, neither of them the supervisor's. A slow host gets less once the run has saved
# a checkpoint. The run takes longer than a launcher may take to begin.
updates=400
"$millrace" "${recipe[@]}" --replicas 2 --iterations "$updates" --ranks 1 --run-dir "$work/two-alone" >/dev/null
expected=$("$millrace" inspect "$work/two-alone" --digest)
run=$work/slow
on 1 "$millrace" "${recipe[@]}" "${elastic[@]}" --checkpoint-every 30 --replicas 2 --iterations "$updates" \
  --hosts 10.78.0.2:2 10.78.0.3:2 --restarts 0 --run-dir "$run" >"$work/out" 2>&1 &
job=$!
wait_for '^step: .*iteration: *1,' "$work/out"
slow_down 3
wait_for 'elastic: 10.78.0.3 takes .* of their work from the next start on, which follows ' "$work/out"
wait_for 'elastic: a slow host is to get less of the work: the ranks save and start anew' "$work/out"
kill "$slowing"
wait_for 'elastic: 4 ranks on .*, over which [0-9]* stages are spread' "$work/out"
ends_with 0
check "with speeds" 1 "$(grep -c '^speeds-of-ranks = "1 1 0\.[0-9]* 0\.[0-9]*"' "$run/config.toml")"
check_bits
check_memory
finish
