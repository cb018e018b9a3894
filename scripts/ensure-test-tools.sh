#!/usr/bin/env bash
# ensure-test-tools.sh - see to it that the programs that only tests call are there; starts none.
#
# docker-registry, shellcheck, sshd, nft, rg: what is on PATH is left as it is; otherwise the distribution's package is unpacked
# into .venv/tools, so that no service of this machine is installed or started. ip, ssh, ps: where one is missing, root gets
# iproute2, openssh-client or procps installed; others do without (the tests that make network namespaces need root, too). So is
# python3.11, the interpreter of the targets that tests lay in place, where the distribution has it beside another one
# (Ubuntu 22.04).
# chromium, for the tests of pages: where none is on PATH, Debian's headless one with all that it needs and a font that has
# Chinese (250 MB) is unpacked into .venv/tools/chromium. A distribution without that package has none: those tests are
# skipped there.
#
# Exit: 0 they are there; 4 they cannot be had, one line on stderr says why and what to do next.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=$PWD/.venv/tools

say() { echo "ensure-test-tools: $*" >&2; }
have() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "$tools/usr/bin/$1" ] || [ -x "$tools/usr/sbin/$1" ]; }
packages_of() { # PROGRAM: its package, and the libraries that a bare machine lacks
  case $1 in
    sshd) echo openssh-server libwrap0 ;;
    nft) echo nftables libnftables1 libjansson4 ;;
    rg) echo ripgrep ;;
    *) echo "$1" ;;
  esac
}
apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@"; }
update() { [ "$(id -u)" = 0 ] && apt update; }
cannot() { # WHAT
  say "error: $1: $(tail -n 1 "$scratch/log"); next: apt-get update, then repeat; or install it with the system's own tools"
  exit 4
}

missing=()
for program in docker-registry shellcheck sshd nft rg; do have "$program" || read -r -a missing <<<"${missing[*]} $(packages_of "$program")"; done
wanted=()
if [ "$(id -u)" = 0 ]; then
  have ip || wanted+=(iproute2)
  have ssh || wanted+=(openssh-client)
  have ps || wanted+=(procps)
  have python3.11 || ! apt-cache show python3.11-venv >/dev/null 2>&1 || wanted+=(python3.11-venv)
fi
browser=
for program in chromium chromium-browser google-chrome; do ! have $program || browser=$program; done
[ -n "$browser" ] || [ ! -x "$tools/chromium/chromium" ] || browser=unpacked
[ -n "$browser" ] || [ -e "$tools/no-chromium" ] || browser=missing
if [ ${#missing[@]} = 0 ] && [ ${#wanted[@]} = 0 ] && [ "$browser" != missing ]; then exit 0; fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
: >"$scratch/log"
command -v apt-get >/dev/null 2>&1 || cannot "${missing[*]} not on PATH, and this system has no apt-get"
exec 9<.
flock 9 # two calls at once must not fill one folder
if [ ${#wanted[@]} != 0 ]; then
  say "installing ${wanted[*]}"
  { apt install -y --no-install-recommends "${wanted[@]}" || { update && apt install -y --no-install-recommends "${wanted[@]}"; }; } >"$scratch/log" 2>&1 ||
    cannot "apt-get cannot install ${wanted[*]}"
fi
if [ ${#missing[@]} != 0 ]; then
  get() { (cd "$scratch" && apt -o APT::Sandbox::User=root download "${missing[@]}") >"$scratch/log" 2>&1; }
  get || { update >"$scratch/log" 2>&1 && get; } || cannot "apt-get cannot download ${missing[*]}"
  mkdir -p "$tools"
  for deb in "$scratch"/*.deb; do dpkg-deb -x "$deb" "$tools"; done
  say "unpacked ${missing[*]} into .venv/tools"
fi

needed() { # by the browser, and not installed; of chromium-common its files alone, for it asks for half a desktop
  local direct
  mapfile -t direct < <(apt-cache depends chromium-headless-shell | sed -n 's/^  Depends: \([a-z0-9].*\)/\1/p' | grep -vx chromium-common)
  apt install -s --no-install-recommends fonts-dejavu-core fonts-droid-fallback "${direct[@]}" | sed -n 's/^Inst \([^ ]*\).*/\1/p'
}
if [ "$browser" = missing ]; then
  compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null || update >"$scratch/log" 2>&1 || true
  if ! apt-cache show chromium-headless-shell >/dev/null 2>&1; then
    mkdir -p "$tools"
    touch "$tools/no-chromium"
    say "this distribution has no chromium-headless-shell: tests in a browser are skipped"
    exit 0
  fi
  rm -f "$scratch"/*.deb
  bring() {
    local list
    mapfile -t list < <(needed)
    (cd "$scratch" && apt -o APT::Sandbox::User=root download chromium-headless-shell chromium-common "${list[@]}") >"$scratch/log" 2>&1
  }
  bring || { update >"$scratch/log" 2>&1 && bring; } || cannot "apt-get cannot download chromium-headless-shell"
  new=$scratch/chromium home=$tools/chromium
  for deb in "$scratch"/*.deb; do dpkg-deb -x "$deb" "$new"; done
  rm -rf "$new"/usr/share/doc "$new"/usr/lib/chromium/{locales,resources.pak,libVkLayer*} # of no use without windows
  cat >"$new/fonts.conf" <<CONF
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
<dir>/usr/share/fonts</dir><dir>$home/usr/share/fonts</dir><cachedir>$home/cache</cachedir>
<match><edit name="family" mode="append_last"><string>DejaVu Sans</string><string>Droid Sans Fallback</string></edit></match>
<alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family><family>Droid Sans Fallback</family></prefer></alias>
</fontconfig>
CONF
  cat >"$new/chromium" <<'RUN'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
libraries=$here/usr/lib/$(uname -m)-linux-gnu
export LD_LIBRARY_PATH="$libraries:$here/lib/$(uname -m)-linux-gnu:$libraries/nss:$libraries/pulseaudio" FONTCONFIG_FILE="$here/fonts.conf"
exec "$here/usr/lib/chromium/chromium-headless-shell" "$@"
RUN
  chmod +x "$new/chromium"
  mkdir -p "$tools"
  rm -rf "$home"
  mv "$new" "$home"
  say "unpacked chromium-headless-shell into .venv/tools/chromium"
fi
