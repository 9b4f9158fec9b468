#!/bin/sh
# Which lines of core the C tests run: builds with gcc's --coverage in a folder of its own, runs the tests, and prints
# for each folder of core and in total how many lines were run. uncovered.txt there lists, file by file, the lines that
# no test ran and that report an error; index.txt has every file. What ends by _exit or a signal, such as the children in
# which kernels are tried, leaves no counts behind, so the figures are too low by those.
# Left out: the tools that run whole models (check_models and so on).
# usage: scripts/coverage.sh MAKE BUILD [FOLDER...]     folders of tests to run, in place of all
set -u
make=$1 build=$2
shift 2
folders=$*

if ! command -v gcovr >/dev/null 2>&1; then
    echo 'SKIPPED coverage: gcovr is not installed (Debian: gcovr; scripts/setup.sh --optional)'
    exit 0
fi
$make BUILD="$build" CC=gcc OPT=-O1 SETUP=no CFLAGS='--coverage -fprofile-update=atomic' LDFLAGS=--coverage \
    -j"$(nproc)" tests >"$build.log" 2>&1 || {
    tail -n 20 "$build.log"
    exit 1
}
find "$build" -name '*.gcda' -delete
# shellcheck disable=SC2046 # names without spaces
set -- $(for t in tests/*/test_*.c; do
    name=$(basename "$t" .c)
    folder=$(basename "$(dirname "$t")")
    case " ${folders:-$folder} " in
    *" $folder "*) [ ! -x "$build/tests/$name" ] || echo "$build/tests/$name" ;;
    esac
done)
echo "$# test programs${folders:+, of tests/ $folders}"
TENON_BUILD=$(cd "$build" && pwd) TENON_MEASURE=no TEST_JOBS=${TEST_JOBS:-$(nproc)} tests/run.sh "$@" >"$build/tests.log" 2>&1
status=$?
tail -n 1 "$build/tests.log"
[ "$status" -eq 0 ] || grep '^FAILED' "$build/tests.log"

gcovr --root . --filter 'core/' --object-directory "$build/obj/core" --json "$build/coverage.json" \
    --txt "$build/index.txt" --gcov-ignore-parse-errors "$build/obj/core" >"$build/gcovr.log" 2>&1 || {
    tail "$build/gcovr.log"
    exit 1
}
python3 scripts/coverage.py "$build/coverage.json" "$build/uncovered.txt"
exit "$status"
