#!/bin/sh
# Rendered by `rlbox onstart vast-5090-flash` for vast.ai: https://github.com/rlbox-dev/rlbox/blob/main/docs/vast.md
# It runs at every start of the instance, may be run again at any time (sh onstart.sh), and goes on where it was cut.
# No secret belongs in here.
set -u
umask 022
disk=/workspace own=/opt/rlbox cli=/opt/rlbox-cli failed='' notes=''
log=$disk/onstart.log state=$disk/onstart.status
mkdir -p "$disk" /run && touch "$log" || exit 1
exec 9>/run/rlbox-onstart.lock

say() { printf '%s %s\n' "$(date -u +%FT%TZ)" "$*" | tee -a "$log"; }
tell() { echo "$*" >"$state.new" && mv -f "$state.new" "$state"; }
step() { # NAME COMMAND...: prints into the log
    name=$1
    shift
    say "$name: begins"
    "$@" >>"$log" 2>&1 9>&- && say "$name: ok" && return
    say "$name: FAILED, exit code $?"
    failed="$failed $name"
}
machine() {
    nproc
    df -Ph "$disk" /dev/shm
    nvidia-smi -L || echo "no GPU answers"
}
lock() { # the target's own image, or one that rlbox brings to its lock
    if [ -e $own/share/lock.json ] && [ ! -e $own/share/applied.json ]; then
        grep -q '"target": "vast-5090-flash"' $own/share/lock.json || notes=' (the image of another target)'
        return 0
    fi
    if [ ! -e $cli/whole ]; then
        [ -n "${RLBOX_WHEEL:-}" ] || {
            echo "not the target's image: take that, or set RLBOX_WHEEL to the address of rlbox's wheel"
            return 1
        }
        rm -rf $cli && python3 -m venv $cli || return
        env -u PIP_CONSTRAINT $cli/bin/pip install --no-input "$RLBOX_WHEEL" && : >$cli/whole || return
    fi
    $cli/bin/rlbox apply vast-5090-flash --data "$disk" --yes || grep -q '"state": "laid"' $own/share/applied.json
}
probe() { $own/bin/sandbox-probe "http://127.0.0.1:$1"; }
port() { # the sandbox's: the one given, else the first free from 28080 on
    at=$(tr '\0' '\n' </proc/1/environ | sed -n 's/^SANDBOX_PORT=//p')
    if [ -z "$at" ]; then
        at=$(sed -n 's/.*export SANDBOX_PORT=//p' /etc/rlbox/environment.sh 2>/dev/null)
        at=${at:-28080} last=$((${at:-28080} + 100))
        until tmux -L rlbox-sandbox has-session 2>/dev/null || probe "$at" || $own/bin/python -Ic \
            "import socket; socket.create_server(('127.0.0.1', $at))"; do
            at=$((at + 1))
            [ $at -lt $last ] || return
        done
    fi
    export SANDBOX_PORT="$at" SANDBOX_URL="http://127.0.0.1:$at"
}
init() { # what the entrypoint would have done, and the environment for every shell
    $own/bin/rlbox-init || return
    . /etc/rlbox/environment.sh
    rc=/etc/bash.bashrc line='[ ! -r /etc/rlbox/environment.sh ] || . /etc/rlbox/environment.sh'
    touch $rc
    if ! grep -qxF "$line" $rc; then
        { echo "$line" && cat $rc; } >$rc.new && mv -f $rc.new $rc
    fi
    ! command -v crontab || crontab -l 2>&1 | grep -q ^PATH= || { echo "PATH=$PATH" && crontab -l; } | crontab -
}
sandbox() { # in a tmux server of its own; ready is what has run a program
    tries=0
    until told=$(probe "$SANDBOX_PORT" 2>&1); do
        tries=$((tries + 1))
        [ $tries != 1 ] || $own/bin/keep-running sandbox $own/bin/sandbox-serve
        [ $tries -le 450 ] && tmux -L rlbox-sandbox has-session 2>/dev/null || {
            echo "$told"
            tail -n 20 "$disk/keep-running/sandbox.log"
            return 1
        }
        sleep 2
    done
    echo "$told"
}

flock -w 3600 9 || exit 1
if [ "$(wc -c <"$log")" -gt 2000000 ]; then
    tail -c 500000 "$log" >"$log.new" && mv -f "$log.new" "$log"
fi
tell "running since $(date -u +%FT%TZ)"
step machine machine
step lock lock
if [ -z "$failed" ]; then
    [ ! -x $own/bin/sandbox-serve ] || step port port
    step init init
    [ ! -x $own/bin/sandbox-serve ] || step sandbox sandbox
    [ ! -x $own/bin/rlbox ] || $own/bin/rlbox doctor >>"$log" 2>&1 9>&- || notes="$notes (doctor: see $log)"
fi
if [ -n "$failed" ]; then
    tell "failed:$failed"
    say "failed:$failed: see $log"
    exit 1
fi
tell "ready$notes"
say "ready$notes"
