#!/usr/bin/env bash
# ensure-engine.sh [--check|--dry-run] - see to it that a Docker engine answers and that this machine can build images with it.
# With --check nothing is done: each line that is printed is something that a call would do. With --dry-run it is refused as
# the call would be, too.
#
# An engine that answers where the docker client looks (DOCKER_HOST, docker context, /var/run/docker.sock) is left as
# it is. Otherwise, as root on Debian or Ubuntu, one is brought: the distribution's docker.io where that is 25 or newer,
# else (Debian 12 has 20.10) that of its next release, read from the machine's own mirror, verified by its archive
# keyring and unpacked into /opt/rlbox-engine. Of the next release nothing is installed; the docker client, buildx and Compose
# are linked into /usr/local where the machine has none. A new engine gets the containerd image store, the one that keeps an
# image's bytes, unless /etc/docker/daemon.json is there and says otherwise. systemd starts it where that runs the machine
# (docker.service, rlbox-engine.service for an unpacked one); else it runs detached, with a pid file and a log. The last
# line says how to stop it. Build tools are installed where missing. A call that was killed may simply be repeated.
#
# To take an unpacked engine away: stop it, then remove /opt/rlbox-engine, the links to it below /usr/local, and
# /etc/systemd/system/rlbox-engine.service. Its images lie in /var/lib/docker.
#
# Exit: 0 an engine answers and images can be built; 4 that is not possible here, one line on stderr says why and what
# to do next (`make smoke` then runs its stages in place).
#
# Environment (all optional):
#   RLBOX_ENGINE_DIR     where a started engine keeps data, exec root, pid file and log (default: docker's own places
#                        and /var/log/rlbox-dockerd.log); systemd is then not asked
#   RLBOX_ENGINE_ARGS    more flags for a started dockerd, separated by blanks
#   RLBOX_ENGINE_WAIT_S  seconds that a started engine has to answer (60)
set -euo pipefail

dir=${RLBOX_ENGINE_DIR:-}
wait_s=${RLBOX_ENGINE_WAIT_S:-60}
read -r -a extra_args <<<"${RLBOX_ENGINE_ARGS:-}"
pidfile=/var/run/docker.pid log=/var/log/rlbox-dockerd.log socket=/var/run/docker.sock
[ -z "$dir" ] || pidfile=$dir/dockerd.pid log=$dir/dockerd.log
home=/opt/rlbox-engine              # where the packages of a newer release are unpacked
declare -A newer=([bookworm]=trixie) # a release whose docker.io is too old: the one to take it from
declare -A newer_keys=([jammy]=noble) # a release whose keyring of Debian does not know Debian 12: the one to take it from
oldest=25                           # the oldest docker.io whose containerd image store does what rlbox asks of it
policy='' scratch=''
trap 'rm -rf ${policy:+"$policy"} ${scratch:+"$scratch"}' EXIT

say() { echo "ensure-engine: $*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }
cannot() { # WHAT WHERE NEXT
  say "error: $1; where: $2; next: $3"
  exit 4
}

# ---- what is there ----------------------------------------------------------------------------------------------

# The client knows hosts, contexts and TLS; its words are kept to tell "no engine" from "not permitted".
answers() {
  have docker || { client_says='no docker client' && return 1; }
  client_says=$(timeout 10 docker version --format '{{.Server.Version}}' 2>&1) && [ -n "$client_says" ]
}

# A build needs the buildx plugin.
can_build() {
  local d
  for d in "${DOCKER_CONFIG:-${HOME:-/root}/.docker}" /usr/{local/,}lib{exec,}/docker; do
    [ ! -x "$d/cli-plugins/docker-buildx" ] || return 0
  done
  return 1
}

engine_there() { have dockerd || [ -e $home/complete ]; }

missing_tools() { # packages that a build needs on this machine
  have mmdebstrap || echo mmdebstrap
  [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || echo debian-archive-keyring
  [ "$(id -u)" = 0 ] || have newuidmap || echo uidmap # mmdebstrap's mode for ordinary users
}

old_keys() { # whether this machine's keyring does not know Debian 12, and a newer one can be had
  # shellcheck disable=SC1091
  (. /etc/os-release && [ -n "${newer_keys[${VERSION_CODENAME:-none}]:-}" ]) && [ ! -e /usr/share/keyrings/debian-archive-bookworm-stable.gpg ]
}

dockerd_pid() { # of the engine that the pid file names, if it runs
  local p
  p=$(cat "$pidfile" 2>/dev/null) && [ "$(cat "/proc/$p/comm" 2>/dev/null)" = dockerd ] && echo "$p"
}

unit() { if have dockerd; then echo docker; else echo rlbox-engine; fi; } # what systemd starts
by_systemd() { [ -z "$dir" ] && [ "$socket" = /var/run/docker.sock ] && [ -d /run/systemd/system ] && [ "$(cat /proc/1/comm)" = systemd ]; }

# ---- packages ---------------------------------------------------------------------------------------------------

apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@"; }
known() { apt-cache policy "$1" 2>/dev/null | grep 'Candidate: [0-9]' >/dev/null; } # grep -q would end apt-cache early, by a signal

new_enough() { # whether apt's docker.io is; its version may begin with an epoch
  local v
  v=$(apt-cache policy docker.io 2>/dev/null | sed -n 's/^ *Candidate: \([0-9]*:\)\{0,1\}\([0-9]*\).*/\2/p')
  [ "${v:-0}" -ge $oldest ]
}
newer_release() { # to take an engine from, if this machine's own is too old
  # shellcheck disable=SC1091
  . /etc/os-release && new_enough || echo "${newer[${VERSION_CODENAME:-none}]:-}"
}

may_install() { # WHAT PACKAGES
  if ! have apt-get; then cannot "$1, and this system has no apt-get" "$(uname -sr)" "install with the system's own tools: $2"; fi
  [ "$(id -u)" = 0 ] || cannot "$1, and only root can install it" "user $(id -un)" "run as root, or ask for: apt-get install $2"
}

install() { # PACKAGE...
  local out
  out=$(mktemp)
  say "installing $*"
  # or docker.io starts its service; this script starts it, once. A call that was killed left its own behind
  if [ ! -e /usr/sbin/policy-rc.d ] || grep -q rlbox /usr/sbin/policy-rc.d; then
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\n# by ensure-engine.sh of rlbox, while it installs\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  # package lists may be missing or old, and dpkg interrupted: mended only then
  if ! apt install -y --no-install-recommends "$@" >"$out" 2>&1 &&
    ! { dpkg --configure -a && apt update && apt install -y --no-install-recommends "$@"; } >"$out" 2>&1; then
    tail -n 10 "$out" | sed 's/^/  | /' >&2
    rm -f "$out"
    cannot "apt-get could not install $*" "its last lines above" "check the apt sources and the network, then: apt-get update && apt-get install $*"
  fi
  rm -f "$out" ${policy:+"$policy"}
  policy=
}

sources_of() { # RELEASE: this machine's apt sources, as they would read in that release: same mirrors, same keys
  # shellcheck disable=SC2016
  apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT) $(ORIGIN) $(SIGNED_BY)' 'Identifier: Packages' |
    awk -v to="$1" -v keys=/usr/share/keyrings/ '
      ($4 == "Debian" || $4 == "Ubuntu") && sub(/^[a-z]+/, to, $2) && !seen[$1, $2, $3]++ {
        print "deb [signed-by=" ($5 ~ "^/" ? $5 : keys tolower($4) "-archive-keyring.gpg") "] " $1 " " $2 " " $3 }'
}

download() { # RELEASE PACKAGE...: packages of another release into $scratch/deb, verified as this machine's own are
  local release=$1 own
  shift
  rm -rf ${scratch:+"$scratch"}
  scratch=$(mktemp -d)
  chmod 755 "$scratch"
  mkdir -p "$scratch"/{lists/partial,cache/archives/partial,deb,tree}
  sources_of "$release" >"$scratch/sources.list"
  own=(-o Dir::Etc::SourceList="$scratch/sources.list" -o Dir::Etc::SourceParts=- -o Dir::State::Lists="$scratch/lists"
    -o Dir::Cache="$scratch/cache" -o APT::Sandbox::User=root)
  if ! { cd "$scratch/deb" && apt "${own[@]}" update && apt "${own[@]}" download "$@"; } >"$scratch/log" 2>&1; then
    tail -n 10 "$scratch/log" | sed 's/^/  | /' >&2
    cannot "apt-get could not get $* of $release" "its last lines above" "check that the mirror has $release"
  fi
}

bring_keys() { # of Debian 12, whose packages are the base of images
  local release
  old_keys || return 0
  # shellcheck disable=SC1091
  release=$(. /etc/os-release && echo "${newer_keys[$VERSION_CODENAME]}")
  may_install "the keyring of Debian is too old" "debian-archive-keyring of $release"
  say "installing debian-archive-keyring of $release"
  apt update >/dev/null 2>&1 || true
  download "$release" debian-archive-keyring
  dpkg -i "$scratch"/deb/*.deb >/dev/null
  cd /
}

unpack() { # RELEASE: its engine into $home, whole or not at all
  local release=$1 new=$home.new f
  say "unpacking the engine of $release into $home"
  rm -rf "$new" # of a call that was killed
  mkdir -p "$new"/{bin,cli-plugins}
  download "$release" docker.io docker-cli docker-buildx docker-compose containerd tini
  # runc of this machine's own release: the next one's wants a newer C library
  apt -o APT::Sandbox::User=root download runc >/dev/null 2>&1 ||
    cannot "apt-get could not get runc" "this machine's apt sources" "apt-get update, then repeat"
  for f in *.deb; do dpkg-deb -x "$f" "$scratch/tree"; done
  cd "$scratch/tree/usr"
  for f in {bin,sbin}/{docker,dockerd,docker-proxy,containerd,containerd-shim-runc-v2,ctr,runc}; do
    [ ! -f "$f" ] || cp "$f" "$new/bin/"
  done
  cp bin/tini-static "$new/bin/docker-init"
  find . -path '*/cli-plugins/docker-*' -type f -exec cp {} "$new/cli-plugins/" \;
  cd /
  for f in dockerd containerd runc docker; do
    "$new/bin/$f" --version >"$scratch/log" 2>&1 || cannot "$f of $release does not run here" "$(tail -n 1 "$scratch/log")" "install Docker $oldest or newer by other means"
  done
  (cd "$scratch/deb" && printf '%s\n' *.deb) >"$new/complete"
  rm -rf $home
  mv "$new" $home
}

link_tools() { # of the unpacked engine, where this machine has none
  have docker || ln -sf $home/bin/docker /usr/local/bin/docker
  hash -r
  local plugins=/usr/local/lib/docker/cli-plugins
  mkdir -p $plugins
  can_build || ln -sf $home/cli-plugins/docker-buildx $plugins/
  docker compose version >/dev/null 2>&1 || ln -sf $home/cli-plugins/docker-compose $plugins/
}

bring_engine() { # and the build tools
  local release p
  new_enough || apt update >/dev/null 2>&1 || true
  release=$(newer_release)
  packages+=(iptables ca-certificates)
  # a kernel with AppArmor starts no container without its profile
  ! grep -qs Y /sys/module/apparmor/parameters/enabled || have apparmor_parser || packages+=(apparmor)
  if [ -n "$release" ]; then
    install "${packages[@]}" debian-archive-keyring
    unpack "$release"
    link_tools
  else
    new_enough || say "warning: this release has no docker.io of $oldest or newer; what an older one cannot do: https://github.com/rlbox-dev/rlbox/blob/main/docs/docker.md"
    for p in docker-cli docker-buildx; do ! known $p || packages+=("$p"); done # packages of their own in newer releases
    for p in docker-compose-v2 docker-compose; do # the older name is Compose 1 where there is the newer one, too
      if known $p; then packages+=("$p") && break; fi
    done
    install docker.io "${packages[@]}"
  fi
  packages=()
  [ -n "$dir" ] || keep_bytes /etc/docker/daemon.json
}

keep_bytes() { # FILE: the configuration of a new engine, unless there is one
  [ ! -e "$1" ] || return 0
  mkdir -p "${1%/*}"
  printf '{"features": {"containerd-snapshotter": true}}\n' >"$1"
}

# ---- start ------------------------------------------------------------------------------------------------------

mount_cgroups() { # where nothing has
  local c enabled
  ! mountpoint -q /sys/fs/cgroup || return 0
  mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null || true
  ! grep -qw memory /sys/fs/cgroup/cgroup.controllers 2>/dev/null || return 0 # version 2 has the controllers
  umount /sys/fs/cgroup 2>/dev/null || true
  mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup || return 1
  while read -r c _ _ enabled; do
    [ "$enabled" = 1 ] || continue
    mkdir "/sys/fs/cgroup/$c"
    mount -t cgroup -o "$c" cgroup "/sys/fs/cgroup/$c" 2>/dev/null || rmdir "/sys/fs/cgroup/$c"
  done < <(grep -v '^#' /proc/cgroups)
}

launch() {
  local flags=()
  mount_cgroups || say "warning: could not mount the control groups on /sys/fs/cgroup"
  # only what differs from dockerd's defaults: a flag must not repeat what /etc/docker/daemon.json sets
  [ "$socket" = /var/run/docker.sock ] || flags+=(--host "unix://$socket")
  if [ -n "$dir" ]; then
    [ -e "$dir/data" ] || keep_bytes "$dir/daemon.json"
    [ ! -e "$dir/daemon.json" ] || flags+=(--config-file "$dir/daemon.json")
    flags+=(--data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$pidfile")
  fi
  mkdir -p "${log%/*}" "${socket%/*}"
  rm -f "$pidfile" # of an engine that is gone: its number may belong to another process by now
  have dockerd || PATH=$home/bin:$PATH
  say "starting dockerd, log in $log"
  setsid dockerd "${flags[@]}" "${extra_args[@]}" </dev/null >"$log" 2>&1 9<&- &
  launched=$!
}

write_unit() { # of the unpacked engine, as its own package has it
  cat >/etc/systemd/system/rlbox-engine.service <<EOF
[Unit]
Description=Docker engine unpacked in $home
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
Environment=PATH=$home/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart=$home/bin/dockerd
Restart=on-failure
Delegate=yes
KillMode=process
LimitNPROC=infinity
TasksMax=infinity

[Install]
WantedBy=multi-user.target
EOF
  systemctl daemon-reload
}

start() {
  local began=$SECONDS launched='' what='' words
  if by_systemd; then
    log="journalctl -u $(unit)"
    say "starting $(unit).service"
    have dockerd || write_unit
    systemctl enable --now "$(unit).service" >/dev/null 2>&1 || what="$(unit).service did not start"
  elif ! dockerd_pid >/dev/null; then
    launch
  fi
  until [ -n "$what" ] || answers; do
    if [ $((SECONDS - began)) -ge "$wait_s" ]; then
      what="dockerd did not answer within $wait_s s"
    elif [ -n "$launched" ] && ! kill -0 "$launched" 2>/dev/null; then
      what='dockerd ended before it answered'
    else
      sleep 0.2
    fi
  done
  if [ -n "$what" ]; then # with dockerd's own words, without its small talk
    mapfile -t words < <(if by_systemd; then journalctl -u "$(unit)" -n 40 --no-pager -o cat; else cat "$log"; fi 2>&1 | grep -v 'level=info' | tail -n 5)
    [ ${#words[@]} = 0 ] || printf '  | %s\n' "${words[@]}" >&2
    [ -z "$launched" ] || kill "$launched" 2>/dev/null || true
    cannot "$what${words[*]:+: ${words[-1]}}" "$log" "cure what it names and repeat, or point DOCKER_HOST at an engine that runs"
  fi
  say "engine $client_says answers on $socket; to stop it: $(if by_systemd; then echo "systemctl stop $(unit)"; else echo "kill $(dockerd_pid)"; fi)"
}

# ---- the work ---------------------------------------------------------------------------------------------------

tell_left() { # what is to be done
  [ "$ready" = 1 ] || if engine_there; then echo "start the engine"; else echo "bring an engine and start it"; fi
  [ ${#packages[@]} = 0 ] || echo "install ${packages[*]}"
  can_build || ! have docker || echo "bring a docker client that speaks BuildKit"
  ! old_keys || echo "install a newer keyring of Debian"
}

ready=1
answers || ready=0
mapfile -t packages < <(missing_tools)
if [ "${1:-}" = --check ]; then tell_left && exit 0; fi
if [ "$ready" = 1 ] && [ ${#packages[@]} = 0 ] && can_build && ! old_keys; then exit 0; fi

if [ $ready = 0 ]; then
  case $client_says in *ermission\ denied*) cannot "an engine is there, but user $(id -un) may not use it" "${DOCKER_HOST:-$socket}" "run as root, or: usermod -aG docker $(id -un), and log in again" ;; esac
  # where the client looks must be a socket of this machine, or an engine started here would not be found
  context=$(docker context inspect --format '{{.Name}}' 2>/dev/null || echo default)
  [ -n "${DOCKER_HOST:-}" ] || [ "$context" = default ] || cannot "no engine answers" "docker context $context" "start that engine, or: docker context use default"
  case ${DOCKER_HOST:-unix://$socket} in
    unix:///run/user/* | unix:///var/run/user/*) cannot "the rootless engine does not answer" "$DOCKER_HOST" "start it (systemctl --user start docker), or unset DOCKER_HOST" ;;
    unix:///run/docker.sock) ;;
    unix:///*) socket=${DOCKER_HOST:-unix://$socket} socket=${socket#unix://} ;;
    *) cannot "no engine answers" "DOCKER_HOST=$DOCKER_HOST" "start that engine, or unset DOCKER_HOST" ;;
  esac
  engine_there || may_install "no engine answers on $socket" docker.io
  [ "$(id -u)" = 0 ] || cannot "no engine answers on $socket, and only root can start it" "user $(id -un)" "start it as root"
fi
if [ "${1:-}" = --dry-run ]; then
  [ ${#packages[@]} = 0 ] || may_install "a build needs ${packages[*]}" "${packages[*]}"
  tell_left && exit 0
fi

exec 9</run
flock 9 # two calls at once start one engine
if [ $ready = 0 ] && ! engine_there; then
  bring_engine
elif ! have docker || ! can_build; then
  if [ "$(id -u)" = 0 ] && [ ! -e $home/complete ] && [ -n "$(newer_release)" ]; then
    apt update >/dev/null 2>&1 || true
    unpack "$(newer_release)"
  fi
  if [ -e $home/complete ]; then link_tools; else packages+=(docker-buildx); fi
fi
if [ ${#packages[@]} != 0 ]; then
  may_install "a build needs ${packages[*]}" "${packages[*]}"
  install "${packages[@]}"
fi
bring_keys
answers || start
can_build || cannot "no docker client here speaks BuildKit" "$(type -ap docker | tr '\n' ' ')" "install the buildx plugin for it"
