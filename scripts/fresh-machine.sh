#!/usr/bin/env bash
# fresh-machine.sh - a bare machine to try the README's two commands on: namespaces of its own around a root file system
# that has git, make and Python and nothing else.
#
#   fresh-machine.sh prove ROOT        a new machine, a clone of HEAD, `make smoke` and `make test` twice; then `down`
#   fresh-machine.sh up ROOT           start the machine, unless it runs, on a new disk or on the one that `stop` left
#   fresh-machine.sh clone ROOT        put a clone of HEAD into /srv/rlbox, alone; one that is there goes
#   fresh-machine.sh exec ROOT CMD...  run a command there, in /srv/rlbox where that is
#   fresh-machine.sh stop ROOT         a power cut: every process ends, the disk stays
#   fresh-machine.sh down ROOT         the same, and the disk goes
#
# ROOT is debian (12) or ubuntu (22.04): made by mmdebstrap once and kept as a tar in the folder; or NAME.tar, one of
# your own. As root on a machine with mmdebstrap, iproute2 and iptables. A machine has mount, pid, uts, ipc, network and
# control group namespaces; it reaches the network through this machine (NAT), and has no engine but the one that it
# starts. What a user behind a mirror hands on is handed on: pip's configuration, the folders that it names, the
# certificates, proxies. `prove` exits 0 if both commands passed twice; what they wrote is ROOT.log in the folder.
#
# Environment (all optional):
#   FRESH_DIR       roots, disks and logs; not on tmpfs or an overlay     (/var/lib/rlbox-fresh)
#   FRESH_NET       first three octets of the machines' network           (10.233.7)
#   UBUNTU_ARCHIVE  the address of Ubuntu's archive; on another system the root `ubuntu` is made from there
#   FRESH_ROUNDS    how often `prove` runs both commands                  (2)
set -euo pipefail

DIR=${FRESH_DIR:-/var/lib/rlbox-fresh}
NET=${FRESH_NET:-10.233.7}
SELF=$(readlink -f "$0")
CHECKOUT=$(dirname "$(dirname "$SELF")")
TAG=rlbox-fresh
HANDED_ON='^(PIP_|UV_|SSL_CERT_|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|GIT_SSL_CAINFO|https?_proxy|HTTPS?_PROXY|no_proxy|NO_PROXY)'
BARE=apt,git,make,python3,ca-certificates

say() { echo "fresh-machine: $*" >&2; }
die() { say "$*"; exit 1; }

# ---- the root file systems --------------------------------------------------------------------------------------

ubuntu_keyring() { # path of the keys of Ubuntu's archive: this machine's, or those of a package known by its sum
  local own=/usr/share/keyrings/ubuntu-archive-keyring.gpg deb=ubuntu-keyring_2021.03.26_all.deb
  [ ! -e $own ] || { echo $own; return; }
  [ -e "$DIR/keys$own" ] || {
    python3 - "$UBUNTU/pool/main/u/ubuntu-keyring/$deb" "$DIR/$deb" <<'PY'
import sys, urllib.request
urllib.request.urlretrieve(sys.argv[1], sys.argv[2])
PY
    echo "0d0e7ed6b112f5d03eabf3c7eb01ebdacf9c57714b279e90495cfc58c8c4520f  $DIR/$deb" | sha256sum --quiet -c - >&2
    dpkg-deb -x "$DIR/$deb" "$DIR/keys"
  }
  echo "$DIR/keys$own"
}

make_root() { # TAR, unless it is there
  local tar=$1 suite
  [ ! -e "$tar" ] || return 0
  say "making $tar"
  case $tar in
    "$DIR/debian.tar") mmdebstrap --quiet --variant=minbase --include=$BARE bookworm "$tar.new.tar" ;;
    "$DIR/ubuntu.tar")
      # shellcheck disable=SC2016
      UBUNTU=${UBUNTU_ARCHIVE:-$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI)' | sed -n '/^Ubuntu /{s///p;q}')}
      [ -n "$UBUNTU" ] || die "no apt source of this system is Ubuntu's: name its archive in UBUNTU_ARCHIVE"
      mmdebstrap --quiet --variant=minbase --include=$BARE --keyring="$(ubuntu_keyring)" jammy "$tar.new.tar" \
        "$(for suite in jammy jammy-updates jammy-security; do echo "deb $UBUNTU $suite main universe"; done)"
      ;;
    *) die "no such root: $tar" ;;
  esac
  mv "$tar.new.tar" "$tar"
}

hand_on() { # what a user of this machine has to read packages with, into the new disk
  local disk=$1 home=$1/root path
  : >"$disk.folders"
  mkdir -p "$home/.config/pip"
  python3 -m pip config list 2>/dev/null | sed -n "s/^\(global\|user\)\.\(.*\)='\(.*\)'\$/\2 = \3/p" | {
    echo '[global]'
    cat
  } >"$home/.config/pip/pip.conf"
  { cat "$home/.config/pip/pip.conf" && env | grep -E '^PIP_|^UV_'; } | grep -oE '(file://)?/[^ ]+' |
    sed 's,^file://,,; s,/simple$,,' | sort -u | while read -r path; do # an index names files that lie beside it
      [ ! -d "$path" ] || echo "$path" >>"$disk.folders"
    done
  { env | grep -E "$HANDED_ON" | cut -d= -f2- && sed -n 's/^constraint = //p' "$home/.config/pip/pip.conf" | tr ' ' '\n'; } |
    sort -u | while read -r path; do
      [ ! -f "$path" ] || install -D -m 644 "$path" "$disk/$path"
    done
  cp "$([ -e /run/systemd/resolve/resolv.conf ] && echo /run/systemd/resolve/resolv.conf || echo /etc/resolv.conf)" "$disk/etc/resolv.conf"
  printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$name" >"$disk/etc/hosts"
  echo "$name" >"$disk/etc/hostname"
}

# ---- a machine's control groups and first process ---------------------------------------------------------------

cgroups() { # every folder of the machine NAME, on this machine
  local at
  for at in $(findmnt -rn -t cgroup,cgroup2 -o TARGET); do echo "$at/$TAG-$name"; done
}

enter_cgroups() { # this process and its children
  local at
  for at in $(cgroups); do
    mkdir -p "$at"
    if [ -e "$at/cgroup.controllers" ] && [ "$(findmnt -rn -t cgroup | wc -l)" = 0 ]; then # version 2: processes in leaves only
      mkdir -p "$at/init"
      at=$at/init
    elif [ -e "$at/cpuset.cpus" ] && [ -z "$(cat "$at/cpuset.cpus")" ]; then
      cat "${at%/*}/cpuset.cpus" >"$at/cpuset.cpus"
      cat "${at%/*}/cpuset.mems" >"$at/cpuset.mems"
    fi
    echo "$BASHPID" >"$at/cgroup.procs"
  done
}

mount_cgroups() { # inside, under $1: the same hierarchies, each from the machine's own folder
  local at type options
  findmnt -rn -t cgroup,cgroup2,tmpfs -o TARGET,FSTYPE,OPTIONS | grep '^/sys/fs/cgroup' | while read -r at type options; do
    mkdir -p "$1$at"
    case $type in
      tmpfs) mount -t tmpfs -o mode=755 tmpfs "$1$at" ;;
      cgroup2) mount -t cgroup2 cgroup2 "$1$at" ;;
      cgroup) mount -t cgroup -o "$(sed 's/\(^\|,\)\(rw\|ro\|nosuid\|nodev\|noexec\|relatime\)\>//g; s/^,//' <<<"$options")" cgroup "$1$at" ;;
    esac
  done
}

first_process() { # DISK NAME: everything of the machine descends from it
  local disk=$1 name=$2 pid d
  read -r pid _ </proc/self/stat # /proc is still the outer one: the number seen from outside
  mount --make-rprivate /
  mount --bind "$disk" "$disk"
  while read -r d; do
    mkdir -p "$disk$d"
    mount --bind -o ro "$d" "$disk$d"
  done <"$disk.folders"
  mount -t proc proc "$disk/proc"
  mount -t sysfs sysfs "$disk/sys"
  mount_cgroups "$disk"
  mount -t tmpfs -o mode=755 tmpfs "$disk/dev"
  for d in null zero full random urandom tty fuse loop-control loop{0..7}; do
    [ -e "/dev/$d" ] || continue
    touch "$disk/dev/$d"
    mount --bind "/dev/$d" "$disk/dev/$d"
  done
  mkdir "$disk/dev/pts" "$disk/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts "$disk/dev/pts"
  mount -t tmpfs -o mode=1777 tmpfs "$disk/dev/shm"
  ln -s pts/ptmx "$disk/dev/ptmx"
  ln -s /proc/self/fd "$disk/dev/fd"
  for d in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${d%:*}" "$disk/dev/${d#*:}"; done
  mount -t tmpfs -o mode=755 tmpfs "$disk/run"
  mkdir -p "$disk/run/lock" "$disk/.outer"
  hostname "$name"
  echo "$pid" >"$disk.pid"
  cd "$disk"
  pivot_root . .outer
  exec chroot . /bin/bash -c 'umount -l /.outer; exec </dev/null >/dev/null 2>&1; while :; do sleep 600 & wait -n; done' "$TAG-$name"
}

# ---- on this machine --------------------------------------------------------------------------------------------

first_pid() { # of the machine, if it runs
  local p
  p=$(cat "$disk.pid" 2>/dev/null) && tr '\0' ' ' <"/proc/$p/cmdline" 2>/dev/null | grep "$TAG-$name" >/dev/null && echo "$p"
}

nat() { # add|del: the machine's way out
  local rule op
  for rule in "nat POSTROUTING -s $net.0/24 ! -d $net.0/24 -j MASQUERADE" "filter FORWARD -i $link -j ACCEPT" "filter FORWARD -o $link -j ACCEPT"; do
    op=-D
    [ "$1" = del ] || op=-I
    read -r -a rule <<<"$rule"
    iptables -w -t "${rule[0]}" $op "${rule[@]:1}" -m comment --comment "$TAG-$name" 2>/dev/null || [ "$1" = del ]
  done
}

up() {
  local p n=0
  [ "$(id -u)" = 0 ] || die "only root can start a machine"
  ! first_pid >/dev/null || return 0
  mkdir -p "$DIR"
  make_root "$tar"
  if [ ! -e "$disk.folders" ]; then
    rm -rf "$disk"
    mkdir -p "$disk"
    tar -xf "$tar" -C "$disk"
    hand_on "$disk" || { rm -f "$disk.folders"; die "cannot prepare $disk"; }
  fi
  rm -f "$disk.pid"
  (
    enter_cgroups
    setsid -f unshare --mount --uts --ipc --net --pid --cgroup --fork --kill-child \
      bash "$SELF" first-process "$disk" "$name" >"$disk.init.log" 2>&1 </dev/null
  )
  until p=$(first_pid); do
    n=$((n + 1))
    [ $n -lt 100 ] || { cat "$disk.init.log" >&2; die "$name did not start"; }
    sleep 0.1
  done
  ip link del "$link" 2>/dev/null || true
  ip link add "$link" type veth peer name eth0 netns "$p"
  ip addr add "$net.1/24" dev "$link"
  ip link set "$link" up
  nsenter -t "$p" -n sh -c "ip link set lo up; ip addr add $net.2/24 dev eth0; ip link set eth0 up; ip route add default via $net.1"
  echo 1 >/proc/sys/net/ipv4/ip_forward
  nat del
  nat add
}

inside() { # CMD...
  local p given=()
  p=$(first_pid) || die "$name does not run"
  mapfile -t given < <(env | grep -E "$HANDED_ON|^TERM=")
  (
    enter_cgroups
    # shellcheck disable=SC2016
    exec nsenter -t "$p" -m -u -n -i -p -C --root --wd env -i --default-signal=INT,QUIT HOME=/root LANG=C.UTF-8 \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${given[@]}" \
      bash -c 'cd /srv/rlbox 2>/dev/null || cd; exec "$@"' - "$@"
  )
}

clone() {
  rm -rf "$disk/srv/rlbox"
  [ -z "$(git -C "$CHECKOUT" status --porcelain)" ] || say "warning: what is not committed is not cloned"
  git clone -q --no-hardlinks "$CHECKOUT" "$disk/srv/rlbox"
}

stop() {
  local p at
  if p=$(first_pid); then # the others of its pid namespace go with it
    kill -9 "$p"
    while [ -e "/proc/$p" ]; do sleep 0.1; done
  fi
  rm -f "$disk.pid"
  ip link del "$link" 2>/dev/null || true
  nat del
  for at in $(cgroups); do [ ! -d "$at" ] || find "$at" -depth -type d -exec rmdir {} + 2>/dev/null || true; done
}

timed() { # CMD...: one line with its exit code and its seconds
  local began=$SECONDS said rc=0
  said=$(wc -c <"$log")
  inside "$@" >>"$log" 2>&1 || rc=$?
  said=$(tail -c +$((said + 1)) "$log" | grep -E '^=+ .* in [0-9.]+s' | tail -n 1 | tr -d =) || true
  say "$name: $*: rc $rc, $((SECONDS - began)) s${said:+: $said}"
  return $rc
}

prove() {
  local log=$DIR/$name.log rc=0 round
  down
  : >"$log"
  up
  clone
  for ((round = 0; round < ${FRESH_ROUNDS:-2}; round++)); do
    timed make smoke || rc=1
    timed make test ARGS="--named-skips --durations=40" || rc=1
  done
  grep -E '^(FAILED|ERROR|SKIPPED) ' "$log" >&2 || true
  [ $rc != 0 ] || down # one that failed is kept, to look into
  return $rc
}

down() {
  stop
  rm -rf "$disk" "$disk".*
}

usage() { sed -n '2,/^set -e/{/^set -e/d;s/^# \{0,1\}//;p}' "$SELF" >&2; exit 2; }

{ # read whole before it runs: an edit meanwhile does no harm
  cmd=${1:-}
  [ $# -ge 2 ] || usage
  case $2 in
    *.tar) tar=$(readlink -f "$2") name=$(basename "$2" .tar) ;;
    debian | ubuntu) tar=$DIR/$2.tar name=$2 ;;
    *) [ "$cmd" = first-process ] || usage ;;
  esac
  case $cmd in
    first-process) first_process "$2" "$3" ;;
    prove | up | clone | exec | stop | down)
      disk=$DIR/machines/$name
      mkdir -p "$DIR/machines"
      link=rlf-${name:0:10}
      net=${NET%.*}.$((${NET##*.} + $(cksum <<<"$name" | cut -d' ' -f1) % 90))
      shift 2
      ;;
    *) usage ;;
  esac
  case $cmd in
    prove) prove ;;
    up) up ;;
    clone) clone ;;
    exec) inside "$@" ;;
    stop) stop ;;
    down) down ;;
  esac
  exit
}
