#!/usr/bin/env bash
# The same launcher in forms that work.
set -euo pipefail
export LIBRARY_PATH=/usr/local/cuda/lib64/stubs${LIBRARY_PATH:+:$LIBRARY_PATH}
GCS=8100
ray start --head --port=$GCS --dashboard-host=127.0.0.1 --temp-dir=/data/r --object-spilling-directory=/data/spill
curl -fsS http://127.0.0.1:8265/api/version && echo up
ray job submit --address http://127.0.0.1:8265 --working-dir src -- \
    python -m openrlhf.cli.train_ppo_ray --ref.num_nodes 2 \
    --reward.remote_url http://gpu005:5001/get_reward \
    --ckpt.output_dir /data/ckpts 2>&1 | tee train.log
tail -f logs/*.log | grep -E "\[(ACTOR|SYNC)\]"
