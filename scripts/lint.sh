#!/bin/sh
# Looks through core, cli, serve, plugins and the Python package with cppcheck, without running them, and ends with status 1 when something is
# found. Where cppcheck is not installed this says so, and does nothing. .cppcheck/ has what it cannot know, and the
# findings that are none.
# usage: scripts/lint.sh BUILD
set -u
build=$1
mkdir -p "$build/cppcheck" || exit 1
command -v cppcheck >/dev/null 2>&1 || {
    echo 'SKIPPED cppcheck: it is not installed (scripts/setup.sh --optional)'
    exit 0
}
cppcheck -q -j"$(nproc)" --enable=warning,portability --std=c11 --error-exitcode=1 --inline-suppr \
    --library=posix --library=.cppcheck/tenon.cfg --suppressions-list=.cppcheck/suppressions.txt \
    --cppcheck-build-dir="$build/cppcheck" -Iinclude -Icore -Iplugins/common -D_GNU_SOURCE -D__linux__ -D__x86_64__ \
    core cli serve plugins python/src
