#!/usr/bin/env bash
# ensure-python.sh - see to it that .venv in this checkout holds rlbox and its development tools, as uv.lock says.
#
# Nothing happens while uv.lock and pyproject.toml are what they were at the last time. Otherwise a Python >= 3.10 is
# found (as root on Debian or Ubuntu installed), .venv made if it is missing or broken, and `uv sync --locked` run in
# it by the uv that uv.lock names, itself installed by pip into .venv/bootstrap.
# uv does not read pip's configuration: the certificate bundle, proxy, index and trusted hosts in it are handed over.
#
# Exit: 0 .venv is ready; 1 it is not, the last line on stderr says why and what to do next.
#
# Environment (all optional): PYTHON  the interpreter to take; RLBOX_VENV  the environment's place (CHECKOUT/.venv)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${RLBOX_VENV:-$root/.venv}
stamp=$venv/rlbox.stamp

say() { echo "ensure-python: $*" >&2; }
cannot() { # WHAT WHERE NEXT
  say "error: $1; where: $2; next: $3"
  exit 1
}
digests() { (cd "$root" && pwd && sha256sum uv.lock pyproject.toml scripts/ensure-python.sh) 2>/dev/null; }

now=$(digests) || cannot "no uv.lock or pyproject.toml" "$root" "run this in a checkout of rlbox (git clone)"
if [ -x "$venv/bin/python" ] && [ "$now" = "$(cat "$stamp" 2>/dev/null)" ]; then exit 0; fi

exec 9<"$root"
flock 9 # two calls at once must not fill one environment
if [ -x "$venv/bin/python" ] && [ "$now" = "$(cat "$stamp" 2>/dev/null)" ]; then exit 0; fi

# ---- an interpreter ---------------------------------------------------------------------------------------------

find_python() { # CODE: the first Python >= 3.10 that runs it; a name on PATH may be a stub that runs nothing
  local p
  for p in ${PYTHON:-python3 python3.11 python3.12 python3.13 python3.14 python3.10}; do
    if "$p" -c "import sys; sys.exit(sys.version_info < (3, 10)); $1" 2>/dev/null && "$p" -c "$1" 2>/dev/null; then
      "$p" -c 'import sys; print(sys.executable)'
      return
    fi
  done
  return 1
}

apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@"; }

need_python() {
  python=$(find_python 'import venv, ensurepip') && return
  local what='no Python >= 3.10 that can make environments'
  if [ -n "${PYTHON:-}" ] || ! command -v apt-get >/dev/null; then
    cannot "$what" "${PYTHON:-PATH}" "install Python 3.10 or newer with venv and ensurepip, or set PYTHON to one"
  fi
  [ "$(id -u)" = 0 ] || cannot "$what" "PATH" "ask for: apt-get install python3-venv"
  say "installing python3-venv"
  apt install -y --no-install-recommends python3-venv ca-certificates >/dev/null 2>&1 ||
    { apt update && apt install -y --no-install-recommends python3-venv ca-certificates; } >/dev/null ||
    cannot "apt-get could not install python3-venv" "its lines above" "check the apt sources and the network, then repeat"
  python=$(find_python 'import venv, ensurepip') || python=$(PYTHON=/usr/bin/python3 && find_python 'import venv, ensurepip') ||
    cannot "$what, also after installing python3-venv" "PATH" "set PYTHON to a Python >= 3.10"
}

# ---- what pip's configuration says, for uv ----------------------------------------------------------------------

pip() { "$venv/bootstrap/bin/python" -m pip --disable-pip-version-check "$@"; }

conf() { # KEY: pip's value, the nearest first: environment, then files
  sed -n "s/^\(:env:\|install\|global\)\.$1='\(.*\)'\$/\1 \2/p" <<<"$pip_conf" | sort | sed -n '1s/^[^ ]* //p'
}

hand_over() {
  local pip_conf cert proxy
  pip_conf=$(pip config list 2>/dev/null || true)
  cert=$(conf cert)
  cert=${cert:-${SSL_CERT_FILE:-${REQUESTS_CA_BUNDLE:-${CURL_CA_BUNDLE:-}}}}
  if [ -n "$cert" ]; then export SSL_CERT_FILE=$cert PIP_CERT=$cert; fi # older pip does not read SSL_CERT_FILE
  proxy=$(conf proxy)
  if [ -n "$proxy" ]; then export HTTPS_PROXY=$proxy HTTP_PROXY=$proxy; fi
  index=$(conf index-url)
  trusted=$(conf trusted-host)
  timeout=$(conf '\(default-\)\?timeout')
}
