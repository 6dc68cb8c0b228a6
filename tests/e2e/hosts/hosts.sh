# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For tests over several hosts, which are network namespaces of this machine, to be sourced. Host 0 is
# a switch: a bridge that the cables of the others lead to.
#
#   make_hosts COUNT SUBNET   hosts 1 to COUNT with addresses SUBNET.1 .. and a memory (/dev/shm) and a
#                             core each; without SUBNET they have no cables
#   on HOST COMMAND..         runs a command there
#   unplug HOST, plug HOST    take its cable out, put it back
#   part HOST HOST            what one sends to the other is lost, until rejoin HOST HOST
#   hide HOST FOLDER          what starts there finds the folder empty, until show HOST
#   ranks_on HOST             the processes of its ranks, of the program $millrace
#   freeze HOST PROGRAM       stops its processes of that name
#   slow_down HOST            its ranks have a third of the time from now on, until $slowing is killed
#   leave_hosts               ends everything on them, removes them and $work
#   check WHAT EXPECTED GOT   counts failures
#   wait_for PATTERN FILE     waits for a line while process $job runs
#
# They set $work, a folder; $net, how the names of the hosts begin; and the way from host to host that
# Open MPI takes in place of ssh. Scripts end with 77 (skipped) without root or iproute2.

work=$(mktemp -d)
net=millrace-$$
count=0
subnet=
failures=0
job=
slowing=
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_WAIT_POLICY=passive

skip() {
  echo "skipped: $*"
  exit 77
}

leave_hosts() {
  for host in $(seq 0 "$count"); do
    ip netns pids "$net-$host" 2>/dev/null | xargs --no-run-if-empty kill -9 2>/dev/null || true
    ip netns delete "$net-$host" 2>/dev/null || true
  done
  rm -rf "$work"
}

make_hosts() {
  trap leave_hosts EXIT
  [[ $EUID -eq 0 ]] || skip "needs root"
  for program in ip unshare; do command -v "$program" >/dev/null || skip "needs $program"; done
  count=$1
  subnet=${2-}
  ip netns add "$net-0" 2>/dev/null || skip "no network namespaces here"
  ip -n "$net-0" link add bridge type bridge 2>/dev/null || skip "no bridges here"
  ip -n "$net-0" link set bridge up
  for host in $(seq "$count"); do
    ip netns add "$net-$host"
    ip -n "$net-$host" link set lo up
    mkdir "$work/memory-$host"
    [[ -n ${2-} ]] || continue
    ip link add eth9 netns "$net-$host" type veth peer name "port$host" netns "$net-0"
    ip -n "$net-0" link set "port$host" master bridge up
    ip -n "$net-$host" addr add "$2.$host/24" dev eth9
    ip -n "$net-$host" link set eth9 up
  done
  # `ip netns exec` has mounts of its own.
  cat >"$work/on" <<END
#!/bin/sh
host=\$1
shift
exec taskset -c \$(((host - 1) % $(nproc))) ip netns exec $net-\$host unshare --uts sh -c \
  "hostname $net-\$host && mount --bind $work/memory-\$host /dev/shm && \
  if [ -e $work/hidden-\$host ]; then mount --bind $work/empty $work/hidden-\$host; fi && \$*"
END
  # A host without a cable says nothing, and hears nothing. What is started has an environment of its own.
  cat >"$work/agent" <<END
#!/bin/sh
host=\${1##*.}
shift
for end in \$(hostname) $net-\$host; do
  ! ip -n \$end -br link show eth9 2>/dev/null | grep -q ' DOWN ' || exec sleep 60
done
exec env -i PATH="$PATH" HOME="$HOME" TMPDIR="$work/tmp" OMPI_ALLOW_RUN_AS_ROOT=1 \
  OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 $work/on \$host "\$*"
END
  chmod +x "$work/on" "$work/agent"
  mkdir "$work/tmp"
  export OMPI_MCA_plm_rsh_agent=$work/agent TMPDIR=$work/tmp
}

on() {
  local host=$1
  shift
  "$work/on" "$host" exec "$(printf '%q ' "$@")"
}
for_way() { # VERB HOST HOST
  ip -n "$net-$2" route "$1" blackhole "$subnet.$3"
  ip -n "$net-$3" route "$1" blackhole "$subnet.$2"
}
part() { for_way add "$@"; }
rejoin() { for_way del "$@"; }
unplug() { ip -n "$net-$1" link set eth9 down; }
show() { rm "$work/hidden-$1" && rmdir "$work/empty"; }
hide() { mkdir "$work/empty" && ln -s "$2" "$work/hidden-$1"; }
plug() { ip -n "$net-$1" link set eth9 up; }
freeze() {
  local pid
  for pid in $(ip netns pids "$net-$1"); do
    [[ $(cat "/proc/$pid/comm" 2>/dev/null) != "$2" ]] || kill -STOP "$pid"
  done
}
# Without the processes that look after them, which have a session of their own.
ranks_on() {
  local pid
  for pid in $(ip netns pids "$net-$1"); do
    if [[ $(ps -o sid= -p "$pid" | tr -d ' ') != "$pid" ]] &&
      { tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -qE "^${millrace:?} (train|restore) " &&
      { tr '\0' '\n' <"/proc/$pid/environ"; } 2>/dev/null | grep -q '^OMPI_COMM_WORLD_RANK='; then echo "$pid"; fi
  done
}
slow_down() {
  local pids
  mapfile -t pids < <(ranks_on "$1")
  (
    trap 'kill -CONT "${pids[@]}"; exit' TERM
    while kill -STOP "${pids[@]}" && sleep 0.06 && kill -CONT "${pids[@]}" && sleep 0.03; do :; done
  ) 2>/dev/null &
  # shellcheck disable=SC2034 # for those that source this
  slowing=$!
}

check() {
  if [[ $2 == "$3" ]]; then echo "ok: $1"; else
    echo "FAILED: $1: expected $2, got $3"
    failures=$((failures + 1))
  fi
}

# Ends with the script if the run hangs or has ended.
wait_for() {
  for _ in $(seq 600); do
    grep -qs -- "$1" "$2" && return
    kill -0 "$job" 2>/dev/null || break
    sleep 0.1
  done
  cat "$2"
  echo "FAILED: $1 never came"
  exit 1
}
milliseconds() { date +%s%3N; }
