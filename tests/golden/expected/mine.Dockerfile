# Rendered by `rlbox render mine` from images/mine/target.toml: edit that file, not this one.
# Build it with `rlbox build mine`, or `docker build` the folder that `rlbox render mine --context FOLDER` makes.
ENV HF_HUB_OFFLINE="1" MINE="1" OMP_NUM_THREADS="2" TORCH_COMPILE_DISABLE="1" VLLM_CPU_KVCACHE_SPACE="1"
      org.opencontainers.image.description="Image of the rlbox target mine, built from a lock file" \
      org.opencontainers.image.version="" \
      rlbox.fixes="checkpoint-corrupt-or-incomplete compile-caches compile-killed-oom conda-shadows-python cuda-fork-reinit cuda-wheels-mixed disk-full env-not-exported git-dubious-ownership glibc-too-old hf-offline-blocked hf-transfer-switch host-oom-killed interactive-prompts interpreter-in-the-way libnuma-missing native-segfault nccl-leftovers nccl-self-test nccl-timeout-variable numpy2-abi opencv-needs-gl path-in-every-shell paths-off-data-disk pip-index-unreachable placeholder-left proxy-intercepts-localhost pthread-create-failed python-constraints ray-dedup-logs ray-head-exits ray-insufficient-gpus ray-memory-monitor-kill ray-not-on-path ray-object-store ray-port-conflict ray-temp-dir ray-token ray-usage-statistics ray-uv-run ray-worker-ports ray-worker-register ray-working-dir scoped-cleanup soft-limits stack-not-in-venv tiktoken-vocabulary tokenizers-parallelism torch-ext-abi-mismatch unknown-uid usage-statistics visible-devices-baked" \
      rlbox.lock="" \
      rlbox.spec="…" \
      rlbox.target="mine"
