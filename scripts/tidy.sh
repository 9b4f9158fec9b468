#!/bin/sh
# Looks through the C files of core, cli, plugins and examples, with the headers that they include, by clang-tidy. Ends
# with status 1 when something is found or a file cannot be read. .clang-tidy has the checks, .clang-tidy.h what the
# analyzer cannot know. A file without findings is looked at again only when it, a header of the tree that it includes
# or a setting has changed. Where clang-tidy is not installed this says so, and does nothing.
# usage: scripts/tidy.sh BUILD 'FLAGS OF THE PACKAGES' [FILE...]
# TIDY_NODES: how far the analyzer follows one function; 225000 is its own default, and takes several times as long.
set -u
build=$1
export TIDY_FLAGS="-std=c17 -D_GNU_SOURCE -fopenmp-simd -Iinclude -Icore -Iplugins/common $2"
export TIDY_NODES="${TIDY_NODES:-40000}"
shift 2
command -v clang-tidy >/dev/null 2>&1 || {
    echo 'SKIPPED clang-tidy: it is not installed (scripts/setup.sh --optional)'
    exit 0
}
# Code for AArch64 would need the headers of a cross compiler.
case $(uname -m) in
x86_64) elsewhere='_neon\.c$' ;;
*) elsewhere='_(avx2|avx512[a-z0-9]*|amx|neon)\.c$' ;;
esac
# shellcheck disable=SC2046 # names without spaces
[ $# -gt 0 ] || set -- $(find core cli plugins examples -name '*.c' | grep -v -E "$elsewhere")
settings=$({
    clang-tidy --version
    cat .clang-tidy .clang-tidy.h scripts/tidy_file.sh
    echo "$TIDY_FLAGS $TIDY_NODES"
} | sha256sum | cut -c 1-16)
export TIDY_CLEAN="$build/$settings"
mkdir -p "$TIDY_CLEAN" || exit 1
find "$build" -mindepth 1 -maxdepth 1 ! -name "$settings" -exec rm -r {} +
status=0
printf '%s\n' "$@" | xargs -P "$(nproc)" -n 1 scripts/tidy_file.sh || status=1
[ $status -ne 0 ] || findings='no findings'
echo "clang-tidy: $# files, ${findings:-see the findings above}"
exit $status
