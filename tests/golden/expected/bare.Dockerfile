# Rendered by `rlbox render bare` from images/bare/target.toml: edit that file, not this one.
# nothing but one group
# Build it with `rlbox build bare`, or `docker build` the folder that `rlbox render bare --context FOLDER` makes.

FROM registry.example/base@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef AS rlbox.os
ARG SOURCE_DATE_EPOCH
# Its locked apt packages come with the build context: no archive is asked, whose contents change from day to day.
RUN --mount=type=bind,source=scripts,target=/run/rlbox/scripts \
    --mount=type=bind,source=debs,target=/run/rlbox/debs \
    sh /run/rlbox/scripts/install.sh base

# ---- first stages of every image: operating system, uv, rlbox's own runtime ----
# No layer of the image is a RUN: each stage lays its files below /out with fixed time stamps, and only those are copied.
# So the same files give the same layer whenever and wherever they were installed, and a change moves its own layer alone.
FROM rlbox.os AS rlbox.tools
ARG SOURCE_DATE_EPOCH
COPY scripts/install.sh wheels/build.txt /opt/tools/
RUN --mount=type=bind,source=wheels/uv,target=/run/rlbox/wheels sh /opt/tools/install.sh uv '/opt/python'"'"'s/bin/python3'

# rlbox runs in an environment of its own, so that nothing it needs can disturb the stack.
FROM rlbox.tools AS rlbox.runtime
RUN --mount=type=secret,id=sources --mount=type=secret,id=ca --mount=type=cache,id=rlbox-uv,target=/root/.cache/uv \
    --mount=type=bind,source=wheels/runtime,target=/run/rlbox/wheels sh /opt/tools/install.sh runtime '/opt/python'"'"'s/bin/python3'

# ---- the stack: a layer a group, and one for every large wheel; the least often changed first ----
# Large wheels have a stage apart, so that a change among the others leaves them alone; kept in uv's cache, they would lie
# unpacked on this machine twice. Each layer is below /out/LAYER what wheels/STAGE/LAYER/requirements.txt names.
FROM rlbox.tools AS rlbox.venv
RUN sh /opt/tools/install.sh venv '/opt/python'"'"'s/bin/python3'

# tools: six
FROM rlbox.tools AS tools
RUN --mount=type=secret,id=sources --mount=type=secret,id=ca --mount=type=cache,id=rlbox-uv,target=/root/.cache/uv \
    --mount=type=bind,source=wheels/tools,target=/run/rlbox/wheels sh /opt/tools/install.sh layers '/opt/python'"'"'s/bin/python3'

# ---- fixes: files and links alone, so that a changed one moves kilobytes ----
FROM rlbox.tools AS rlbox.fixes
COPY fixes/ /out/
COPY --chmod=0755 programs/ /out/
RUN mkdir -p /out/opt/rlbox/shims && \
    ln -sfn pkill /out/opt/rlbox/shims/killall && \
    sh /opt/tools/install.sh settle

# ---- what changes most: rlbox itself; first what a container runs of it, then the rest, which decides no image ----
FROM rlbox.tools AS rlbox.files
COPY files/ /out/
RUN sh /opt/tools/install.sh settle

FROM rlbox.tools AS rlbox.other
COPY other/ /out/
RUN sh /opt/tools/install.sh settle

# ---- the image ----
FROM rlbox.os
COPY --link --from=rlbox.runtime /out/ /
COPY --link --from=rlbox.venv /out/ /
COPY --link --from=tools /out/tools/ /
COPY --link --from=rlbox.fixes /out/ /
COPY --link --from=rlbox.files /out/ /
COPY --link --from=rlbox.other /out/ /
ENV LANG=C.UTF-8 PYTHONUNBUFFERED=1 \
    RLBOX_LIMITS="{\"disk\":{\"mount\":\"/data\",\"need_gib\":1.0},\"run\":{\"cpus\":0.0,\"memory_gib\":0.0,\"network\":\"own\",\"pids\":0,\"shm_gib\":1.0,\"ulimits\":{},\"user\":\"caller\"}}" \
    PATH=/opt/venv/bin:/opt/rlbox/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# usage-statistics: Usage statistics and update checks of the hub, vLLM and wandb are off
ENV DO_NOT_TRACK="1" HF_HUB_DISABLE_TELEMETRY="1" HF_HUB_DISABLE_UPDATE_CHECK="1" VLLM_NO_USAGE_STATS="1" WANDB_ERROR_REPORTING="false"
# stack-not-in-venv: installs go into the stack's own environment, apart from the system's Python
ENV VIRTUAL_ENV="/opt/venv"
# scoped-cleanup: `pkill` and `killall` in a script spare other containers and the calling process
ENV PATH="/opt/rlbox/shims"${PATH:+:$PATH}
# python-constraints: a later install cannot replace the packages that the stack was matched with
ENV UV_CONSTRAINT="/opt/rlbox/share/constraints.txt"
# native-segfault: A crash in native code leaves the Python stack in the log
ENV PYTHONFAULTHANDLER="1"
WORKDIR /
ENTRYPOINT ["sh", "/opt/rlbox/libexec/entrypoint.sh"]
CMD ["sh"]
LABEL org.opencontainers.image.base.digest="sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" \
      org.opencontainers.image.base.name="registry.example/base" \
      org.opencontainers.image.created="2025-01-01T00:00:00Z" \
      org.opencontainers.image.description="Image of the rlbox target bare, built from a lock file" \
      org.opencontainers.image.documentation="https://github.com/rlbox-dev/rlbox/blob/main/docs/images.md" \
      org.opencontainers.image.title="nothing but one group" \
      org.opencontainers.image.version="" \
      rlbox.fixes="checkpoint-corrupt-or-incomplete compile-caches compile-killed-oom conda-shadows-python cuda-wheels-mixed disk-full env-not-exported git-dubious-ownership hf-offline-blocked hf-transfer-switch host-oom-killed interactive-prompts interpreter-in-the-way native-segfault nccl-leftovers nccl-timeout-variable numpy2-abi opencv-needs-gl path-in-every-shell paths-off-data-disk pip-index-unreachable placeholder-left proxy-intercepts-localhost pthread-create-failed python-constraints scoped-cleanup soft-limits stack-not-in-venv torch-ext-abi-mismatch unknown-uid usage-statistics visible-devices-baked" \
      rlbox.lock="" \
      rlbox.patches="" \
      rlbox.spec="60a87bc66eb83512fe56ac2600c7f5e28a3ec37de2cabfc502aa23d02ea3c820" \
      rlbox.target="bare"
