#!/bin/bash
# All public golden models under mpirun, cut in each way over each number of ranks: no kernels and all of them, f32 and bf16,
# whole, by steps and decoding greedily, within the bounds of ../shared/goldens/README.md. Not part of make check.
# Four ranks are two stages of two, too.
# usage: tests/machines/run.sh N...      MODELS: folders, ../shared/goldens/models; KINDS: ways, all of them
# shellcheck source=tests/machines/mpi.sh
. "$(dirname "$0")/mpi.sh"
[ $# -gt 0 ] || set -- 2 3 4
skipped=0 limit=7200
for n in "$@"; do
    staged=$([ "$n" != 4 ] || echo pipeline=2,tensor=2 pipeline=2,sums=2)
    for kind in ${KINDS:-tensor sums experts pipeline $staged}; do
        # shellcheck disable=SC2086 # words
        ranks "$n" "$build/tests/check_models" --parallel "$kind" ${MODELS:-../shared/goldens/models}
        status=$? last=$(tail -n 1 "$tmp/out")
        grep '^SKIP\|^FAIL' "$tmp/out" | cut -c 1-300
        read -r good bad left <<<"$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed\(, \([0-9]*\) skipped\)\{0,1\}$/\1 \2 \4/p' <<<"$last")"
        if [ -z "${good:-}" ] || { [ $status != 0 ] && [ "$bad" = 0 ]; }; then
            echo "FAILED $kind of $n ended with status $status"
            tail -n 5 "$tmp/out" "$tmp/err" | cut -c 1-300
            bad=$((${bad:-0} + 1))
        fi
        echo "$kind of $n: ${good:-0} passed, $bad failed, ${left:-0} skipped"
        passed=$((passed + ${good:-0})) failed=$((failed + bad)) skipped=$((skipped + ${left:-0}))
    done
done
[ $skipped = 0 ] || echo "$skipped skipped, as said above"
end
