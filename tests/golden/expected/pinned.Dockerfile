# Rendered by `rlbox render pinned` from images/pinned/target.toml: edit that file, not this one.
# on an image, with packages
# Build it with `rlbox build pinned`, or `docker build` the folder that `rlbox render pinned --context FOLDER` makes.

FROM registry.example/cuda:12.8@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef AS os
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        git \
        iproute2 \
        python3-venv \
    && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log /var/cache/apt/*.bin /var/cache/ldconfig/aux-cache

# ---- first stage of every image: operating system, uv, rlbox's own runtime, entrypoint ----
FROM os AS base
ARG SOURCE_DATE_EPOCH
ENV LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1
COPY scripts/install.sh /opt/rlbox/libexec/install.sh
COPY requirements/uv.txt requirements/runtime.txt /opt/rlbox/requirements/
# rlbox runs in an environment of its own, so that nothing it needs can disturb the stack.
RUN --mount=type=secret,id=sources,target=/run/rlbox/sources.env \
    --mount=type=secret,id=ca,target=/run/rlbox/ca.crt \
    --mount=type=cache,target=/root/.cache/uv \
    sh /opt/rlbox/libexec/install.sh runtime
COPY scripts/entrypoint.sh /opt/rlbox/libexec/entrypoint.sh

# ---- the stack: one layer a group, the least often changed first ----
FROM base AS stack
ARG SOURCE_DATE_EPOCH
RUN /opt/rlbox/bin/uv venv --quiet --python /usr/bin/python3 /opt/venv

# torch: torch==2.13.0
COPY requirements/torch.txt /opt/rlbox/requirements/
RUN --mount=type=secret,id=sources,target=/run/rlbox/sources.env \
    --mount=type=secret,id=ca,target=/run/rlbox/ca.crt \
    --mount=type=cache,target=/root/.cache/uv \
    --mount=type=bind,source=wheels,target=/run/rlbox/wheels \
    TORCH_WHEELS=https://download.pytorch.org/whl/cu128 \
    sh /opt/rlbox/libexec/install.sh group torch

# tools: six==1.16.0, rich>=13
COPY requirements/tools.txt /opt/rlbox/requirements/
RUN --mount=type=secret,id=sources,target=/run/rlbox/sources.env \
    --mount=type=secret,id=ca,target=/run/rlbox/ca.crt \
    --mount=type=cache,target=/root/.cache/uv \
    --mount=type=bind,source=wheels,target=/run/rlbox/wheels \
    sh /opt/rlbox/libexec/install.sh group tools

# ---- what changes most: rlbox itself, environment, labels ----
COPY rlbox /opt/rlbox/lib/rlbox
ENV PATH=/opt/venv/bin:/opt/rlbox/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
WORKDIR /
ENTRYPOINT ["sh", "/opt/rlbox/libexec/entrypoint.sh"]
CMD ["sh"]
LABEL rlbox.target="pinned" \
      rlbox.spec="b52df07a1a191c191729aa3095be38af2437f1f84ed92f34dc32b671cd1ccc64"
