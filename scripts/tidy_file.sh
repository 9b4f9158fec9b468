#!/bin/sh
# One file of scripts/tidy.sh, which sets TIDY_FLAGS, TIDY_NODES and the folder TIDY_CLEAN: there each file without
# findings has the checksums of all that it consists of.
# usage: scripts/tidy_file.sh FILE
set -u
file=$1
flags="$TIDY_FLAGS -include .clang-tidy.h"
case $file in
core/base/error.c) flags=$TIDY_FLAGS ;; # defines what .clang-tidy.h explains
*_avx2.c) flags="$flags -march=haswell" ;;
*_avx512*.c | *_amx.c) flags="$flags -march=sapphirerapids" ;;
esac
clean=$TIDY_CLEAN/$(echo "$file" | tr / @)
if [ -f "$clean" ] && sha256sum -c --status "$clean" 2>/dev/null; then
    exit 0
fi
output=$(mktemp) || exit 1
trap 'rm -f "$output" "$output.errors"' EXIT
# What it finds is on the standard output. The other one counts what is left out, and says why the program fails.
# shellcheck disable=SC2086 # flags are words
if ! clang-tidy --quiet --config-file=.clang-tidy "$file" -- $flags -Xclang -analyzer-config \
    -Xclang "max-nodes=$TIDY_NODES" >"$output" 2>"$output.errors"; then
    grep -q 'error: ' "$output" || cat "$output.errors" >>"$output"
    echo "FAILED $file: clang-tidy" >>"$output"
    sed "s|^$PWD/||" "$output"
    exit 1
fi
# shellcheck disable=SC2046,SC2086 # flags and names are words
"${CC:-cc}" -MM $flags "$file" >"$output" && sha256sum $(sed 's/^[^:]*://; s/\\$//' "$output") >"$clean"
