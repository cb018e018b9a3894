#!/usr/bin/env bash
# On a machine with four GPUs, torch and no network: everything that is to be shown, unattended. `machine.sh begin` starts it in the
# background; it takes each stack once its parts have arrived, and keeps the GPUs busy. A command that is timed without rlbox
# follows its run on the same GPU; that of xdan needs the run's reward server and goes beside it:
#   lanes.sh all            stacks, engine and images as they arrive, and the lanes; what each says is in logs/NAME.log
#   lanes.sh NAME…          these alone, one after the other
#   lanes.sh look [LINES]   the ends of all logs, and the GPUs
#   lanes.sh keep           what is kept of the runs, with the steps beside those without rlbox, in $OUT/kept.tar
# Several jobs with a head of Ray are on the machine at a time: all but one have their ports moved.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${PROOF_ROOT:-/opt/proof}
export RLBOX_STORE=$root/store
rlbox=$root/cli/bin/rlbox python=$root/cli/bin/python
own=$here/project boxed=$root/project
mkdir -p "$root/logs"

newest() { find "$1/runs" -maxdepth 1 -name '*-[0-9]*' 2>/dev/null | sort | tail -n 1; }
until_there() { while [ ! -e "$root/$1" ]; do sleep 1; done; }
# run DATA PROJECT JOB WORDS…
run() {
  mkdir -p "$1"
  RLBOX_PROJECT=$2 "$rlbox" run "$3" --data "$1" "${@:4}"
}
# beside FILE LOG GPUS OLD=NEW…: the command that was taken, without rlbox
beside() { "$python" "$here/bare.py" run "$1" "${@:3}" >"$root/logs/$2.log" 2>&1; }
taken() { while [ ! -s "$1" ] && kill -0 "$2"; do sleep 1; done; }
take() { "$python" "$here/bare.py" take "$@"; }

holdem=(--target h100-slime --set dynamic_sampling=false --set partial_rollout=false --set prompts=8 --set samples=4 --set batch=32
  --set save_every=2 --set answer_tokens=64 --set over_sampling=8
  --set slime=/opt/stack/slime/slime --set megatron=/opt/stack/slime/megatron-lm)
xdan=(--profile tiny --target h100-openrlhf --shift-ports 100)
two=(--set node_gpus=2 --set cluster_gpus=2 --set ref_gpus=2 --set actor_gpus=2 --set engines=2)

big() { # the shape of Qwen2 0.5B, killed after the sixth update and resumed; GPU 2
  bash "$here/machine.sh" killed /data/big learn grpo 'step:6 ' >"$root/logs/killed.log" 2>&1 &
  run /data/big "$own" learn --place here --gpus device=2 --set layers=24 --set hidden=896 --set ffn=4864 \
    --set sft_lr=3e-4 --set sft_steps=400 --set sft_batch=64 --set micro=512 --set steps=10 --set test_every=5 --set lr=2e-5
  sleep 8
  RLBOX_PROJECT=$own "$rlbox" run --resume "$(basename "$(newest /data/big)")" --data /data/big --gpus device=2
}
gkd() { # two GPUs, then the same without rlbox
  take /data/gkd.json verl.trainer.main_ppo distillation.enabled=True &
  run /data/gkd "$own" gkd --profile tiny --target h100-verl --place here --gpus device=0,1 --set steps=16 --set save_freq=8
  local of
  of=$(newest /data/gkd)
  beside /data/gkd.json bare-gkd 0,1 "$of/checkpoints=$of/bare" "$of/hydra=$of/bare-hydra"
}
xdan() { # two GPUs, and there the same without rlbox, which asks the run's reward server; the first one's vLLM sleeps when the second's starts
  take /data/xdan.json xdan.dotted --save_path &
  run /data/xdan "$own" xdan "${xdan[@]}" --place here --gpus device=0,1 "${two[@]}" --set episodes=5 &
  local process=$! of
  taken /data/xdan.json "$process"
  of=$(newest /data/xdan)
  sleep 45
  beside /data/xdan.json bare-xdan 0,1 "$of/model=$of/bare-model"
  wait "$process"
}
box_xdan() { run /data/box_xdan "$boxed" xdan "${xdan[@]}" --gpus device=1; }
resumed() { # DATA PROJECT RUN WORDS…: a run from the checkpoint of another one, with the optimizer's state
  run "$1" "$2" holdem --profile resume --profile tiny --from resume --force "${holdem[@]}" --set load_optim=true --set load_rng=true \
    --set rollouts=12 --set "load=$3/checkpoints-full" --set "sources=$3/sources" --set "model=$3/tiny/model" --set "ref_load=$3/tiny/model" \
    --set "prompt_data=$3/tiny/prompts.jsonl" "${@:4}"
}
holdem() { # GPU 2; resumed in another run, then the same without rlbox
  take /data/holdem.json slime/train.py /checkpoints-full &
  run /data/holdem "$own" holdem --profile full --profile tiny "${holdem[@]}" --place here --gpus device=2 --set rollouts=8
  local of
  of=$(newest /data/holdem)
  resumed /data/holdem "$own" "$of" --place here --gpus device=2
  beside /data/holdem.json bare-holdem 2 "$of/checkpoints-full=$of/bare"
}
box_holdem() { # GPU 3, and so resumed
  run /data/box_holdem "$boxed" holdem --profile full --profile tiny "${holdem[@]}" --gpus device=3 --set rollouts=8 --shift-ports 200
  resumed /data/box_holdem "$boxed" "/data/runs/$(basename "$(newest /data/box_holdem)")" --gpus device=3 --shift-ports 200
}
two_holdem() { # GPUs 2 and 3, which share the engine, and the layers where it is said: two_holdem with TENSOR_PARALLEL=2
  run /data/two_holdem "$own" holdem --profile full --profile tiny "${holdem[@]}" --place here --gpus device=2,3 --set rollouts=8 \
    --set gpus=2 --set engine_gpus=2 --set "tensor_parallel=${TENSOR_PARALLEL:-1}" --shift-ports 200
}
check() { (cd "$here/../.." && RLBOX_PROJECT=$boxed "$python" tests/gpu/check.py h100-verl --devices 3 --without-runs); }
nodes() { (cd "$root" && RLBOX_PROJECT=$boxed "$python" "$here/nodes.py" h100-openrlhf --gpus 0,1 --out "$root/logs/nodes.json.log"); }
evaluation() { CUDA_VISIBLE_DEVICES=0 OUT=$root/eval RLBOX_PYTHON=$python WITHIN_S=560 bash "$here/eval_overhead.sh"; }

# lane FILE… NAME: one of those, once all that it waits for is there
lane() {
  local file
  for file in "${@:1:$#-1}"; do until_there "$file"; done
  echo "$(date +%T) ${!#}"
  ("${!#}"; echo "ended with $?") >"$root/logs/${!#}.log" 2>&1
  touch "$root/done-${!#}"
}

all() {
  lane stack-openrlhf xdan &
  lane stack-verl big &
  lane image-slime box_holdem &
  lane stack-verl done-xdan gkd &
  lane image-openrlhf done-gkd nodes &
  lane image-verl done-box_holdem check &
  lane done-big done-box_holdem holdem & # not at once: slime looks for its engines' ports from one number on
  lane done-holdem two_holdem &
  lane done-nodes evaluation &
  lane done-nodes box_xdan &
  local name
  for name in openrlhf slime verl; do
    until bash "$here/machine.sh" stack "$name" 2>/dev/null; do sleep 1; done
    bash "$here/machine.sh" apply "h100-$name" "$name"
    touch "$root/stack-$name"
  done
  until bash "$here/machine.sh" engine 2>/dev/null; do sleep 1; done
  until_there kit
  for name in slime openrlhf verl; do bash "$here/machine.sh" image "h100-$name"; touch "$root/image-$name"; done
  wait
}

look() {
  local log
  for log in "$root"/logs/*.log; do echo "--- $log" && tail -n "${1:-3}" "$log" | cut -c1-220; done
  df -h / | tail -n 1
  nvidia-smi --query-gpu=index,utilization.gpu,memory.used --format=csv,noheader
}

keep() {
  local name of
  for name in big gkd xdan box_xdan; do
    of=$(newest "/data/$name")
    [ -z "$of" ] || bash "$here/machine.sh" keep "$of"
  done
  for of in /data/{,box_,two_}holdem/runs/*; do [ ! -d "$of" ] || bash "$here/machine.sh" keep "$of"; done
  mkdir -p "$OUT/logs"
  for of in "$root"/logs/*.log "$root"/eval/*; do [ ! -f "$of" ] || tail -c 300000 "$of" | xz >"$OUT/logs/$(basename "$of").xz"; done
  for name in gkd/distill xdan/train holdem/full; do
    "$python" "$here/bare.py" steps "/data/${name%/*}"/runs/*/stages/*-"${name#*/}"/stage.log "$root/logs/bare-${name%/*}.log"
  done >"$OUT/steps.txt" 2>&1
  cat "$OUT/steps.txt"
  (cd "$OUT" && tar cf kept.tar --remove-files -- *)
}

case ${1:-} in
  all) all ;;
  look) look "${2:-}" ;;
  keep) keep ;;
  *) for name in "$@"; do lane "$name"; done ;;
esac
