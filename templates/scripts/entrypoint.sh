#!/bin/sh
# Start a command as any user: caches that default to $HOME need one that can be written.
if [ ! -w "${HOME:-/}" ] || [ "${HOME:-/}" = / ]; then
    HOME=/tmp/home-$(id -u)
    mkdir -p "$HOME"
    export HOME
fi
exec "$@"
