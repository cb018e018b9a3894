# Sourced by the journeys: `typed COMMAND...` is what a person types, counted; everything else is surroundings.
set -eu
count=0
typed() {
    count=$((count + 1))
    echo "\$ $*" >&2
    "$@"
}
at_most() { # COMMANDS
    [ "$count" -le "$1" ] || {
        echo "journey: $count commands were typed, and $1 are the most" >&2
        exit 1
    }
    echo "journey: ends well, $count commands" >&2
}
found() { # TEXT FILE: the file has the text
    grep -q -- "$1" "$2" || {
        echo "journey: $2 does not say $1" >&2
        tail -n 20 "$2" >&2
        exit 1
    }
}
