#!/bin/sh
# Install Python packages inside a build step: `install.sh base | uv PYTHON | runtime PYTHON | venv PYTHON
# [OPTION] | layers PYTHON | settle`. A base image may have another python3 first on PATH: PYTHON is that of the target.
# What is to be a layer of the image ends up below /out, every time stamp SOURCE_DATE_EPOCH.
# Settings of the building machine (mirror, CA bundle) come as secrets, so that no layer and no history holds them.
set -eu
umask 022

tools=/opt/tools wheels=/run/rlbox/wheels uv=/opt/tools/uv
if [ -s /run/secrets/sources ]; then
    set -a
    . /run/secrets/sources
    set +a
fi
if [ -s /run/secrets/ca ]; then
    export SSL_CERT_FILE=/run/secrets/ca
fi
unset PIP_CONSTRAINT UV_CONSTRAINT VIRTUAL_ENV # of a base image that rlbox made
export UV_LINK_MODE=copy # uv's cache is a mount; without one it unpacks beside the environment, and takes that away
[ -z "${UV_NO_CACHE:-}" ] || UV_LINK_MODE=hardlink
export UV_NO_PROGRESS=1 UV_PYTHON_DOWNLOADS=never PYTHONDONTWRITEBYTECODE=1

# In FOLDER lie the wheels that the building machine holds; the file `complete` says that nothing else is needed.
install_locked() { # PYTHON FOLDER [OPTION...]: what FOLDER/requirements.txt names
    python=$1 folder=$2
    shift 2
    if [ -e "$folder/complete" ]; then
        unset UV_DEFAULT_INDEX UV_INDEX UV_FIND_LINKS
        set -- "$@" --offline --no-index
    elif from_torch_wheels && [ -z "${UV_INDEX:-}${UV_FIND_LINKS:-}" ] && ! has_wheels; then
        export UV_INDEX="$TORCH_WHEELS" UV_INDEX_STRATEGY=unsafe-best-match
    fi
    if [ -s "$tools/build.txt" ]; then
        set -- "$@" --build-constraint "$tools/build.txt"
    fi
    if has_wheels; then
        set -- "$@" --find-links "$folder"
    fi
    "$uv" pip install --python "$python" --no-deps --require-hashes "$@" -r "$folder/requirements.txt"
}

has_wheels() { [ -n "$(find "$folder" -name '*.whl' -o -name '*.tar.gz' -o -name '*.zip' | head -n 1)" ]; }

# A version such as 2.9.0+cu128 is in that channel of the torch wheel index alone.
from_torch_wheels() { [ -n "${TORCH_WHEELS:-}" ] && grep -qF "+${TORCH_WHEELS##*/} " "$folder/requirements.txt"; }

layer() { # FOLDER: into /out/NAME, at once with other layers; scripts start /opt/venv/bin/python, which is a layer below
    out=/out/${1##*/}
    find /opt/venv -type d -exec mkdir -p "$out{}" \;
    install_locked /opt/venv/bin/python "$1" --prefix "$out/opt/venv"
}

settle() { # take out what tells where a file came from, and give everything below /out its time stamp
    find /out -path '*.dist-info/uv_cache.json' | while read -r told; do
        sed -i '/\/uv_cache\.json,/d' "${told%/*}/RECORD"
        rm "$told"
    done
    find /out -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

# What an environment over another one lacks: it sees what the Python below both has, not what lies in the other.
base_packages() { # PYTHON: the lines of a .pth
    "$1" -c 'import site, sys
for folder in site.getsitepackages([sys.prefix]) if sys.prefix != sys.base_prefix else ():
    print(f"import site; site.addsitedir({folder!r})")'
}

case $1 in
base)
    # Onto a base image: only what this step writes gets its time stamp, or every file would be in this layer.
    touch /tmp/before
    rm -rf /opt/venv /opt/rlbox # of an image that rlbox made
    set -- /run/rlbox/debs/*.deb
    if [ -e "$1" ]; then
        DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends \
            -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=- "$@"
    fi
    rm -rf /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/cache/apt/*.bin /var/cache/ldconfig/aux-cache \
        /var/cache/debconf/*-old /var/lib/dpkg/*-old
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp \) -prune -o \
        -newer /tmp/before -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    rm /tmp/before
    touch -d "@$SOURCE_DATE_EPOCH" /tmp
    ;;
uv)
    # Its wheel comes with the build context, verified: nothing else is needed to begin with.
    "$2" -m zipfile -e "$wheels"/uv-*.whl /tmp/uv
    mv /tmp/uv/uv-*.data/scripts/uv "$uv"
    chmod 755 "$uv"
    rm -r /tmp/uv
    ;;
runtime)
    "$uv" venv --quiet --python "$2" /opt/rlbox
    install_locked /opt/rlbox/bin/python "$wheels" --compile-bytecode
    echo /opt/rlbox/lib >"$(/opt/rlbox/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/rlbox.pth"
    printf '#!/bin/sh\nexec /opt/rlbox/bin/python -m rlbox "$@"\n' >/opt/rlbox/bin/rlbox
    chmod 755 /opt/rlbox/bin/rlbox
    mkdir -p /out/opt
    mv /opt/rlbox /out/opt/rlbox
    settle
    ;;
venv)
    mkdir -p /out/opt
    "$uv" venv --quiet --python "$2" ${3:+"$3"} /opt/venv
    told=''
    [ -z "${3:-}" ] || told=$(base_packages "$2")
    if [ -n "$told" ]; then
        printf '%s\n' "$told" >"$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz-rlbox-base.pth"
    fi
    mv /opt/venv /out/opt/venv
    settle
    ;;
layers)
    # One for each folder of $wheels.
    "$uv" venv --quiet --python "$2" /opt/venv
    jobs='' failed=0
    for folder in "$wheels"/*/; do
        layer "${folder%/}" &
        jobs="$jobs $!"
    done
    for job in $jobs; do
        wait "$job" || failed=$?
    done
    rm -r /opt/venv
    [ "$failed" = 0 ]
    settle
    ;;
settle)
    settle
    ;;
*)
    echo "install.sh: base, uv PYTHON, runtime PYTHON, venv PYTHON [OPTION], layers PYTHON, or settle" >&2
    exit 2
    ;;
esac
