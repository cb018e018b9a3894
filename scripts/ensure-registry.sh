#!/usr/bin/env bash
# ensure-registry.sh - see to it that a registry program for the tests is there; starts none.
#
# `docker-registry` on PATH is left as it is. Otherwise the distribution's package is unpacked into .venv/registry, so
# that no service of this machine is installed or started.
#
# Exit: 0 it is there; 4 it cannot be had, one line on stderr says why and what to do next.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { echo "ensure-registry: $*" >&2; }
have() { command -v docker-registry >/dev/null 2>&1 || [ -x .venv/registry/usr/bin/docker-registry ]; }
get() { (cd "$1" && apt-get -qq download docker-registry) >"$1/log" 2>&1; }

! have || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
  say "error: no docker-registry on PATH; where: $(uname -sr); next: install it with the system's own tools"
  exit 4
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if ! get "$scratch" && ! { [ "$(id -u)" = 0 ] && apt-get -qq update >/dev/null && get "$scratch"; }; then
  say "error: apt-get cannot download docker-registry: $(tail -n 1 "$scratch/log"); next: apt-get update, then repeat"
  exit 4
fi
mkdir -p .venv/registry
dpkg-deb -x "$scratch"/docker-registry_*.deb .venv/registry
say "unpacked docker-registry into .venv/registry"
