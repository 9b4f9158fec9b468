#!/bin/sh
# Searches for inputs that break a reader, with clang's libFuzzer and sanitizers: one target after the other, each for
# so many seconds. Prints what was run, and ends with status 1 when something was found. Without clang, or without the
# runtime of its fuzzer, nothing is run, and it says so.
# usage: scripts/fuzz.sh MAKE BUILD SECONDS NAME...
set -u
make=$1 build=$2 seconds=$3
shift 3
mkdir -p "$build" || exit 1

if ! echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { (void)d; (void)n; return 0; }' |
    clang -fsanitize=fuzzer,address -x c -o "$build/probe" - 2>"$build/probe.log"; then
    echo "SKIPPED fuzzing: clang with libFuzzer's runtime is not installed (Debian: clang, libclang-rt-*-dev;" \
        'scripts/setup.sh --optional)'
    exit 0
fi

$make BUILD="$build" CC=clang OPT=-O1 SETUP=no SANITIZE='-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined' \
    FUZZ_LINK=-fsanitize=fuzzer CFLAGS='-DTN_FUZZER -fno-omit-frame-pointer' -j"$(nproc)" fuzzers >"$build/make.log" 2>&1 || {
    tail -n 20 "$build/make.log"
    exit 1
}

# One target: its inputs are those of the tests, and what earlier runs here came upon. The time limit is for what hangs,
# by the wall's clock, which a busy machine stretches a hundred times: a target that promises more looks at the
# processor's clock itself.
search() {
    name=$1 log=$build/$1.log found=$build/found/$1
    dictionary=tests/fuzz/$name.dict
    mkdir -p "$build/corpus_$name" "$found"
    before=$(find "$found" -type f | wc -l)
    ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
        LSAN_OPTIONS="suppressions=$PWD/tests/sanitizers.supp:print_suppressions=0" \
        "$build/fuzz_$name" -max_total_time="$seconds" -timeout=300 -report_slow_units=300 \
        -rss_limit_mb=2048 -max_len="$(length "$name")" -print_final_stats=1 \
        ${dictionary:+$([ -e "$dictionary" ] && echo "-dict=$dictionary")} \
        -artifact_prefix="$found/" "$build/corpus_$name" "tests/data/fuzz/$name" >"$log" 2>&1
    status=$?
    after=$(find "$found" -type f | wc -l)
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
    counters=$(sed -n 's/.* cov: \([0-9]*\) ft: \([0-9]*\).*/\1 \2/p' "$log" | tail -n 1)
    total=$(sed -n 's/^INFO: Loaded 1 modules *(\([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    printf '%-12s %9s executions, %6s of %s counters of all of core covered, %d findings\n' "$name" \
        "${executions:-?}" "${counters%% *}" "${total:-?}" $((after - before))
    [ "$status" -eq 0 ] && [ "$after" -eq "$before" ] && return
    failed=1
    echo "    status $status; the end of $log:"
    grep -m 3 -E 'ERROR|runtime error|^fuzz: ' "$log" | sed 's/^/    /'
    find "$found" -type f -newer "$build/probe" | sed 's/^/    /'
}

# Bytes of the longest input.
length() {
    case $1 in
    gguf | image | audio) echo 32768 ;;
    tokenizer | sentencepiece | graph | replay) echo 16384 ;;
    *) echo 8192 ;;
    esac
}

failed=0
for each in "$@"; do
    search "$each"
done
exit "$failed"
