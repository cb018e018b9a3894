#!/usr/bin/env bash
# On a machine with GPUs, torch and no network: what one call does there. It goes on where the call before it ended, for
# what was carried comes in parts, and says what it has done.
#   machine.sh first                 what the first call does: take, setup, begin
#   machine.sh take                  the parts that were carried this time
#   machine.sh setup                 the interpreter, the tool and the targets' locks; are the machine's own files as they must be?
#   machine.sh begin                 lanes.sh, in the background, from a copy of tests/gpu that no later call changes
#   machine.sh lay NAME              a target's packages out of the parts that have arrived, compared with its lock
#   machine.sh place NAME            the target in place there: `rlbox apply`
#   machine.sh engine                an engine out of the parts that have arrived, with the GPUs described for CDI
#   machine.sh frames                what images have beside their packages (frame.py)
#   machine.sh image NAME PLACE…     the target's image of its frame and the packages that PLACE has (image.py), in the engine
#   machine.sh killed DATA JOB STAGE TEXT
#   machine.sh keep RUN…             what is kept of a run, below $OUT
set -euo pipefail
root=${PROOF_ROOT:-/opt/proof} here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
carried=${CARRIED:-$here/../../.carry}
packages=${MACHINE_PACKAGES:-/opt/torch/.venv/lib/python3.12/site-packages}
places=$HOME/.cache/rlbox/places # as where it was packed: programs of a place name its folder
rlbox=$root/cli/bin/rlbox python=$root/cli/bin/python
unset DEBIAN_FRONTEND
export RLBOX_STORE=$root/store RLBOX_PROJECT=${RLBOX_PROJECT:-$root/project} RLBOX_DATA=${RLBOX_DATA:-/data}
mkdir -p "$root/parts" "$root/logs" "$RLBOX_DATA"
say() { echo "== $(date +%T) $*"; }

take() {
  find "$carried" -name "part-*" -exec mv -t "$root/parts" {} + # what was taken is not looked at again in the next call
  [ ! -e "$carried/tool/machine.json" ] || cp "$carried/tool/machine.json" "$carried/tool/parts.json" "$root/parts/"
  say "parts here: $(find "$root/parts" -name 'part-*' | wc -l)"
}

setup() {
  local deb name memory
  [ -x /usr/local/bin/ninja ] || ln -sf "$(dirname "$(dirname "$(dirname "$packages")")")/bin/ninja" /usr/local/bin/ninja # torch's own
  [ -e "$root/python" ] || { # the interpreter of the locks: paths of Python 3.11 alone
    for deb in "$carried"/tool/debs/*.deb; do dpkg -x "$deb" /; done
    ldconfig
    touch "$root/python"
  }
  [ -x "$rlbox" ] || {
    uv venv -q --python /usr/bin/python3.11 "$root/cli"
    uv pip install -q --python "$python" --offline --no-index --find-links "$carried/tool/wheels" rlbox
  }
  rm -rf "$root/project.new"
  cp -r "$here/project" "$root/project.new"
  name=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
  memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1)
  sed -i "s/^gpu = .*/gpu = \"$name\"/; s/^gpu_memory_gib = .*/gpu_memory_gib = $((memory / 1024)).0/" "$root"/project.new/images/*/target.toml
  "$python" "$here/stack.py" lock "$root/project.new"
  rm -rf "$root/project"
  mv "$root/project.new" "$root/project"
  "$python" "$here/pack.py" needs "$root/parts" --machine "$packages"
  say "tool $("$rlbox" --version), $("$python" --version), $name"
}

begin() {
  [ ! -e "$root/begun" ] || return 0 # this call is made again
  touch "$root/begun"
  mkdir -p "$root/checkout/tests"
  cp -rT "$here" "$root/checkout/tests/gpu"
  setsid nohup bash "$root/checkout/tests/gpu/lanes.sh" all >"$root/logs/all.log" 2>&1 </dev/null &
  say "lanes begun"
}

lay() {
  local folder=$places/$1
  "$python" "$here/pack.py" unpack "$root/parts" "$places" "$1" --machine "$packages"
  ln -sfn /usr/bin/python3.11 "$folder/opt/venv/bin/python" # where the place was packed, that is python3
  "$python" "$here/stack.py" verify "$RLBOX_PROJECT" "$1" "$folder" "$root/$1.json"
  say "$1 laid"
}

place() {
  local folder=$places/$1 tree
  "$rlbox" apply "$1" --prefix "$folder" --data "$RLBOX_DATA" --offline --yes --no-packages
  say "rlbox apply $1: exit 0"
  for tree in "$folder"/opt/*; do # a job's git trees where it looks for them, as in the image
    case ${tree##*/} in rlbox | venv) ;; *) ln -sfn "$tree" "/opt/${tree##*/}" ;; esac
  done
}

frames() {
  "$python" "$here/pack.py" unpack "$root/parts" "$root" frames --machine "$packages"
  say "frames laid"
}

image() {
  local name=$1 from=$2
  "$python" "$here/image.py" "$RLBOX_PROJECT" "$name" "$places/$from" "$root/frames" "$root/blobs" "${@:3}"
  [ "$name" = "$from" ] || cp "$root/$from.json" "$root/$name.json" # what differs from its lock, too
  say "image of $name loaded"
}

engine() {
  "$python" "$here/pack.py" unpack "$root/parts" /opt/stack engine --machine "$packages"
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

case $1 in
  first) take && setup && begin ;;
  take) take ;;
  setup) setup ;;
  begin) begin ;;
  lay) lay "$2" ;;
  place) place "$2" ;;
  engine) engine ;;
  frames) frames ;;
  image) image "${@:2}" ;;
  killed) # the supervisor of the newest run of a job, with -9, once a stage has said something
    until run=$(find "$2/runs" -maxdepth 1 -name "$3-*" | sort | tail -n 1) && grep -qs -- "$5" "$run"/stages/*-"$4"/stage.log; do sleep 0.5; done
    kill -9 "$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["supervisor_pid"])' "$run/run.json")"
    say "killed the supervisor of $run"
    ;;
  keep)
    for run in "${@:2}"; do
      kept=$OUT/$(basename "$run")
      mkdir -p "$kept"
      cp "$run/run.json" "$kept/"
      cp "$run"/learning.json "$kept/" 2>/dev/null || true
      "$python" "$here/about.py" "$run" "$root" >"$kept/about.json"
      (cd "$run/stages" && for log in */stage.log; do echo "=== ${log%/*}" && sed 's,\x1b\[[0-9;]*m,,g' "$log"; done) | xz -T0 >"$kept/stages.log.xz"
    done
    ;;
esac
