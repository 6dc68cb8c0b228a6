#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ssh.sh MILLRACE: trains over two hosts (hosts.sh), the second with an SSH server. Checks that all ways
# of naming the hosts give the bits of one process, and that a cut cable or a dead host ends the job with
# the right code. Exits with 77 (skipped) where hosts.sh does, and without an SSH server.
set -euo pipefail
millrace=$(realpath "$1")
# shellcheck source=tests/e2e/hosts/hosts.sh
source "$(dirname "$0")/hosts.sh"
for program in ssh sshd ssh-keygen; do
  command -v "$program" >/dev/null || skip "needs $program"
done
make_hosts 2 10.77.0
two=$net-2

ssh-keygen -q -t ed25519 -N '' -f "$work/key"
cat >"$work/sshd_config" <<END
Port 3022
HostKey $work/key
AuthorizedKeysFile $work/key.pub
StrictModes no
PermitRootLogin yes
UsePAM no
PidFile $work/pid
END
# Open MPI finds its agent by name: an ssh that uses the key.
cat >"$work/ssh" <<END
#!/bin/sh
exec $(command -v ssh) -i $work/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "\$@"
END
chmod +x "$work/ssh"
mkdir -p /run/sshd
on 2 "$(command -v sshd)" -f "$work/sshd_config"
export OMPI_MCA_plm_rsh_agent=$work/ssh
digest() { "$millrace" inspect "$work/$1" --digest; }

recipe=(train --synthetic-data --dataset cifar-10 --model-size 8 --batch-size 8 --iterations 6
  --threads-per-device 1 --no-validation)
cut=(--shards 2 --pipeline-splits b2/0/relu)
ssh_options=(--ssh-port 3022 --interface eth9)
hosts=(--hosts "10.77.0.1:1,10.77.0.2:1" "${ssh_options[@]}")
workers='{"cluster":{"worker":["10.77.0.1:3636","10.77.0.2:3636"]},"task":{"type":"worker","index":'

"$millrace" "${recipe[@]}" --gradients-to-accumulate 8 --run-dir "$work/alone" >/dev/null
expected=$(digest alone)

on 1 "$millrace" "${recipe[@]}" --gradients-to-accumulate 8 "${cut[@]}" "${hosts[@]}" \
  --run-dir "$work/hosts" >"$work/out" 2>&1 || cat "$work/out"
check "--hosts gives the bits of one process" "$expected" "$(digest hosts)"

MULTI_HLS_IPS=10.77.0.1,10.77.0.2 MPI_TCP_INCLUDE=10.77.0.0/24 on 1 "$millrace" "${recipe[@]}" \
  --gradients-to-accumulate 8 "${cut[@]}" --ssh-port 3022 --run-dir "$work/hls" >"$work/out" 2>&1 || cat "$work/out"
check "MULTI_HLS_IPS and MPI_TCP_INCLUDE do, too" "$expected" "$(digest hls)"

"$millrace" "${recipe[@]}" --gradients-to-accumulate 4 --replicas 2 --ranks 1 --run-dir "$work/replicas" >/dev/null
TF_CONFIG="${workers}0}}" on 1 "$millrace" "${recipe[@]}" --gradients-to-accumulate 4 --distributed \
  "${ssh_options[@]}" --run-dir "$work/tf" >"$work/out" 2>&1 || cat "$work/out"
check "TF_CONFIG gives a replica to every host" "$(digest replicas)" "$(digest tf)"
TF_CONFIG="${workers}1}}" "$millrace" "${recipe[@]}" --distributed --run-dir "$work/none" >"$work/out" && code=0 || code=$?
check "task 1 has nothing to do" "0 1" "$code $(grep -c 'has nothing to do' "$work/out")"

long_run() {  # NAME: starts a long run and waits until it trains
  on 1 "$millrace" "${recipe[@]}" --iterations 100000 --log-freq 10 --gradients-to-accumulate 8 "${cut[@]}" \
    "${hosts[@]}" --hang-timeout 3 --disable-checkpoints --run-dir "$work/$1" >"$work/out" 2>&1 &
  for _ in $(seq 200); do
    grep -qs '^step:' "$work/out" && return
    sleep 0.1
  done
  cat "$work/out"
}
end_of() { wait "$1" && code=0 || code=$?; }

long_run killed
job=$!
begin=$SECONDS
for pid in $(ip netns pids "$two"); do
  if [[ $(tr '\0' ' ' <"/proc/$pid/cmdline") == "$millrace train"* ]]; then kill -9 "$pid"; fi
done
end_of "$job"
check "a killed rank on the other host ends the job" 7 "$code"
check "mpiexec names it" 1 "$(grep -c 'process rank 1 ' "$work/out")"
check "the last line says so" 1 "$(tail -n 1 "$work/out" | grep -c 'a rank was ended by signal 9 (Killed)')"
check "within 10 s" 1 "$((SECONDS - begin <= 10))"

# Whether the host is reached again (up) or not, nothing of the job stays there.
left_behind() {
  for pid in $(ip netns pids "$two"); do
    [[ $(cat "/proc/$pid/comm" 2>/dev/null || echo sshd) == sshd ]] || echo "$pid"
  done
}
for then in up down; do
  long_run "cut-$then"
  job=$!
  begin=$SECONDS
  unplug 2
  end_of "$job"
  [[ $code -eq 124 ]] || tail -n 20 "$work/out"
  check "a cut cable is a rank that does not respond" 124 "$code"
  check "the others say where they stand" 1 "$(grep -c 'no progress for 3 s: rank 0: ' "$work/out")"
  check "the last line names the host" 1 "$(tail -n 1 "$work/out" | grep -c 'rank 1 on 10.77.0.2 (replica 0, stage 1) did not respond')"
  check "within 15 s" 1 "$((SECONDS - begin <= 15))"
  [[ $then == down ]] || plug 2
  until [[ -z $(left_behind) || $((SECONDS - begin)) -ge 25 ]]; do sleep 0.2; done
  check "no process is left on a host that is $then" "" "$(left_behind)"
done
[[ $failures -eq 0 ]]
