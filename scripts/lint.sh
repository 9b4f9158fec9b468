#!/bin/sh
# Looks through core, cli and plugins without running them, and ends with status 1 when something is found. A program
# that is not installed is said to be missing, and nothing is done.
# usage: scripts/lint.sh cppcheck BUILD
#        scripts/lint.sh clang-tidy BUILD 'FLAGS OF THE PACKAGES' [FILE...]
# cppcheck: .cppcheck/ has what it cannot know, and the findings that are none. clang-tidy: .clang-tidy has the checks.
set -u
tool=$1 build=$2 flags=${3:-}
mkdir -p "$build" || exit 1
command -v "$tool" >/dev/null 2>&1 || {
    echo "SKIPPED $tool: it is not installed (scripts/setup.sh --optional)"
    exit 0
}
case $tool in
cppcheck)
    mkdir -p "$build/cppcheck"
    cppcheck -q -j"$(nproc)" --enable=warning,portability --std=c11 --error-exitcode=1 --inline-suppr \
        --library=posix --library=.cppcheck/tenon.cfg --suppressions-list=.cppcheck/suppressions.txt \
        --cppcheck-build-dir="$build/cppcheck" -Iinclude -Icore -Iplugins/common -D_GNU_SOURCE -D__linux__ -D__x86_64__ \
        "-DTN_PREFIX=\"/usr/local\"" core cli plugins
    ;;
clang-tidy)
    shift $(($# < 3 ? $# : 3))
    # Files of vectors see the headers of their instruction set and little else; what they share is looked at elsewhere.
    # shellcheck disable=SC2046 # names without spaces
    [ $# -gt 0 ] || set -- $(find core cli plugins -name '*.c' | grep -v -E '_(avx2|avx512|avx512bf16|avx512fp16|amx|neon)\.c$')
    printf '%s\n' "$@" | xargs -P "$(nproc)" -n 4 sh -c '
        flags=$1
        shift
        # shellcheck disable=SC2086 # flags are words
        clang-tidy --quiet "$@" -- -std=c17 -D_GNU_SOURCE -fopenmp-simd -Iinclude -Icore -Iplugins/common \
            -DTN_PREFIX=\"/usr/local\" $flags 2>/dev/null' clang-tidy "$flags"
    ;;
esac
