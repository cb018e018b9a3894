#!/usr/bin/env bash
# On a machine with GPUs and torch and no network: what one call does there. It goes on where the call before it ended, for
# what was carried comes in parts, and says what it has done.
#   machine.sh take                  the parts that were carried this time
#   machine.sh setup                 the tool from carried wheels, the targets, the store
#   machine.sh begin                 lanes.sh, in the background, from a copy of the checkout that no later call changes
#   machine.sh stack NAME            a stack out of the parts that have arrived, with an interpreter of its own
#   machine.sh apply TARGET NAME     the target in place, below a folder of its own
#   machine.sh engine                an engine out of the parts that have arrived, with the GPUs described for CDI
#   machine.sh kit                   what images are built of
#   machine.sh image TARGET          its image, on a base made of this machine's own system
#   machine.sh start NAME COMMAND…   a command in the background, its output in logs/NAME.log
#   machine.sh wait SECONDS NAME…    until these have ended
#   machine.sh killed DATA JOB STAGE TEXT
#   machine.sh keep RUN…             what is kept of a run, below $OUT
set -euo pipefail
root=${PROOF_ROOT:-/opt/proof} here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
carried=${CARRIED:-$here/../../.carry}
machine=${MACHINE_PYTHON:-/usr/bin/python3.12} packages=${MACHINE_PACKAGES:-/opt/torch/.venv/lib/python3.12/site-packages}
targets=$(ls "$here/project/images")
unset DEBIAN_FRONTEND
export RLBOX_STORE=$root/store RLBOX_PROJECT=${RLBOX_PROJECT:-$here/project} RLBOX_DATA=${RLBOX_DATA:-/data}
mkdir -p "$root/parts" "$root/logs" "$RLBOX_DATA"
say() { echo "== $(date +%T) $*"; }

setup() {
  [ -x /usr/local/bin/ninja ] || ln -sf "$(dirname "$(dirname "$(dirname "$packages")")")/bin/ninja" /usr/local/bin/ninja # torch's own
  [ -x "$root/cli/bin/rlbox" ] || {
    uv venv -q --python "$machine" "$root/cli"
    uv pip install -q --python "$root/cli/bin/python" --offline --no-index --find-links "$carried/wheels" rlbox
  }
  for target in $targets; do
    "$root/cli/bin/rlbox" fetch "$target" --place here --import "$carried/kit-$target" | tail -n 1
  done
}

begin() {
  mkdir -p "$root/checkout"
  tar -C "$here/../.." --exclude=./.carry -c . | tar -C "$root/checkout" -x
  setsid nohup bash "$root/checkout/tests/gpu/lanes.sh" all >"$root/logs/all.log" 2>&1 </dev/null &
}

kit() {
  rm -rf "$root/project" "$root/based"
  cp -r "$carried/project" "$root/project"
  cp -rT "$carried/ssh" "$root/ssh"
  "$root/cli/bin/rlbox" fetch h100-verl --project "$root/project" --import "$carried/kit" | tail -n 1
  touch "$root/kit"
}

take() {
  find "$carried" -maxdepth 1 -name 'part*' -exec cp -uL {} "$root/parts/" \;
  say "parts here: $(find "$root/parts" -name 'part-*' | wc -l)"
}

stack() {
  "$root/cli/bin/python" "$here/pack.py" unpack "$root/parts" /opt/stack "$1"
  "$machine" -m venv --without-pip "/opt/stack/$1"
  for folder in "/opt/stack/$1/site-packages" "$packages"; do # with what their own .pth say: distutils is in one
    printf "import site; site.addsitedir('%s')\n" "$folder"
  done >"/opt/stack/$1/lib/python3.12/site-packages/zz-stack.pth"
}

apply() {
  local place=$HOME/.cache/rlbox/places/$1
  "$root/cli/bin/rlbox" apply "$1" --prefix "$place" --offline --yes --no-packages --python "/opt/stack/$2/bin/python" | tail -n 3 || say "$1: a check failed"
  # a framework's own installation has this program beside its interpreter
  printf '#!/bin/sh\nexec %s -m ray.scripts.scripts "$@"\n' "$place/opt/venv/bin/python" >"$place/opt/venv/bin/ray"
  chmod +x "$place/opt/venv/bin/ray"
}

engine() {
  "$root/cli/bin/python" "$here/pack.py" unpack "$root/parts" /opt/stack engine
  local home=/opt/stack/engine driver=/usr/local/nvidia plugins=/usr/local/lib/docker/cli-plugins name gpu
  for name in "$home"/lib/*; do ldconfig -p | grep -q "${name##*/}" || cp "$name" /usr/lib/x86_64-linux-gnu/; done
  ldconfig
  mkdir -p /etc/cdi "$plugins" "$root/engine"
  ln -sfn "$home/bin/docker" /usr/local/bin/docker
  ln -sfn "$home/cli-plugins/docker-buildx" "$plugins/docker-buildx"
  { # what NVIDIA's toolkit would write
    printf 'cdiVersion: "0.6.0"\nkind: nvidia.com/gpu\ndevices:\n'
    for gpu in /dev/nvidia[0-9]*; do
      printf -- '- name: "%s"\n  containerEdits:\n    deviceNodes:\n    - path: %s\n' "${gpu#/dev/nvidia}" "$gpu"
    done
    printf -- '- name: all\n  containerEdits:\n    deviceNodes:\n'
    printf -- '    - path: %s\n' /dev/nvidia[0-9]*
    printf 'containerEdits:\n  deviceNodes:\n'
    for name in nvidiactl nvidia-uvm nvidia-uvm-tools; do [ ! -e "/dev/$name" ] || printf -- '  - path: /dev/%s\n' "$name"; done
    printf '  mounts:\n  - hostPath: %s\n    containerPath: %s\n    options: [ro, nosuid, nodev, bind]\n' "$driver" "$driver"
  } >/etc/cdi/nvidia.yaml
  cat >"$root/engine.json" <<JSON
{"data-root": "$root/engine", "features": {"containerd-snapshotter": true, "cdi": true}, "cdi-spec-dirs": ["/etc/cdi"],
 "userland-proxy": false, "iptables": false, "ip6tables": false, "bridge": "none"}
JSON
  docker version >/dev/null 2>&1 ||
    PATH=$home/bin:$PATH setsid nohup dockerd --experimental --config-file "$root/engine.json" >"$root/logs/engine.log" 2>&1 </dev/null &
  for _ in $(seq 100); do docker version >/dev/null 2>&1 && break || sleep 0.2; done
  say "engine $(docker version -f '{{.Server.Version}}')"
}

image() {
  if [ ! -e "$root/based" ]; then
    # a framework's own installation has this program; the stack was carried as packages alone
    printf '#!/bin/sh\nexec /opt/venv/bin/python -m ray.scripts.scripts "$@"\n' >/usr/local/bin/ray
    chmod +x /usr/local/bin/ray
    "$root/cli/bin/python" "$here/base.py" "$root/project" $targets && touch "$root/based"
    rm /usr/local/bin/ray
  fi
  "$root/cli/bin/rlbox" build "$1" --project "$root/project" --hermetic
}

case $1 in
  take) take ;;
  setup) setup ;;
  begin) begin ;;
  stack) stack "$2" ;;
  apply) apply "$2" "$3" ;;
  engine) engine ;;
  kit) kit ;;
  image) image "$2" ;;
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
  killed) # the supervisor of the newest run of a job, with -9, once a stage has said something
    until run=$(find "$2/runs" -maxdepth 1 -name "$3-*" | sort | tail -n 1) && grep -qs -- "$5" "$run"/stages/*-"$4"/stage.log; do sleep 0.5; done
    kill -9 "$("$root/cli/bin/python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["supervisor_pid"])' "$run/run.json")"
    say "killed the supervisor of $run"
    ;;
  keep)
    for run in "${@:2}"; do
      kept=$OUT/$(basename "$run")
      mkdir -p "$kept"
      cp "$run/run.json" "$kept/"
      cp "$run"/learning.json "$kept/" 2>/dev/null || true
      (cd "$run/stages" && for log in */stage.log; do echo "=== ${log%/*}" && sed 's,\x1b\[[0-9;]*m,,g' "$log"; done) | xz -T0 >"$kept/stages.log.xz"
    done
    ;;
esac
