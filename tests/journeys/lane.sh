#!/usr/bin/env bash
# lane.sh [ROOT]: the journeys with the wheel alone, on a bare machine (scripts/fresh-machine.sh), each from an empty folder.
#
# The surroundings are laid by this script: uv, the wheel, a registry on loopback, a recorded account of vast.ai. JOURNEYS
# names those to make (smoke own vast). What it took and said is written to
# ROOT-journeys.log in the folder of bare machines; the machine goes when all end well.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=${1:-debian}
checkout=$(cd "$here/../.." && pwd)
machine() { "$checkout/scripts/fresh-machine.sh" "$1" "$root" "${@:2}"; }
lay() { machine exec sh -c "mkdir -p /srv/journey && cat >/srv/journey/$2 && chmod 755 /srv/journey/$2" <"$1"; }
log=${FRESH_DIR:-/var/lib/rlbox-fresh}/$root-journeys.log

wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
"$checkout/.venv/bin/uv" build --quiet --wheel --out-dir "$wheels" "$checkout"
wheel=$(basename "$wheels"/*.whl)
program=$(command -v docker-registry || echo "$checkout/.venv/tools/usr/bin/docker-registry")

machine down
machine up
machine exec mkdir -p /usr/local/bin
machine exec sh -c 'cat >/usr/local/bin/uv && chmod 755 /usr/local/bin/uv' <"$checkout/.venv/bin/uv"
lay "$wheels/$wheel" "$wheel"
lay "$program" docker-registry
for script in typed.sh smoke.sh own.sh vast.sh account.py; do lay "$here/$script" "$script"; done
for module in vastbox.py vastmachine.py; do lay "$checkout/tests/$module" "$module"; done
machine exec mkdir -p /srv/journey/cases/vast
for answers in offers.json instance.json; do lay "$checkout/tests/cases/vast/$answers" "cases/vast/$answers"; done
machine exec sh -c 'cat >/srv/journey/registry.yml' <<'END'
version: 0.1
log: { level: error }
storage: { filesystem: { rootdirectory: /srv/registry } }
http: { addr: 127.0.0.1:5000 }
END
machine exec sh -c 'setsid /srv/journey/docker-registry serve /srv/journey/registry.yml </dev/null >/srv/registry.log 2>&1 &'

: >"$log"
rc=0
for journey in ${JOURNEYS:-smoke own vast}; do
  began=$SECONDS
  if machine exec env "WHEEL=/srv/journey/$wheel" REGISTRY=127.0.0.1:5000 sh "/srv/journey/$journey.sh" >>"$log" 2>&1; then
    word=ok
  else
    word=FAILED rc=1
  fi
  echo "$word  $journey, $root: $((SECONDS - began)) s; $(grep '^journey:' "$log" | tail -n 1)"
done
[ $rc = 0 ] && machine down
exit $rc
