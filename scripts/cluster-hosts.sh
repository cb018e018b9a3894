#!/usr/bin/env bash
# cluster-hosts.sh - hosts on one machine, for what needs a second machine: each has namespaces of its own, an sshd with
# the default limits and, unless it is bare, a Docker engine.
#
#   cluster-hosts.sh up [COUNT]       start COUNT hosts (2), node0 at 10.234.9.11, node1 at .12, …; again: those that are off
#   cluster-hosts.sh status           one line a host
#   cluster-hosts.sh exec HOST CMD…   run a command in a host, without ssh
#   cluster-hosts.sh cut|heal HOST    unplug the host's network cable, plug it in again
#   cluster-hosts.sh kill HOST        a power cut: every process of the host ends at once; `up` boots it with its disk
#   cluster-hosts.sh keep NAME        keep what the engine of node0 has, its host being off, as images of hosts to come
#   cluster-hosts.sh down             end them all, and remove all that is theirs but what was kept
#   cluster-hosts.sh purge            the same, and what was kept
#
# A host's data disk is /srv/train, an ext4 of its own of CLUSTER_HOSTS_DISK; so that it can be full. The machine, and who
# else is on it, reaches the hosts by `ssh` of the folder's bin/, which knows keys and names; nothing of ~/.ssh is touched.
# As root on a machine with iproute2; sshd where there is none, and nft, from scripts/ensure-test-tools.sh.
#
# Environment (all optional):
#   CLUSTER_HOSTS_DIR      disks, keys and logs, on no tmpfs          (/var/lib/rlbox-hosts)
#   CLUSTER_HOSTS_NET      first three octets of their network        (10.234.9)
#   CLUSTER_HOSTS_SET      a word of six letters at most: hosts beside others, with a folder and a network of their own
#   CLUSTER_HOSTS_ENGINES  engine of each host, the last for the rest: here (this machine's), 20 (Debian 12's own), none
#   CLUSTER_HOSTS_IMAGES   name of what was kept that new engines begin with
#   CLUSTER_HOSTS_DISK     size of a data disk                        (2G)
#   CLUSTER_HOSTS_FOR      number of the process that the hosts are for, kept in the folder's `for`
set -euo pipefail

DIR=${CLUSTER_HOSTS_DIR:-/var/lib/rlbox-hosts}
NET=${CLUSTER_HOSTS_NET:-10.234.9}
SELF=$(readlink -f "$0")
TOOLS=$(dirname "$(dirname "$SELF")")/.venv/tools
TAG=rlbox-hosts${CLUSTER_HOSTS_SET:+-$CLUSTER_HOSTS_SET}
ROOT=/root MIRA=/srv/mira # homes of the two users of a host
WIRE=rlh${CLUSTER_HOSTS_SET:-} BRIDGE=rlh${CLUSTER_HOSTS_SET:-}-br
OWN=(/etc/docker /etc/ssh /home /mnt /root /srv /tmp /var/lib/containerd /var/lib/docker /var/log /var/tmp)

say() { echo "cluster-hosts: $*" >&2; }
die() { say "$*"; exit 1; }

hosts() { local d; for d in "$DIR"/node*/; do [ -d "$d" ] && basename "$d"; done; return 0; }
ip_of() { echo "$NET.$((11 + ${1#node}))"; }
engine_of() { local e; read -r -a e <<<"${CLUSTER_HOSTS_ENGINES:-here}"; echo "${e[$1]:-${e[-1]}}"; }
pid_of() { # of the host's first process, if it runs
  local p
  p=$(cat "$DIR/$1/pid" 2>/dev/null) && [ -r "/proc/$p/cmdline" ] && { tr '\0' ' ' <"/proc/$p/cmdline"; } 2>/dev/null | grep -q " first-process $1 " && echo "$p"
}
known_host() { if ! [[ ${1:-} =~ ^node[0-9]+$ ]] || [ ! -d "$DIR/$1" ]; then die "there is no host ${1:-}"; fi; }
inside() { # HOST CMD...
  local p
  p=$(pid_of "$1") || die "$1 is off"
  shift
  nsenter -t "$p" -m -u -n -i -p --root --wd -- "$@"
}

# ---- programs ---------------------------------------------------------------------------------------------------

path_of() { # ENGINE: the folders that a host has on PATH
  local first=''
  case $1 in
    20) first=$DIR/engine20/bin: ;;
    here) [ -x "$(command -v dockerd)" ] || first=/opt/rlbox-engine/bin: ;;
  esac
  echo "$first$DIR/bin-of-hosts:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

bring_old_engine() { # Debian 12's own, unpacked
  local d=$DIR/engine20 f
  [ ! -e "$d/complete" ] || return 0
  say "unpacking Docker 20.10"
  rm -rf "$d"
  mkdir -p "$d"/{bin,deb}
  (cd "$d/deb" && apt-get -qq -o APT::Sandbox::User=root download docker.io/bookworm containerd/bookworm runc/bookworm tini/bookworm) >&2 ||
    die "apt-get could not get docker.io of bookworm"
  for f in "$d"/deb/*.deb; do dpkg-deb -x "$f" "$d/tree"; done
  for f in "$d"/tree/usr/{s,}bin/{docker,dockerd,docker-proxy,containerd,containerd-shim-runc-v2,runc}; do [ ! -f "$f" ] || cp "$f" "$d/bin/"; done
  cp "$d/tree/usr/bin/tini-static" "$d/bin/docker-init"
  rm -rf "$d/deb" "$d/tree"
  touch "$d/complete"
}

# ---- inside a host: its first process ---------------------------------------------------------------------------

first_process() { # HOST IP ENGINE
  local host=$1 ip=$2 engine=$3 d pid
  read -r pid _ </proc/self/stat # /proc is still the machine's: the number seen from outside
  mount --make-rprivate /
  mount --bind "$TOOLS" "$DIR/tools" # the checkout may lie in a folder that becomes the host's own
  TOOLS=$DIR/tools
  for d in "${OWN[@]}"; do
    [ -d "$d" ] || continue
    mkdir -p "$DIR/$host/disk$d"
    mount --bind "$DIR/$host/disk$d" "$d"
  done
  for d in hosts hostname passwd group; do mount --bind "$DIR/$host/$d" "/etc/$d"; done
  mkdir -p /srv/train
  mount -o loop "$DIR/$host/train.img" /srv/train
  chmod 1777 /tmp /var/tmp
  chmod 700 /root
  hostname "$host"
  mount -t tmpfs -o mode=755 tmpfs /run
  mkdir -p /run/lock /run/sshd /run/cg
  mount -t tmpfs -o mode=1777 tmpfs /dev/shm
  mount --rbind /sys/fs/cgroup /run/cg
  mount -t sysfs sysfs /sys
  mount --rbind /run/cg /sys/fs/cgroup
  umount -l /run/cg
  mount -t proc proc /proc
  echo "$pid" >"$DIR/$host/pid"
  ip link set lo up
  until [ -e /sys/class/net/eth0 ]; do sleep 0.05; done
  ip addr add "$ip/24" dev eth0
  ip link set eth0 up
  ip route add default via "$NET.1"
  HOME=/root PATH=$(path_of "$engine")
  export HOME PATH
  cd /
  LD_LIBRARY_PATH=$TOOLS/usr/lib/x86_64-linux-gnu:$TOOLS/lib/x86_64-linux-gnu "$(sshd_program)" -f /etc/ssh/sshd_config -E /var/log/sshd.log
  [ "$engine" = none ] || dockerd >>/var/log/dockerd.log 2>&1 &
  trap 'exit 0' TERM
  while :; do sleep 600 & wait -n || true; done
}

sshd_program() { if [ -x /usr/sbin/sshd ]; then echo /usr/sbin/sshd; else echo "$TOOLS/usr/sbin/sshd"; fi; }

# ---- on the machine ---------------------------------------------------------------------------------------------

forward() { # add|del: a machine whose bridges are filtered lets the hosts' packets through
  local way op=-D
  [ "$1" = del ] || op=-I
  command -v iptables >/dev/null || return 0
  for way in -i -o; do
    while iptables -w -D FORWARD $way "$BRIDGE" -m comment --comment "$TAG" -j ACCEPT 2>/dev/null; do :; done
    [ $op = -D ] || iptables -w -I FORWARD $way "$BRIDGE" -m comment --comment "$TAG" -j ACCEPT
  done
}

prepare_host() { # HOST INDEX: its disk and the files of /etc that are its own
  local d=$DIR/$1 ip engine
  ip=$(ip_of "$1") engine=$(engine_of "$2")
  mkdir -p "$d/disk/etc/docker" "$d/disk/etc/ssh" "$d/disk$ROOT/.ssh" "$d/disk$MIRA/.ssh"
  echo "$1" >"$d/hostname"
  # Debian's default: a host's own name is a loopback address of its own
  { printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$1" && for h in $(hosts); do [ "$h" = "$1" ] || echo "$(ip_of "$h") $h"; done; } >"$d/hosts"
  { grep -v '^sshd:' /etc/passwd && printf 'sshd:x:129:65534::/run/sshd:/usr/sbin/nologin\nmira:x:2000:2000::%s:/bin/bash\n' "$MIRA"; } >"$d/passwd"
  { grep -v '^docker:' /etc/group && printf 'docker:x:2001:\nmira:x:2000:\n'; } >"$d/group"
  [ -e "$d/train.img" ] || {
    truncate -s "${CLUSTER_HOSTS_DISK:-2G}" "$d/train.img"
    mkfs.ext4 -q -m 0 "$d/train.img"
  }
  [ -e "$d/engine" ] || {
    echo "$engine" >"$d/engine"
    [ -z "${CLUSTER_HOSTS_IMAGES:-}" ] || [ "$engine" != here ] || adopt "$DIR/kept/$CLUSTER_HOSTS_IMAGES" "$d/disk/var/lib/docker"
  }
  local store='{"buildkit": true, "containerd-snapshotter": true}'
  [ "$engine" != 20 ] || store='{"buildkit": true}'
  printf '{"cgroup-parent": "/%s-%s", "features": %s, "insecure-registries": ["%s.0/24"]}\n' "$TAG" "$1" "$store" "$NET" >"$d/disk/etc/docker/daemon.json"
  [ -e "$d/disk/etc/ssh/ssh_host_ed25519_key" ] || ssh-keygen -q -t ed25519 -N '' -C "$1" -f "$d/disk/etc/ssh/ssh_host_ed25519_key"
  cat >"$d/disk/etc/ssh/sshd_config" <<CONF
ListenAddress $ip:22
HostKey /etc/ssh/ssh_host_ed25519_key
PidFile /run/sshd.pid
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
SetEnv PATH=$(path_of "$engine")
CONF
  for home in "$ROOT" "$MIRA"; do
    cp "$DIR/id_ed25519.pub" "$d/disk$home/.ssh/authorized_keys"
    chmod 700 "$d/disk$home" "$d/disk$home/.ssh"
  done
  chown -R 2000:2000 "$d/disk$MIRA"
}

start_host() { # HOST INDEX
  local d=$DIR/$1 p n=0
  ! pid_of "$1" >/dev/null || return 0
  rm -f "$d/pid"
  setsid -f unshare --mount --uts --ipc --net --pid --fork --kill-child \
    bash "$SELF" first-process "$1" "$(ip_of "$1")" "$(cat "$d/engine")" >>"$d/init.log" 2>&1 </dev/null
  until p=$(pid_of "$1"); do
    n=$((n + 1))
    [ $n -lt 200 ] || { cat "$d/init.log" >&2; die "$1 did not start"; }
    sleep 0.05
  done
  ip link del "$WIRE-$2" 2>/dev/null || true
  ip link add "$WIRE-$2" type veth peer name eth0 netns "$p"
  ip link set "$WIRE-$2" master "$BRIDGE" up
}

write_programs() { # an `ssh` that knows keys and names, and an nft that finds its libraries
  local h libraries=$DIR/tools/usr/lib/x86_64-linux-gnu:$DIR/tools/lib/x86_64-linux-gnu
  : >"$DIR/ssh_config"
  : >"$DIR/known_hosts"
  for h in $(hosts); do
    echo "$h,$(ip_of "$h") $(cut -d' ' -f1,2 "$DIR/$h/disk/etc/ssh/ssh_host_ed25519_key.pub")" >>"$DIR/known_hosts"
    printf 'Host %s\n  HostName %s\n' "$h" "$(ip_of "$h")" >>"$DIR/ssh_config"
  done
  printf 'Match all\n  User root\n  IdentityFile %s\n  IdentitiesOnly yes\n  UserKnownHostsFile %s\n' "$DIR/id_ed25519" "$DIR/known_hosts" >>"$DIR/ssh_config"
  mkdir -p "$DIR/bin"
  # shellcheck disable=SC2016
  printf '#!/bin/sh\nexec %s -F "${CLUSTER_HOSTS_SSH:-%s}" "$@"\n' "$(PATH=${PATH//$DIR\/bin:/} command -v ssh)" "$DIR/ssh_config" >"$DIR/bin/ssh"
  mkdir -p "$DIR/bin-of-hosts"
  [ ! -x "$TOOLS/usr/sbin/nft" ] || printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$libraries" "$DIR/tools/usr/sbin/nft" >"$DIR/bin-of-hosts/nft"
  chmod -R 755 "$DIR/bin/ssh" "$DIR/bin-of-hosts"
}

up() { # [COUNT]
  local count=${1:-2} i h end
  [ "$(id -u)" = 0 ] || die "only root can start hosts"
  [[ $count =~ ^[1-9][0-9]?$ ]] || die "$count is no number of hosts"
  [ -x "$(sshd_program)" ] || die "there is no sshd: scripts/ensure-test-tools.sh brings it"
  mkdir -p "$DIR/tools"
  exec 9>"$DIR/lock"
  flock 9
  [ -z "${CLUSTER_HOSTS_FOR:-}" ] || echo "$CLUSTER_HOSTS_FOR" >"$DIR/for"
  [[ " ${CLUSTER_HOSTS_ENGINES:-} " != *" 20 "* ]] || bring_old_engine
  [ -e "$DIR/id_ed25519" ] || ssh-keygen -q -t ed25519 -N '' -C "$TAG" -f "$DIR/id_ed25519"
  ip link show "$BRIDGE" >/dev/null 2>&1 || {
    ip link add "$BRIDGE" type bridge
    ip addr add "$NET.1/24" dev "$BRIDGE"
    ip link set "$BRIDGE" up
  }
  forward add
  for ((i = 0; i < count; i++)); do mkdir -p "$DIR/node$i"; done
  for h in $(hosts); do pid_of "$h" >/dev/null || prepare_host "$h" "${h#node}"; done
  write_programs
  for h in $(hosts); do start_host "$h" "${h#node}" 9>&-; done
  end=$((SECONDS + 120))
  for h in $(hosts); do
    until answers "$h"; do
      [ $SECONDS -lt $end ] || { tail -n 5 "$DIR/$h"/disk/var/log/*.log >&2; die "$h did not answer within 120 s"; }
      sleep 0.2
    done
  done
}

answers() { # HOST: over ssh, and its engine
  local ask=true
  [ "$(cat "$DIR/$1/engine")" = none ] || ask='docker version --format {{.Server.Version}}'
  # shellcheck disable=SC2086
  "$DIR/bin/ssh" -oBatchMode=yes -oConnectTimeout=3 "$1" $ask >/dev/null 2>&1
}

status() {
  local h
  for h in $(hosts); do
    if ! pid_of "$h" >/dev/null; then echo "$h $(ip_of "$h") off"; elif answers "$h"; then echo "$h $(ip_of "$h") up"; else echo "$h $(ip_of "$h") does not answer"; fi
  done
}

cable() { ip link set "$WIRE-${1#node}" "$2"; } # HOST up|down

kill_host() { # the first process of a pid namespace takes all others along
  local p n=0 left
  p=$(pid_of "$1") || return 0
  kill -9 "$p"
  while [ -e "/proc/$p" ]; do sleep 0.05; done
  ip link del "$WIRE-${1#node}" 2>/dev/null || true
  # mount namespaces of its containers end a moment later, and with them the loop device
  while losetup -j "$DIR/$1/train.img" 2>/dev/null | grep -q . && [ $n -lt 100 ]; do n=$((n + 1)) && sleep 0.05; done
  n=0
  while left=$(find /sys/fs/cgroup -depth -type d -path "*/$TAG-$1*" 2>/dev/null) && [ -n "$left" ] && [ $n -lt 40 ]; do
    # shellcheck disable=SC2086
    rmdir $left 2>/dev/null || sleep 0.1
    n=$((n + 1))
  done
}

# What an engine has of images is never written to again: a copy is names for the same files, but for its two databases.
adopt() { # FROM TO
  [ -d "$1" ] || return 0
  mkdir -p "$2"
  cp -al "$1/." "$2/"
  find "$2" -name '*.db' -exec sh -c 'for f; do cp -p "$f" "$f.own" && mv "$f.own" "$f"; done' sh {} +
}

keep() { # NAME
  [ -n "${1:-}" ] || die "keep what under which name?"
  ! pid_of node0 >/dev/null || die "node0 still runs"
  mkdir -p "$DIR/kept"
  rm -rf "$DIR/kept/$1" "$DIR/kept/$1.new"
  adopt "$DIR/node0/disk/var/lib/docker" "$DIR/kept/$1.new"
  rm -rf "$DIR/kept/$1.new"/{containers,network,runtimes,tmp,volumes,swarm}
  mv "$DIR/kept/$1.new" "$DIR/kept/$1"
}

down() {
  local h
  for h in $(hosts); do kill_host "$h"; done
  forward del
  ip link del "$BRIDGE" 2>/dev/null || true
  rm -rf "${DIR:?}"/node* "${DIR:?}"/{bin,bin-of-hosts,for,id_ed25519,id_ed25519.pub,known_hosts,lock,ssh_config}
  rmdir "$DIR/tools" "$DIR" 2>/dev/null || true
}

{ # read whole before it runs: an edit meanwhile does no harm
  cmd=${1:-}
  [ $# = 0 ] || shift
  case $cmd in
    up) up "$@" ;;
    status) status ;;
    exec) known_host "${1:-}" && inside "$@" ;;
    cut) known_host "${1:-}" && cable "$1" down ;;
    heal) known_host "${1:-}" && cable "$1" up ;;
    kill) known_host "${1:-}" && kill_host "$1" ;;
    keep) keep "$@" ;;
    down) down ;;
    purge) down && rm -rf "$DIR" ;;
    first-process) first_process "$@" ;;
    *)
      sed -n '2,/^set -e/{/^set -e/d;s/^# \{0,1\}//;p}' "$SELF" >&2
      exit 2
      ;;
  esac
  exit
}
