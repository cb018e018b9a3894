#!/bin/sh
# From an empty folder to a report: WHEEL is rlbox's wheel; of the machine only uv is asked.
. "$(dirname "$0")/typed.sh"
PATH=$HOME/.local/bin:$PATH
mkdir first && cd first

typed uv tool install --quiet "$WHEEL"
typed rlbox run smoke --build
typed rlbox report >told

report=$(cat told)
found '<title>' "$report"
found passed "$report"
at_most 3
