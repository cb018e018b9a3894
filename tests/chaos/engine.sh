#!/usr/bin/env bash
# An engine of the chaos campaign's own, in a network namespace, that may be ended at any moment: no other engine, and no
# container of one, is touched by that. Needs root.
#
#   engine.sh up          start it where it does not run
#   engine.sh address     say where it answers
#   engine.sh TERM|KILL   end it by that signal, and start it again
#   engine.sh down        end it, and remove all that is its own
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
dir=${RLBOX_CHAOS_DIR:-/var/lib/rlbox-chaos}
namespace=rlbox-chaos
export DOCKER_HOST=unix://$dir/docker.sock

up() {
  mkdir -p "$dir"
  ip netns list | grep -qw "$namespace" || ip netns add "$namespace"
  ip -n "$namespace" link set lo up
  # the network alone is its own: disks that a round mounts later must be seen by its containers
  RLBOX_ENGINE_DIR=$dir nsenter --net="/run/netns/$namespace" "$here/rlbox/engine/programs/ensure-engine.sh"
}

gone() { # waits for the engine that was told to end
  for _ in $(seq 300); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.1
  done
  return 1
}

end() { # SIGNAL
  local pid
  pid=$(cat "$dir/dockerd.pid" 2>/dev/null) || return 0
  kill -"$1" "$pid" 2>/dev/null || return 0
  gone "$pid"
}

case ${1:-} in
  up) up ;;
  address) echo "$DOCKER_HOST" ;;
  TERM | KILL) end "$1" && up ;;
  down)
    end TERM
    ip netns del "$namespace" 2>/dev/null || true
    # what an engine that was killed left mounted
    awk -v dir="$dir/" 'index($2, dir) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r -n 1 umount --lazy
    rm -rf "$dir"
    ;;
  *)
    echo "usage: engine.sh up|address|TERM|KILL|down" >&2
    exit 2
    ;;
esac
