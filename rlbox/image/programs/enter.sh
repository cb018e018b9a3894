#!/bin/sh
# The first process of a build's own namespaces: it lays what the build sees at paths that are the same on every machine, and
# runs it there. Its input is open as long as whoever asked for the build lives.
#   enter.sh SYSTEM BOX SITE OBJECTS WORD...
# SYSTEM is the root of the operating system, BOX the build's own folder, which becomes /mnt/rlbox.
set -eu
system=$1 box=$2 site=$3 objects=$4
shift 4
view=$box/view

mount --rbind "$system" "$view"
mount -o remount,bind,ro "$view" 2>/dev/null || : # of a disk with settings that may not be dropped
mount -t tmpfs -o mode=755 tmpfs "$view/mnt"
mkdir "$view/mnt/rlbox"
mount --bind "$box" "$view/mnt/rlbox"
mount --bind "$site" "$view/mnt/rlbox/site"
mount -o remount,bind,ro "$view/mnt/rlbox/site" 2>/dev/null || :
mount --bind "$objects" "$view/mnt/rlbox/objects"
mount --bind "$box/tmp" "$view/tmp"
mount -t proc proc "$view/proc" || mount --rbind /proc "$view/proc"
mount -t tmpfs -o mode=755 tmpfs "$view/dev"
mkdir -m 1777 "$view/dev/shm"
ln -s /proc/self/fd "$view/dev/fd"
for name in null zero full random urandom; do
    : >"$view/dev/$name"
    mount --bind "/dev/$name" "$view/dev/$name"
done

exec 3<&0 </dev/null
(
    cat <&3 >/dev/null
    kill -KILL -1 # nobody waits for it any more
) &
chroot "$view" "$@" 3<&- &
wait $!
