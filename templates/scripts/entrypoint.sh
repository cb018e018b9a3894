#!/bin/sh
# Start a command in the environment that the image's fixes prepare.
. /opt/rlbox/libexec/init.sh
exec "$@"
