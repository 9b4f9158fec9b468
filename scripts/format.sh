#!/bin/sh
# Formats all C files as .clang-format says; with --check it changes nothing and names the files that differ.
# usage: scripts/format.sh [--check]
set -u
if ! command -v clang-format >/dev/null 2>&1; then
    echo 'SKIPPED the format of C files: clang-format is not installed'
    [ "${1:-}" = --check ] # without --check there was work to do
    exit
fi
files=$(find core cli serve include plugins python tests examples -name '*.[ch]' -not -path 'tests/data/*' | sort)
if [ "${1:-}" != --check ]; then
    # shellcheck disable=SC2086 # our names hold no spaces
    exec clang-format -i $files
fi
passed=0 failed=0
for file in $files; do
    if clang-format "$file" | cmp -s - "$file"; then
        passed=$((passed + 1))
    else
        echo "FAILED $file: run make format"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
