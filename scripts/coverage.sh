#!/bin/sh
# Which lines of core the tests run: builds in a folder of its own, with clang's counters in core alone, runs the tests,
# and prints for each folder of core and in total how many lines were run. uncovered.txt there lists, file by file, the
# lines that no test ran, those that report an error marked; core.lcov has the counts of every line.
# The counters lie in a file that all processes map (LLVM's continuous mode), so that what ends by _exit or a signal
# counts as well: the children in which kernels are tried, the program in tests of faults. Behind a fork in the same
# function the lines of one of the two processes may look as if nothing had run them: counts there are differences.
# What runs: all test programs, but those of the simulator of an NPU's libraries; the program, where they start it; and
# check_models, check_kernels on the golden operators, check_tokenizers and check_templates.
# usage: scripts/coverage.sh MAKE BUILD [FOLDER...]     folders of tests to run, in place of all and of the tools
set -u
make=$1 build=$2
shift 2
folders=$*

for tool in clang llvm-profdata llvm-cov python3; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "SKIPPED coverage: $tool is not installed (Debian: clang, llvm, python3; scripts/setup.sh --optional)"
        exit 0
    }
done
mkdir -p "$build"
$make BUILD="$build" CC=clang OPT=-O1 SETUP=no COVERAGE_LINK=-fprofile-instr-generate \
    COVERAGE='-fprofile-instr-generate -fcoverage-mapping -mllvm -runtime-counter-relocation' \
    -j"$(nproc)" tests >"$build/build.log" 2>&1 || {
    tail -n 20 "$build/build.log"
    exit 1
}
TENON_BUILD=$(cd "$build" && pwd)
tools=$TENON_BUILD/tests
rm -rf "$build/counts"
mkdir "$build/counts"

set --
for t in tests/*/test_*.c; do
    program=$tools/$(basename "$t" .c)
    folder=$(basename "$(dirname "$t")")
    case $t in tests/ascend*) [ -n "$folders" ] || continue ;; esac
    case " ${folders:-$folder} " in
    *" $folder "*) [ ! -x "$program" ] || set -- "$@" "$program" ;;
    esac
done
[ -n "$folders" ] || set -- "$tools/check_models --hidden tests/data/models" "$@" \
    "$tools/check_kernels tests/data/ops" "$tools/check_tokenizers tests/data/tokenizers" \
    "$tools/check_templates tests/data/templates"
echo "$# test programs${folders:+, of tests/ $folders}"
# Counters slow down: the tests' own limits hold for builds without.
export TENON_BUILD TENON_MEASURE=no CK_DEFAULT_TIMEOUT="${CK_DEFAULT_TIMEOUT:-900}" TEST_SECONDS="${TEST_SECONDS:-3000}"
LLVM_PROFILE_FILE=$TENON_BUILD/counts/%m%c.profraw TEST_JOBS=${TEST_JOBS:-$(nproc)} \
    tests/run.sh "$@" >"$build/tests.log" 2>&1
status=$?
tail -n 1 "$build/tests.log"
[ "$status" -eq 0 ] || grep '^FAILED' "$build/tests.log"

# All programs link the same objects of core.
llvm-profdata merge -sparse "$build"/counts/*.profraw -o "$build/core.profdata" &&
    llvm-cov export -format=lcov -instr-profile="$build/core.profdata" "$build/libtenon.so" >"$build/core.lcov" &&
    python3 scripts/coverage.py "$build/core.lcov" "$build/uncovered.txt" || exit 1
exit "$status"
