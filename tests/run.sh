#!/bin/sh
# Runs test programs, $TEST_JOBS at a time (1): a line for each, what they left out because it is not installed, the
# output of those that fail, and the sum of their checks.
# usage: tests/run.sh COMMAND...     each argument is one program with its arguments
# TEST_WITH, the words of a command, starts each of them; each file in the folder TEST_REPORTS, which is emptied first, is
# a failure.
# A program reports by libcheck's summary ("100%: Checks: 9, Failures: 0, Errors: 0") or by "9 passed, 0 failed". One
# that ends badly without saying what failed counts as one failure.
set -u
# What auto chooses does not depend on how fast the machine is; tests of that say so.
export TENON_MEASURE="${TENON_MEASURE:-no}"
# A busy machine is no failure: libcheck would give each test four seconds.
export CK_DEFAULT_TIMEOUT="${CK_DEFAULT_TIMEOUT:-300}"
# Seconds for one program; under the sanitizers all of check_kernels takes a while.
limit=${TEST_SECONDS:-1200}

# Prints "PASSED FAILED" of a program's output; nothing when it has no closing line.
counts() {
    awk '/^[0-9]+%: Checks: / { gsub(/,/, ""); seen = 1; bad += $5 + $7; good += $3 - $5 - $7 }
         /^[0-9]+ passed, [0-9]+ failed/ { seen = 1; good = $1; bad = $3 }
         END { if (seen) print good + 0, bad + 0 }' "$1"
}

# One program: its counts go to the end of the file $TEST_TALLY, its lines are printed together.
run_one() {
    command=$1
    name=$(basename "${command%% *}")
    [ "$name" = "$command" ] || case $command in *\ *) name="$name ${command#* }" ;; esac
    out=$(mktemp) || exit 1
    began=$(date +%s)
    # shellcheck disable=SC2086 # the words are programs and their arguments
    timeout "$limit" ${TEST_WITH:-} $command >"$out" 2>&1 </dev/null
    status=$?
    took=$(($(date +%s) - began))
    # shellcheck disable=SC2046 # two numbers or none
    set -- $(counts "$out")
    good=${1:-0} bad=${2:-0}
    if [ "$bad" -eq 0 ] && { [ "$status" -ne 0 ] || [ $# -eq 0 ]; }; then
        bad=1
        echo "tests/run.sh: $name ended with status $status" >>"$out"
    fi
    echo "$good $bad" >>"$TEST_TALLY"
    if [ "$bad" -eq 0 ]; then
        printf 'ok      %-50s %6d passed  %4d s\n' "$name" "$good" "$took"
        sed -n 's/^SKIPPED .*not installed.*/        &/p' "$out" | sort -u
    else
        printf 'FAILED  %-50s %6d passed, %d failed  %4d s\n' "$name" "$good" "$bad" "$took"
        tail -n 200 "$out" | sed 's/^/    /'
    fi >"$out.all"
    cat "$out.all"
    rm -f "$out" "$out.all"
}

if [ "${1:-}" = --one ]; then
    run_one "$2"
    exit 0
fi
TEST_TALLY=$(mktemp) || exit 1
export TEST_TALLY
trap 'rm -f "$TEST_TALLY"' EXIT
trap 'exit 130' INT TERM
[ -z "${TEST_REPORTS:-}" ] || { mkdir -p "$TEST_REPORTS" && rm -f "$TEST_REPORTS"/*; } || exit 1
[ $# -eq 0 ] || printf '%s\0' "$@" | xargs -0 -n 1 -P "${TEST_JOBS:-1}" "$0" --one
# What a sanitizer wrote, also of processes whose end and words nobody looks at.
for report in ${TEST_REPORTS:+"$TEST_REPORTS"/*}; do
    [ -s "$report" ] || continue
    echo "FAILED  $report"
    sed 's/^/    /' "$report"
    echo '0 1' >>"$TEST_TALLY"
done
awk '{ good += $1; bad += $2 } END { printf "%d passed, %d failed\n", good, bad; exit bad > 0 || good == 0 }' "$TEST_TALLY"
