#!/bin/sh
# A target, a fix and a job of one's own, into a registry, and again as CI does it. WHEEL is rlbox's wheel, REGISTRY a
# registry's address.
. "$(dirname "$0")/typed.sh"
PATH=$HOME/.local/bin:$PATH
mkdir team && cd team

typed uv tool install --quiet "$WHEEL"
typed rlbox init mine --machine cpu

printf '\n[env]\nOMP_NUM_THREADS = "2"\n' >>images/mine/target.toml
mkdir -p templates/fixes
cat >templates/fixes/greeting.toml <<'END'
title = "The team's settings are in every image"
why = "Three people set GREETING by hand, each otherwise."
source = ["our wiki"]
remedy = "Take it out of your .bashrc: the image has it."
order = 90
[bake.env]
GREETING = "hello from the team"
[check]
run = '[ "$GREETING" = "hello from the team" ] || { echo "GREETING is ${GREETING:-not set}"; exit 1; }'
END
sed -i "s/^require = .*/require = [{ pattern = 'hello from the team' }, { pattern = 'training complete' }]/" jobs/mine.toml
sed -i '1a import os; print(os.environ["GREETING"], flush=True)' jobs/mine/train.py

typed rlbox lock mine
typed rlbox build mine
typed rlbox fixes explain mine >fixes
typed rlbox run mine
typed rlbox push mine --to "$REGISTRY/team/mine:1" --json >pushed
found greeting fixes
found '"digest": "sha256:' pushed

# CI, on every commit: nothing to build, the job's gates decide
typed rlbox build mine --json >built
typed rlbox run mine --json --set steps=10 >ran
found '"unchanged"' built
found '"state": "passed"' ran
at_most 10
