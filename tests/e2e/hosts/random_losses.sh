#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# random_losses.sh MILLRACE [RUNS [SEED [HOSTS]]]: trains RUNS times (50) over hosts (hosts.sh, 4) with
# --elastic and snapshots every 5 updates. In each run something happens at a random moment, in every third
# one during a checkpoint, and in half of them again soon after, often during the restart: a cable is cut, a
# host loses its power, a rank is killed, a rank is frozen, a host is slowed, two hosts lose each other but
# not the supervisor, or the launcher or a daemon of it is frozen. What was cut off comes back a while later.
# Prints a row for each run. None may end badly, or with other bits than an undisturbed one, or compute more
# than the updates of two snapshots again after a loss, or start more than twice for each of the two and once
# more; hosts that are parted may cost a start more. Exits with 77 (skipped) where hosts.sh does.
set -euo pipefail
millrace=$(realpath "$1")
runs=${2:-50}
RANDOM=${3:-1}
hosts=${4:-4}
# shellcheck source=tests/e2e/hosts/hosts.sh
source "$(dirname "$0")/hosts.sh"
make_hosts "$hosts" 10.80.0

updates=150
every=5
saves=40
recipe=(train --synthetic-data --dataset cifar-10 --model-size 8 --batch-size 4 --threads-per-device 1
  --no-validation --gradients-to-accumulate 4 --shards 2 --pipeline-splits b2/0/relu --replicas "$((hosts / 2))"
  --checkpoint-every "$saves" --log-freq 1 --iterations "$updates")
"$millrace" "${recipe[@]}" --ranks 1 --run-dir "$work/alone" >/dev/null
expected=$("$millrace" inspect "$work/alone" --digest)
for host in $(seq "$hosts"); do echo "10.80.0.$host"; done >"$work/hosts"

between() { echo $(($1 + RANDOM % ($2 - $1 + 1))); }
# One thing that happens; says what in $happened. Host 1 has the supervisor.
happen() {
  local host kind other pids
  kind=$(between 1 7)
  host=$(between 2 "$hosts")
  case $kind in
    1)
      unplug "$host"
      (sleep "$(between 4 12)" && plug "$host") &
      happened="cable of $host cut"
      ;;
    2)
      unplug "$host"
      ip netns pids "$net-$host" | xargs --no-run-if-empty kill -9 2>/dev/null || true
      rm -rf "$work/memory-$host"/*
      (sleep "$(between 4 12)" && plug "$host") &
      happened="host $host without power"
      ;;
    3 | 4)
      host=$(between 1 "$hosts")
      mapfile -t pids < <(ranks_on "$host")
      [[ -n ${pids[0]-} ]] || { happened="no rank on $host" && return; }
      kill -s "$([[ $kind == 3 ]] && echo KILL || echo STOP)" "${pids[0]}" 2>/dev/null || true
      happened="rank on $host $([[ $kind == 3 ]] && echo killed || echo frozen)"
      ;;
    5)
      mapfile -t pids < <(ranks_on "$host")
      (for _ in $(seq 40); do
        kill -STOP "${pids[@]}" && sleep 0.08 && kill -CONT "${pids[@]}" && sleep 0.02
      done) 2>/dev/null &
      happened="host $host slowed"
      ;;
    6)
      # The last stage of the last replica has links to both the others.
      host=$(between 2 "$((hosts - 1))")
      other=$hosts
      part "$host" "$other"
      (sleep "$(between 15 30)" && rejoin "$host" "$other") &
      happened="hosts $host and $other parted"
      most=6
      ;;
    7)
      host=$(between 1 "$hosts")
      freeze "$host" "$([[ $host == 1 ]] && echo mpiexec || echo orted)"
      happened="$([[ $host == 1 ]] && echo launcher || echo "daemon on $host") frozen"
      ;;
  esac
}
# Updates that were computed again after losses, at most by one of them.
most_again() {
  awk '/^step:/ { sub(/.*iteration: */, ""); n = $1 + 0; if (n <= top && top - n + 1 > most && !again) { most = top - n + 1; again = 1 }
    if (n > top) { top = n; again = 0 } } END { print most + 0 }' "$1"
}

printf '| run | what happened, at update | starts | computed again | s | bits |\n|---|---|---|---|---|---|\n'
lost=0
set +e # what is killed meanwhile is no failure
for number in $(seq "$runs"); do
  run=$work/run-$number
  most=5
  begin=$SECONDS
  on 1 "$millrace" "${recipe[@]}" --hosts "$work/hosts" --interface 10.80.0.0/24 --hang-timeout 3 --elastic \
    --partner-every "$every" --probe-every 1 --restarts 20 --run-dir "$run" >"$work/out" 2>&1 &
  job=$!
  moment=$(between 2 "$((updates - 30))")
  ((number % 3)) || moment=$((saves * $(between 1 "$(((updates - 30) / saves))")))
  told=
  until grep -qsE "^step: .*iteration: *$moment," "$work/out"; do
    kill -0 "$job" 2>/dev/null || break
    sleep 0.02
  done
  for again in 1 2; do
    happen
    told+="${told:+; then }$happened, $(grep -s '^step:' "$work/out" | tail -1 | sed 's/.*iteration: *\([0-9]*\),.*/\1/')"
    (($(between 0 1))) || break
    ((again == 2)) || sleep "$(between 0 6).$(between 0 9)"
  done
  wait "$job" && code=0 || code=$?
  wait # for what comes back
  for host in $(seq 2 "$hosts"); do plug "$host"; done
  digest=$("$millrace" inspect "$run" --digest 2>/dev/null || true)
  bits=equal
  [[ $digest == "$expected" && $code -eq 0 ]] || bits="OTHER (code $code)"
  again=$(most_again "$work/out")
  starts=$(grep -c '"event":"start"' "$run/supervisor.jsonl")
  printf '| %d | %s | %d | %d | %d | %s |\n' "$number" "$told" "$starts" "$again" "$((SECONDS - begin))" "$bits"
  if [[ $bits != equal || $again -gt $((2 * every)) || $starts -gt $most ]]; then
    lost=$((lost + 1))
    sed 's/^/    /' "$work/out" | grep -v '^    step:' | tail -30
  fi
  rm -rf "$run"
done
check "runs that were lost, or lost more than two snapshots' updates" 0 "$lost"
[[ $failures -eq 0 ]]
