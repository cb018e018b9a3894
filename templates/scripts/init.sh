# Sourced by the entrypoint, and by any shell where a platform replaces it: what can only be done on the running machine.
# Caches that default to $HOME need one that can be written.
if [ ! -w "${HOME:-/}" ] || [ "${HOME:-/}" = / ]; then
    HOME=/tmp/home-$(id -u)
    mkdir -p "$HOME"
    export HOME
fi
for rlbox_hook in /opt/rlbox/hooks/*.sh; do
    if [ -r "$rlbox_hook" ]; then
        . "$rlbox_hook"
    fi
done
unset rlbox_hook
