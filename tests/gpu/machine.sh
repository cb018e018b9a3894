#!/usr/bin/env bash
# On a machine with GPUs and torch and no network: what one call does there. It goes on where the call before it ended, for
# what was carried comes in parts, and says what it has done.
#   machine.sh setup                 the tool from carried wheels, the targets, the store
#   machine.sh stack NAME            a stack out of the parts that have arrived, with an interpreter of its own
#   machine.sh apply TARGET NAME     the target in place, below a folder of its own
#   machine.sh start NAME COMMAND…   a command in the background, its output in logs/NAME.log
#   machine.sh wait SECONDS NAME…    until these have ended
#   machine.sh keep RUN…             what is kept of a run, below $OUT
set -euo pipefail
root=${PROOF_ROOT:-/opt/proof} here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
carried=${CARRIED:-$here/../../.carry}
machine=${MACHINE_PYTHON:-/usr/bin/python3.12} packages=${MACHINE_PACKAGES:-/opt/torch/.venv/lib/python3.12/site-packages}
unset DEBIAN_FRONTEND
export RLBOX_STORE=$root/store RLBOX_PROJECT=$here/project RLBOX_DATA=${RLBOX_DATA:-/data}
mkdir -p "$root/parts" "$root/logs" "$RLBOX_DATA"
say() { echo "== $(date +%T) $*"; }

setup() {
  [ -x "$root/cli/bin/rlbox" ] || {
    uv venv -q --python "$machine" "$root/cli"
    uv pip install -q --python "$root/cli/bin/python" --offline --no-index --find-links "$carried/wheels" rlbox
  }
  for target in h100-verl h100-slime; do
    "$root/cli/bin/rlbox" fetch "$target" --place here --import "$carried/kit" | tail -n 1
  done
}

stack() {
  find "$carried" -maxdepth 1 -name 'part*' -exec cp -u {} "$root/parts/" \;
  "$root/cli/bin/python" "$here/pack.py" unpack "$root/parts" /opt/stack "$1"
  "$machine" -m venv --without-pip "/opt/stack/$1"
  printf '%s\n' "/opt/stack/$1/site-packages" "$packages" >"/opt/stack/$1/lib/python3.12/site-packages/zz-stack.pth"
}

case $1 in
  setup) setup ;;
  stack) stack "$2" ;;
  apply) "$root/cli/bin/rlbox" apply "$2" --prefix "/opt/places/$2" --offline --yes --no-packages --python "/opt/stack/$3/bin/python" ;;
  start)
    name=$2
    shift 2
    setsid nohup bash -c "\"\$@\"; echo \"ended with \$?\"" - "$@" >"$root/logs/$name.log" 2>&1 </dev/null &
    say "$name started"
    ;;
  wait)
    for _ in $(seq "$2"); do
      left=
      for name in "${@:3}"; do grep -q '^ended with' "$root/logs/$name.log" || left="$left $name"; done
      [ -z "$left" ] && break
      sleep 1
    done
    for name in "${@:3}"; do say "$name: $(tail -n 1 "$root/logs/$name.log")"; done
    ;;
  keep)
    for run in "${@:2}"; do
      mkdir -p "$OUT/$(basename "$run")"
      cp "$run/run.json" "$OUT/$(basename "$run")/"
      (cd "$run/stages" && for log in */output.log */stdout.log; do [ -f "$log" ] && echo "=== ${log%/*}" && cat "$log"; done) |
        xz -T0 >"$OUT/$(basename "$run")/stages.log.xz"
    done
    ;;
esac
