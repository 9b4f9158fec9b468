#!/bin/sh
# Runs test programs, $TEST_JOBS at a time (1): a line for each with its seconds, and those of the processors, what they
# left out because it is not installed or takes long, the output of those that fail, a line for each of these once more,
# "failed: PROGRAM: what it said first", and the sum of their checks.
# usage: tests/run.sh COMMAND...     each argument is one program with its arguments
# TEST_WITH, the words of a command, starts each of them; each file in the folder TEST_REPORTS, which is emptied first, is
# a failure.
# A program reports by libcheck's summary ("100%: Checks: 9, Failures: 0, Errors: 0") or by "9 passed, 0 failed". One
# that ends badly without saying what failed counts as one failure.
set -u
# What auto chooses does not depend on how fast the machine is; tests of that say so.
export TENON_MEASURE="${TENON_MEASURE:-no}"
# A busy machine is no failure: libcheck would give each test four seconds, and limits of tests that have their own are
# those of a quiet machine.
export CK_DEFAULT_TIMEOUT="${CK_DEFAULT_TIMEOUT:-300}"
export CK_TIMEOUT_MULTIPLIER="${CK_TIMEOUT_MULTIPLIER:-4}"
# So does a plugin that is tried.
export TENON_TRIAL_SECONDS="${TENON_TRIAL_SECONDS:-60}"
# Seconds for one program that hangs: what takes longest, takes some minutes on a machine of its own.
limit=${TEST_SECONDS:-3600}

# Prints "PASSED FAILED" of a program's output; nothing when it has no closing line.
counts() {
    awk '/^[0-9]+%: Checks: / { gsub(/,/, ""); seen = 1; bad += $5 + $7; good += $3 - $5 - $7 }
         /^[0-9]+ passed, [0-9]+ failed/ { seen = 1; good = $1; bad = $3 }
         END { if (seen) print good + 0, bad + 0 }' "$1"
}

# What failed, as libcheck or one of our tools has it.
failing=':[FE]:\|^ *FAIL\(ED\)\{0,1\} \|^amx emulator: \|ERROR: [A-Za-z]*Sanitizer\|runtime error: '
# What a library says of itself at every start.
noise='^ascend_sim: a simulator of '

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
    times >"$out.times"
    used=$(awk 'NR == 2 { gsub(/[ms]/, " "); printf "%d", $1 * 60 + $2 + $3 * 60 + $4 }' "$out.times")
    # shellcheck disable=SC2046 # two numbers or none
    set -- $(counts "$out")
    good=${1:-0} bad=${2:-0}
    if [ "$bad" -eq 0 ] && { [ "$status" -ne 0 ] || [ $# -eq 0 ]; }; then
        bad=1
        echo "tests/run.sh: $name ended with status $status" >>"$out"
    fi
    echo "$good $bad" >>"$TEST_TALLY"
    if [ "$bad" -eq 0 ]; then
        printf 'ok      %-50s %6d passed  %4d s  %4d s of processors\n' "$name" "$good" "$took" "$used"
        sed -n '/^SKIPPED .*not installed/s/^/        /p; /^SKIPPED .* slow$/s/^/        /p' "$out" | sort -u
    else
        printf 'FAILED  %-50s %6d passed, %d failed  %4d s\n' "$name" "$good" "$bad" "$took"
        first=$(grep "$failing" "$out" | sed 's/^ *//; 1q')
        echo "failed: $name: $(printf %.300s "${first:-$(tail -n 1 "$out")}")" >>"$TEST_TALLY.failed"
        grep "$failing" "$out" | head -n 50 | sed 's/^/    /'
        echo '    ---- all that it said, the last of it'
        grep -v "$noise" "$out" | tail -n 200 | sed 's/^/    /'
    fi >"$out.all"
    cat "$out.all"
    rm -f "$out" "$out.all" "$out.times"
}

if [ "${1:-}" = --one ]; then
    run_one "$2"
    exit 0
fi
TEST_TALLY=$(mktemp) || exit 1
export TEST_TALLY
trap 'rm -f "$TEST_TALLY" "$TEST_TALLY.failed"' EXIT
trap 'exit 130' INT TERM
[ -z "${TEST_REPORTS:-}" ] || { mkdir -p "$TEST_REPORTS" && rm -f "$TEST_REPORTS"/*; } || exit 1
[ $# -eq 0 ] || printf '%s\0' "$@" | xargs -0 -n 1 -P "${TEST_JOBS:-1}" "$0" --one
# What a sanitizer wrote, also of processes whose end and words nobody looks at.
for report in ${TEST_REPORTS:+"$TEST_REPORTS"/*}; do
    [ -s "$report" ] || continue
    echo "FAILED  $report"
    sed 's/^/    /' "$report"
    echo '0 1' >>"$TEST_TALLY"
    echo "failed: $report: $(grep -m 1 . "$report")" >>"$TEST_TALLY.failed"
done
[ ! -e "$TEST_TALLY.failed" ] || cat "$TEST_TALLY.failed"
awk '{ good += $1; bad += $2 } END { printf "%d passed, %d failed\n", good, bad; exit bad > 0 || good == 0 }' "$TEST_TALLY"
