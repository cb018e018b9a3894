# Rendered by `rlbox render bare` from images/bare/target.toml: edit that file, not this one.
# nothing but one group
# Build it with `rlbox build bare`, or `docker build` the folder that `rlbox render bare --context FOLDER` makes.

FROM registry.example/base@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef AS os

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
RUN /opt/rlbox/bin/uv venv --quiet --python '/opt/python'"'"'s/bin/python3' /opt/venv

# tools: six
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
LABEL rlbox.target="bare" \
      rlbox.spec="7dfa27c05fd471a5e448f6df1dbe1dfe8300b21f1d744c7b23d4895f423fb6d9"
