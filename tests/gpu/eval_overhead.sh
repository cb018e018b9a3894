#!/usr/bin/env bash
# What `rlbox eval` costs beside the engine itself, on a machine with one GPU, in place: all checkpoints of a run end to end
# against vLLM's own benchmark over the same prompts and lengths and a start, in turns (tests/evaluation/overhead.py). It needs
# this checkout and an interpreter that has vLLM, torch, transformers, pandas; no network. Small models are trained there
# and then, on the CPU. The log is $OUT/eval-overhead.log.
#   ENGINE_PYTHON   the interpreter that has vLLM [that of the place h100-verl, else python3]
#   RLBOX_PYTHON    one that has what rlbox needs: click, pydantic, urllib3 [ENGINE_PYTHON]
#   SETTINGS        further options of vLLM's, NAME=VALUE with spaces [attention_backend=TRITON_ATTN: carried stacks have no other]
#   PROBLEMS, ROUNDS  [640, 3]; more problems make the start count for less
#   WITHIN_S        no round is begun that would end later [540]
# Called from the checkout's root, on the GPU that is free:
#   CUDA_VISIBLE_DEVICES=0 OUT=out ENGINE_PYTHON=$HOME/.cache/rlbox/places/h100-verl/opt/venv/bin/python bash tests/gpu/eval_overhead.sh
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=$HOME/.cache/rlbox/places/h100-verl/opt/venv/bin/python
[ -x "$place" ] || place=$(command -v python3)
engine=${ENGINE_PYTHON:-$place} own=${RLBOX_PYTHON:-${ENGINE_PYTHON:-$place}}
out=${OUT:-.} work=$(mktemp -d -t eval-overhead.XXXXXX)
mkdir -p "$out"
export VLLM_USE_FLASHINFER_SAMPLER=${VLLM_USE_FLASHINFER_SAMPLER:-0} HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
words=()
for setting in ${SETTINGS-attention_backend=TRITON_ATTN} dtype=bfloat16 max_model_len=512 gpu_memory_utilization=${GPU_MEMORY:-0.3}; do
  words+=(--set "$setting")
done
{
  date -u +%FT%TZ
  nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader
  "$engine" -c 'import torch, vllm; print("vllm", vllm.__version__, "torch", torch.__version__, torch.cuda.get_device_name())'
  "$own" "$here/../evaluation/overhead.py" --python "$engine" --folder "$work" --rounds "${ROUNDS:-3}" \
    --problems "${PROBLEMS:-640}" --within-s "${WITHIN_S:-540}" "${words[@]}"
  echo "ended with $?"
} 2>&1 | tee "$out/eval-overhead.log"
for log in "$work"/eval-1.log "$work"/eval-1/*/server.log "$work"/bench-server.log "$work"/bench.log; do
  [ ! -f "$log" ] || { echo "=== ${log#"$work"/}" && tail -n 60 "$log"; }
done >"$out/eval-overhead-logs.txt"
rm -rf "$work"
