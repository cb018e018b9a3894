#!/bin/sh
# Stands before every compiler of a build, under its name. An object that was made before is taken as it was, one that is made
# now is kept, whole or not at all: a build that was killed goes on with the files that were in work. Besides its arguments,
# its folder and its source everything that decides an object has decided the folder `objects` already.
set -eu
here=/mnt/rlbox name=${0##*/}
PATH=${PATH#"$here/bin:"} # what a compiler starts itself is no unit of the build
export PATH
case $name in
nvcc) real=${CUDA_HOME:-/usr}/bin/nvcc ;;
*) real=/usr/bin/$name ;;
esac

compiles='' out='' source='' depends='' before=''
for word; do
    case $before in
    -o | --output-file) out=$word ;;
    -MF | --dependency-output) depends=$word ;;
    -MT | -MQ | -include) ;;
    *)
        case $word in
        -c | --compile) compiles=yes ;;
        *.cu | *.c | *.cc | *.cpp | *.cxx | *.C) source=$word ;;
        esac
        ;;
    esac
    before=$word
done

left_out() { # whether the spec leaves this source out: a CUDA file that fits none of its patterns
    case $source in *.cu) ;; *) return 1 ;; esac
    [ -s "$here/units" ] || return 1
    while read -r pattern; do
        # shellcheck disable=SC2254  # it is a pattern
        case ${source#"$here/source/"} in $pattern | */$pattern) return 1 ;; esac
    done <"$here/units"
}

tell() { printf '%s\t%s\t%s\n' "$1" "$2" "${source#"$here/source/"}" >>"$here/units.log"; }

# What sources that were left out define is called all the same: each such function says so instead.
with_stubs() {
    : >"$here/linked"
    stubs=$here/tmp/stubs.$$ # no number of a process gets into the library: its files have names of their own
    mkdir "$stubs"
    if ! "$real" "$@" -Wl,-z,defs,--no-demangle 2>"$stubs/said"; then
        number=0
        echo '#include <stdexcept>' >"$stubs/stubs.cpp"
        sed -n "s/.*undefined reference to \`\(_Z[A-Za-z0-9_.]*\)'.*/\1/p" "$stubs/said" | sort -u | while read -r symbol; do
            number=$((number + 1)) why="was left out when this was compiled: units of [[stack.compile]]"
            printf 'void left_%s() asm("%s");\n' $number "$symbol"
            printf 'void left_%s() { throw std::runtime_error("%s %s"); }\n' $number "$(c++filt "$symbol")" "$why"
        done >>"$stubs/stubs.cpp"
        (cd "$stubs" && /usr/bin/c++ -O1 -fPIC -c stubs.cpp -o stubs.o)
        "$real" "$@" "$stubs/stubs.o"
    fi
}

if [ -z "$compiles" ] || [ -z "$out" ] || [ -z "$source" ]; then
    case " $* " in
    *' -shared '*) [ ! -s "$here/units" ] || { with_stubs "$@" && exit; } ;;
    esac
    exec "$real" "$@"
fi
if left_out; then
    tell left 0
    exec /usr/bin/c++ -x c++ -c /dev/null -o "$out"
fi
key=$({ printf '%s\n' "$PWD" "$name" "$@" && cat "$source"; } | sha256sum)
kept=$here/objects/${key%% *}
if [ -f "$kept" ]; then
    cp "$kept" "$out"
    [ -z "$depends" ] || [ ! -f "$kept.d" ] || cp "$kept.d" "$depends"
    tell kept 0
    exit
fi
began=$(date +%s)
tell begun 0
if [ "$name" = nvcc ]; then
    # Numbers of processes get into objects: by names of files between (-objtemp), and into those of what is local to a file;
    # these begin anew for each compiler, so that they are not as many others as ran beside it.
    unshare --pid --fork "$real" -objtemp "$@"
else
    "$real" "$@"
fi
[ -z "$depends" ] || [ ! -f "$depends" ] || cp "$depends" "$kept.d"
cp "$out" "$kept.$$"
sync "$kept.$$"
mv "$kept.$$" "$kept"
tell made $(($(date +%s) - began))
