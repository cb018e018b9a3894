# Rendered by `rlbox render quotes` from images/quotes/target.toml: edit that file, not this one.
# Zeichen: äöü 世界 ${HOME} # no \ end
# Build it with `rlbox build quotes`, or `docker build` the folder that `rlbox render quotes --context FOLDER` makes.

# debian:bookworm made from apt alone (mmdebstrap), so that no image registry is needed.
FROM scratch AS os
ADD rootfs.tar /

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

# tools: six
COPY requirements/tools.txt /opt/rlbox/requirements/
RUN --mount=type=secret,id=sources,target=/run/rlbox/sources.env \
    --mount=type=secret,id=ca,target=/run/rlbox/ca.crt \
    --mount=type=cache,target=/root/.cache/uv \
    --mount=type=bind,source=wheels,target=/run/rlbox/wheels \
    sh /opt/rlbox/libexec/install.sh group tools

# ---- what changes most: rlbox itself, environment, labels ----
COPY rlbox /opt/rlbox/lib/rlbox
ENV PATH=/opt/venv/bin:/opt/rlbox/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    BACKSLASH="C:\\dir\\" \
    BLANKS="  two  words  " \
    DOLLAR="\$HOME \${PATH:-x} \$\$" \
    EMPTY="" \
    QUOTES="\"double\" 'single' `back`" \
    UNICODE="äöü 世界 "
WORKDIR /
ENTRYPOINT ["sh", "/opt/rlbox/libexec/entrypoint.sh"]
CMD ["sh"]
LABEL rlbox.target="quotes" \
      rlbox.spec="a2431b5362964c10ba2b1d1640813fd156476ce0ea981ef9e3654d55d8a3e251"
