#!/usr/bin/env bash
# On a machine with one, two or four GPUs, torch and no network: everything that is to be shown, unattended. `machine.sh first`
# starts it in the background; it lays each target's packages once its parts have arrived, and keeps the GPUs busy:
#   lanes.sh all            what PROOF_PLACE says: `container` (images are made and loaded) or `here` (in place); each lane
#                           writes logs/NAME.log
#   lanes.sh NAME…          these alone, one after the other; `again NAME` in the background, which is for a lane that was mended
#   lanes.sh look [LINES]   the ends of all logs with their first fatal lines, and the GPUs
#   lanes.sh keep           what is kept of the runs, in $OUT/kept.tar and $OUT/logs.tar
# Several jobs are on a GPU at a time: each takes a small share of its memory, and all but one with a head of Ray have their ports moved.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${PROOF_ROOT:-/opt/proof} proof_place=${PROOF_PLACE:-container}
export RLBOX_STORE=$root/store RLBOX_PROJECT=$root/project
rlbox=$root/cli/bin/rlbox
places=$HOME/.cache/rlbox/places
count=${GPUS:-$(nvidia-smi -L | wc -l)}
first=0 last=$((count - 1))
both=$([ "$count" = 1 ] && echo 0 || echo "$((count - 2)),$((count - 1))")
pair=$([ "$count" = 1 ] && echo 1 || echo 2)
mkdir -p "$root/logs"

newest() { find "$1/runs" -maxdepth 1 -name '*-[0-9]*' 2>/dev/null | sort | tail -n 1; }
until_there() { while [ ! -e "$root/$1" ]; do sleep 1; done; }
# run NAME GPUS JOB WORDS…: with a data disk of its own
run() {
  local data=/data/$1 place=()
  [ "$proof_place" = container ] || place=(--place here)
  mkdir -p "$data"
  awk -F, '{ print NF }' <<<"$2" >"$data/gpus"
  "$rlbox" run "$3" --data "$data" "${place[@]}" --gpus "device=$2" "${@:4}"
}
# the path by which a run sees FILE of the data disk NAME: data NAME FILE
data() { if [ "$proof_place" = container ]; then echo "/data/$2"; else echo "/data/$1/$2"; fi; }
python_of() { echo "$places/$1/opt/venv/bin/python"; }
# half RUN TARGET OUT: a model of half a billion random weights with the tokenizer of a run's tiny one
half() { "$(python_of "$2")" "$here/half.py" "$1" "$3"; }

sft() { run sft "$first" sft --profile tiny --target h100-verl --set gpu_memory=0.2; }
grpo() { run grpo "$both" grpo --profile tiny --target h100-verl --set "gpus=$pair" --set "batch=$pair" --set gpu_memory=0.2; }
gkd() { run gkd "$both" gkd --profile tiny --target h100-verl --set gpu_memory=0.2 --shift-ports 300; }
xdan() { run xdan "$first" xdan --profile tiny --target h100-openrlhf --set gpu_memory=0.2 --shift-ports 100; }

small=(--target h100-slime --set dynamic_sampling=false --set partial_rollout=false --set prompts=8 --set samples=4 --set batch=32 --set save_every=2
  --set answer_tokens=64 --set over_sampling=8 --set rollouts=4)
holdem_run() { # NAME WORDS…: te=false with the layers shared by two GPUs, through smoke and full
  run "$1" "$both" holdem --profile full --profile tiny "${small[@]}" --set mem_fraction=0.2 \
    --set "gpus=$pair" --set "engine_gpus=$pair" --set "tensor_parallel=${TENSOR_PARALLEL:-$pair}" --shift-ports 200 "${@:2}"
}
holdem() { holdem_run holdem; }
# One run of each system with a model of half a billion parameters: 32 layers of 1024 (half.py).
half_sft() {
  half "$(newest /data/sft)/tiny/model" h100-verl /data/half_sft/model &&
    run half_sft "$first" sft --profile tiny --target h100-verl --set gpu_memory=0.2 --shift-ports 400 \
      --set "model=$(data half_sft model)" --set "smoke_model=$(data half_sft model)"
}
half_xdan() {
  half "$(newest /data/xdan)/tiny/model" h100-openrlhf /data/half_xdan/model &&
    run half_xdan "$first" xdan --profile tiny --target h100-openrlhf --set "pretrain=$(data half_xdan model)" \
      --set gpu_memory=0.2 --shift-ports 100
}
half_grpo() {
  half "$(newest /data/grpo)/tiny/model" h100-verl /data/half_grpo/model &&
    run half_grpo "$both" grpo --profile tiny --target h100-verl --set "gpus=$pair" --set "batch=$pair" --set gpu_memory=0.2 \
      --set "model=$(data half_grpo model)" --set tiny_model= --shift-ports 900
}
half_holdem() {
  holdem_run half_holdem --set layers=32 --set hidden=1024 --set ffn=4608 --set attention_heads=16 --set query_groups=2 --set head_size=64
}
# The compiled wheel of `cluster-2node-flash`: its numbers beside torch's, and xdan with it.
flash_numbers() {
  docker run --rm --network host --ipc host --device "nvidia.com/gpu=$last" --volume "$here:/gpu:ro" \
    "$(docker images --format '{{.Repository}}:{{.Tag}}' rlbox/h100-flash | head -n 1)" python /gpu/flash.py
}
flash_xdan() {
  run flash_xdan "$last" xdan --profile tiny --target h100-flash --set attention=flash_attention_2 --set gpu_memory=0.2 --shift-ports 600
}

# On four GPUs, the customer's shape: tensor_parallel 2 and two engines, 4 ranks, a teacher beside two students.
every=$(seq -s, 0 "$last")
four_sft() {
  run four_sft "$every" sft --profile tiny --target h100-verl --set "gpus=$count" --set micro_batch=4 --set gpu_memory=0.2 --shift-ports 700
}
four_grpo() {
  run four_grpo "$every" grpo --profile tiny --target h100-verl --set "gpus=$count" --set "batch=$count" \
    --set train_file=train.parquet --set train_rows=16 --set gpu_memory=0.2 --shift-ports 800
}
four_gkd() {
  run four_gkd "$every" gkd --profile tiny --target h100-verl --set actor_gpus=2 --set teacher_gpus=1 --set gpu_memory=0.2 \
    --set teacher_memory=0.2 --shift-ports 700
}
four_holdem() {
  run four_holdem "$every" holdem --profile full --profile tiny "${small[@]}" --set mem_fraction=0.2 \
    --set "gpus=$count" --set engine_gpus=2 --set tensor_parallel=2 --shift-ports 700
}

fork() { # a changed verl in front of the locked one
  mkdir -p /data/verl
  cp -rL "$places/h100-verl/opt/venv/lib/python3.11/site-packages/verl" /data/verl/verl
  sed -i '/^def run_sft(config/a\    print("changed in the fork", flush=True)' /data/verl/verl/trainer/sft_trainer.py
  run fork "$last" sft --profile tiny --target h100-verl --set source=/data/verl --shift-ports 500
  local status=$?
  "$rlbox" runs show --data /data/fork | grep -i source
  "$rlbox" logs -q --data /data/fork | grep -m 3 "changed in the fork"
  return "$status"
}

# lane FILE… NAME: one of those, once all that it waits for is there
lane() {
  local file status=0
  for file in "${@:1:$#-1}"; do until_there "$file"; done
  echo "$(date +%T) ${!#}"
  ("${!#}") >"$root/logs/${!#}.log" 2>&1 || status=$?
  echo "ended with $status at $(date +%T)" >>"$root/logs/${!#}.log"
  touch "$root/done-${!#}"
}

# arrived COMMAND…: machine.sh COMMAND, again until all parts that it needs have arrived
arrived() {
  until bash "$here/machine.sh" "$@" >"$root/logs/$1-${2:-}.log" 2>&1; do
    grep -qE 'did not arrive|is cut' "$root/logs/$1-${2:-}.log" || return 1 # what else is wrong is said there
    sleep 2
  done
}

all() {
  local name
  lane "$proof_place-h100-verl" sft &
  lane "$proof_place-h100-slime" half_holdem &
  [ "$count" -ge 4 ] || lane done-half_holdem holdem &
  lane "$proof_place-h100-openrlhf" xdan &
  lane done-sft grpo &
  lane done-sft half_sft &
  lane done-grpo gkd &
  lane done-gkd half_grpo &
  lane done-xdan half_xdan &
  if [ "$count" -ge 4 ]; then
    lane done-half_holdem four_holdem &
    lane done-grpo four_sft &
    lane done-four_sft four_grpo &
    lane done-four_grpo four_gkd &
  fi
  if [ "$proof_place" = container ]; then
    lane container-h100-flash flash_numbers &
    lane container-h100-flash flash_xdan &
    for name in h100-verl h100-openrlhf h100-slime; do arrived lay "$name"; done
    arrived engine && arrived frames
    for name in h100-slime h100-verl h100-openrlhf; do
      arrived image "$name" "$name" && touch "$root/container-$name"
    done
    arrived image h100-flash h100-openrlhf --wheel "$root"/frames/flash_attn-*.whl && touch "$root/container-h100-flash"
  else
    lane done-sft fork &
    for name in h100-verl h100-openrlhf h100-slime; do
      arrived lay "$name" && arrived place "$name" && touch "$root/here-$name"
    done
  fi
  wait
}

look() {
  local log
  for log in "$root"/logs/*.log; do
    echo "--- ${log##*/} $(grep -c . "$log")" && tail -n "${1:-3}" "$log" | cut -c1-220
    grep -q 'ended with [^0]' "$log" && grep -m 1 -E 'cause|Error|error:' "$log" | cut -c1-300
  done
  df -h / | tail -n 1
  nvidia-smi --query-gpu=index,utilization.gpu,memory.used --format=csv,noheader
}

# why NAME: what broke first in a lane's newest run, and the end of that stage
why() {
  local of
  of=$(newest "/data/$1")
  "$rlbox" diagnose "$of"
  of=$(find "$of/stages" -name stage.log -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d' ' -f2)
  grep -nE 'Error|error:|Traceback|assert' "$of" | head -n 20 | cut -c1-300
  tail -n 40 "$of" | cut -c1-300
}

keep() {
  local of
  for of in /data/*/runs/*-[0-9]*; do [ ! -d "$of" ] || OUT=$OUT/kept bash "$here/machine.sh" keep "$of"; done
  mkdir -p "$OUT/logs"
  for of in "$root"/h100-*.json; do xz -k -c "$of" >"$OUT/kept/differs-$(basename "$of").xz"; done
  for of in "$root"/logs/*.log; do tail -c 300000 "$of" | xz >"$OUT/logs/$(basename "$of").xz"; done
  (cd "$OUT" && tar cf kept.tar --remove-files kept && tar cf logs.tar --remove-files logs)
  ls -la "$OUT"
}

case ${1:-} in
  all) all ;;
  look) look "${2:-}" ;;
  why) why "$2" ;;
  keep) keep ;;
  again)
    cp -r --remove-destination "$here/." "$root/checkout/tests/gpu/" 2>/dev/null || true
    for name in "${@:2}"; do
      rm -f "$root/done-$name"
      setsid nohup bash "$root/checkout/tests/gpu/lanes.sh" "$name" >/dev/null 2>&1 </dev/null &
    done
    ;;
  *) for name in "$@"; do lane "$name"; done ;;
esac
