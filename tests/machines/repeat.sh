#!/bin/bash
# A model that is cut by sums gives one answer, whenever messages come: COUNT times (100) logits and a text, with other delays
# in all messages each time (tests/slow_mpi). A script of minutes, not part of make check.
# usage: tests/machines/repeat.sh [COUNT]
# shellcheck source=tests/machines/mpi.sh
. "$(dirname "$0")/mpi.sh"
model=models/demo text='And it came to pass'
input 40 >"$tmp/in.safetensors"
for i in $(seq 0 "${1:-100}"); do
    [ "$i" = 0 ] || export SLOW_MPI_SEED="$i"
    for n in $([ "$i" = 0 ] && echo 2 3 || echo $((2 + i % 2))); do
        preload=$([ "$i" = 0 ] || echo "LD_PRELOAD=$build/tests/slow_mpi.so")
        # shellcheck disable=SC2086 # one word or none
        ranks $n env $preload "$tenon" logits $model --input "$tmp/in.safetensors" --output "$tmp/logits.$i" --parallel sums -q
        ok "run $i, $n ranks: logits" [ $? = 0 ]
        # shellcheck disable=SC2086 # one word or none
        ranks $n env $preload "$tenon" run $model "$text" -n 24 --temperature 0.8 --seed 3 -q --parallel sums
        ok "run $i, $n ranks: a text" [ $? = 0 ]
        if [ "$i" = 0 ]; then
            mv "$tmp/logits.0" "$tmp/logits.of.$n" && mv "$tmp/out" "$tmp/text.of.$n"
        else
            ok "run $i, $n ranks, late by seed $i: the same logits" cmp "$tmp/logits.of.$n" "$tmp/logits.$i"
            ok "run $i, $n ranks, late by seed $i: the same text" cmp "$tmp/text.of.$n" "$tmp/out"
            rm -f "$tmp/logits.$i"
        fi
    done
done
end
