#!/usr/bin/env bash
# A launcher of the kind that notes hand down: each line below is wrong in its own way.
set -e
export NCCL_TIMEOUT=1800
export LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs:$LD_LIBRARY_PATH
ray shutdown
pkill -f train.py || true
GCS=18100
ray start --head --port=$GCS \
    --dashboard-host=0.0.0.0 \
    --storage=/data/storage
curl -s http://127.0.0.1:8265/api/version && echo up
ray job submit --working-dir . -- \
    python -m openrlhf.cli.train_ppo_ray --ref_num_nodes 2 \
    --remote_rm_url http://127.0.0.1:5001/get_reward \
    --save_path ./ckpts 2>&1 | tee train.log
tail -f "logs/*.log" | grep -E "[ACTOR]|[SYNC]"
