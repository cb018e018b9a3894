#!/usr/bin/env bash
# ensure-python.sh - see to it that .venv in this checkout holds rlbox and its development tools, as locked.
#
# Nothing happens while requirements.lock and pyproject.toml are what they were at the last time. Otherwise a Python
# >= 3.10 is found (as root on Debian or Ubuntu installed), .venv made if it is missing, broken or moved, and filled
# with exactly what requirements.lock names, every file held to its hash, by the uv named there; pip installs that uv
# into .venv/bootstrap. uv does not read pip's configuration: certificates, proxy, index and trusted hosts are handed
# over, so a mirror serves as well as the default index.
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
digests() { (cd "$root" && pwd && sha256sum requirements.lock pyproject.toml scripts/ensure-python.sh) 2>/dev/null; }

now=$(digests) || cannot "no requirements.lock or pyproject.toml" "$root" "run this in a checkout of rlbox (git clone)"
if [ -x "$venv/bin/python" ] && [ "$now" = "$(cat "$stamp" 2>/dev/null)" ]; then exit 0; fi

exec 9<"$root"
flock 9 # two calls at once must not fill one environment
if [ -x "$venv/bin/python" ] && [ "$now" = "$(cat "$stamp" 2>/dev/null)" ]; then exit 0; fi

# ---- an interpreter ---------------------------------------------------------------------------------------------

find_python() { # CANDIDATE...: the first that is a Python >= 3.10 and can make environments; some names are mere stubs
  local p
  for p in "$@"; do
    "$p" -c 'import ensurepip, sys, venv; assert sys.version_info >= (3, 10); print(sys.executable)' 2>/dev/null && return
  done
  return 1
}

apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@"; }

need_python() {
  local what='no Python >= 3.10 that can make environments' names=(python3 python3.{11,12,13,14,10})
  [ -z "${PYTHON:-}" ] || names=("$PYTHON")
  python=$(find_python "${names[@]}") && return
  if [ -n "${PYTHON:-}" ] || ! command -v apt-get >/dev/null; then
    cannot "$what" "${PYTHON:-PATH}" "install Python 3.10 or newer with venv and ensurepip, or set PYTHON to one"
  fi
  [ "$(id -u)" = 0 ] || cannot "$what" "PATH" "ask for: apt-get install python3-venv"
  say "installing python3-venv"
  apt install -y --no-install-recommends python3-venv ca-certificates >/dev/null 2>&1 ||
    { apt update && apt install -y --no-install-recommends python3-venv ca-certificates; } >/dev/null ||
    cannot "apt-get could not install python3-venv" "its lines above" "check the apt sources and the network, then repeat"
  python=$(find_python "${names[@]}" /usr/bin/python3) || cannot "$what, even with python3-venv" "PATH" "set PYTHON to a Python >= 3.10"
}

# ---- what pip's configuration says, for uv ----------------------------------------------------------------------

conf() { # KEY: pip's value, the nearest first: environment, [install], [global]
  local from
  for from in :env: install global; do
    sed -n "s/^$from\.$1='\(.*\)'\$/\1/p" <<<"$pip_conf" | grep . && return
  done
  return 0
}

hand_over() { # sets index: the mirror to read instead of the default, or nothing
  local pip_conf cert proxy seconds hosts index
  pip_conf=$("${pip[@]}" config list 2>/dev/null || true)
  cert=$(conf cert) proxy=$(conf proxy) seconds=$(conf timeout) hosts=$(conf trusted-host) index=$(conf index-url)
  cert=${cert:-${SSL_CERT_FILE:-${REQUESTS_CA_BUNDLE:-${CURL_CA_BUNDLE:-}}}}
  [ -z "$cert" ] || export SSL_CERT_FILE="$cert" PIP_CERT="$cert" # older pip does not read SSL_CERT_FILE
  [ -z "$proxy" ] || export HTTPS_PROXY="$proxy" HTTP_PROXY="$proxy"
  [ -z "$index" ] || export UV_DEFAULT_INDEX="$index"
  [ -z "$hosts" ] || export UV_INSECURE_HOST="${hosts//\\n/ }"
  [ -z "${seconds:-$(conf default-timeout)}" ] || export UV_HTTP_TIMEOUT="${seconds:-$(conf default-timeout)}"
}

# ---- the environment --------------------------------------------------------------------------------------------

try() { # WHAT CMD...: its output only if it fails
  local what=$1 out
  shift
  out=$(mktemp)
  if ! "$@" >"$out" 2>&1; then
    tail -n 20 "$out" | sed 's/^/  | /' >&2
    rm -f "$out"
    cannot "$what" "$*" "cure what its lines above name, then repeat"
  fi
  rm -f "$out"
}

unset PYTHONHOME PYTHONPATH
export VIRTUAL_ENV=$venv UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1
pip=("$venv/bootstrap/bin/python" -m pip --disable-pip-version-check)
uv=$venv/bootstrap/bin/uv
cd "$root"

uv_lock=$(awk '/^uv==/ {p = 1} p {print} p && !/\\$/ {exit}' requirements.lock) # its line and its hashes
[ -n "$uv_lock" ] || cannot "uv is not in requirements.lock" "$root/requirements.lock" "lock an environment that has uv"
place=$(sed -n 1p "$stamp" 2>/dev/null || true) # where it was made: its scripts name that path
rm -f "$stamp"
if [ "${place:-$root}" != "$root" ] || ! "$venv/bin/python" -c '' 2>/dev/null || ! "${pip[@]}" --version >/dev/null 2>&1; then
  need_python
  say "making $venv with $python"
  try "could not make $venv" "$python" -m venv --clear --without-pip "$venv"
  try "could not make $venv/bootstrap" "$python" -m venv "$venv/bootstrap"
fi
hand_over
if [ "uv==$("$uv" --version 2>/dev/null | cut -d' ' -f2)" != "${uv_lock%% *}" ]; then
  echo "$uv_lock" >"$venv/bootstrap/uv.txt"
  try "pip could not install ${uv_lock%% *}" "${pip[@]}" install -q --require-hashes -r "$venv/bootstrap/uv.txt"
fi
say "installing what requirements.lock names"
# compiled: where Python may write no bytecode, each command would compile the libraries that it imports anew
try "uv could not fill $venv" "$uv" pip sync --require-hashes --compile-bytecode requirements.lock
try "uv could not install rlbox into $venv" "$uv" pip install --no-deps --editable .
try "requirements.lock does not fit pyproject.toml" "$uv" pip check
echo "$now" >"$stamp"
say "$venv is ready"
