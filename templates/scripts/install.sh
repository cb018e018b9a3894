#!/bin/sh
# Install Python packages inside a build step: `install.sh runtime`, or `install.sh group NAME`.
# Settings of the building machine (mirror, CA bundle) come as secrets, so that no layer and no history holds them.
set -eu

requirements=/opt/rlbox/requirements
if [ -s /run/rlbox/sources.env ]; then
    set -a
    . /run/rlbox/sources.env
    set +a
fi
if [ -s /run/rlbox/ca.crt ]; then
    export SSL_CERT_FILE=/run/rlbox/ca.crt PIP_CERT=/run/rlbox/ca.crt
fi
export UV_LINK_MODE=copy UV_NO_PROGRESS=1 PYTHONDONTWRITEBYTECODE=1

install_locked() { # PYTHON FILE [OPTION...]
    python=$1 file=$2
    shift 2
    "$uv" pip install --python "$python" --no-deps --require-hashes --compile-bytecode "$@" -r "$file"
}

case $1 in
runtime)
    # uv comes by pip, hash-checked, into a throw-away environment; uv then does the rest.
    python3 -m venv /tmp/first
    /tmp/first/bin/pip install --quiet --disable-pip-version-check --no-cache-dir --require-hashes -r "$requirements/uv.txt"
    uv=/tmp/first/bin/uv
    "$uv" venv --quiet --allow-existing --python python3 /opt/rlbox
    install_locked /opt/rlbox/bin/python "$requirements/runtime.txt"
    echo /opt/rlbox/lib >"$(/opt/rlbox/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/rlbox.pth"
    printf '#!/bin/sh\nexec /opt/rlbox/bin/python -m rlbox "$@"\n' >/opt/rlbox/bin/rlbox
    chmod 755 /opt/rlbox/bin/rlbox
    rm -rf /tmp/first
    ;;
group)
    uv=/opt/rlbox/bin/uv
    wheels=$(find /run/rlbox/wheels -name '*.whl' 2>/dev/null | head -n 1)
    if [ -n "${TORCH_WHEELS:-}" ] && [ -z "$wheels" ] && [ -z "${UV_INDEX:-}" ]; then
        export UV_INDEX="$TORCH_WHEELS" UV_INDEX_STRATEGY=unsafe-best-match
    fi
    if [ -n "$wheels" ]; then
        install_locked /opt/venv/bin/python "$requirements/$2.txt" --find-links /run/rlbox/wheels
    else
        install_locked /opt/venv/bin/python "$requirements/$2.txt"
    fi
    ;;
*)
    echo "install.sh: runtime, or group NAME" >&2
    exit 2
    ;;
esac
