#!/bin/bash
# COUNT times (100) one of the processes of a model that is cut over ranks ends, or stands still, at a random moment while
# ranks load, take a prompt or make text: all others end, with a status that is not 0 unless the text was whole, and a line
# says why; nothing stays. A script of minutes, not part of make check.
# usage: tests/machines/kill.sh [COUNT [SEED]]      SEED: another row of moments, 1
# shellcheck source=tests/machines/mpi.sh
. "$(dirname "$0")/mpi.sh"
count=${1:-100} RANDOM=${2:-1} patience=15 # a busy machine, and many ranks of few processors
# The longest that a rank may wait for others, at MPI_Init, at the end of the program or between (20 s at least), and what a
# busy machine takes to load and to end.
most=$((2 * 20 + 120))
model=models/demo
prompt=$(head -c 2000 models/demo/heldout.txt)
shared=$(mktemp -d /dev/shm/tenon-kill-XXXXXX) || exit 1
trap 'rm -rf "$tmp" "$shared"' EXIT
export OMPI_MCA_btl_vader_backing_directory=$shared

left() { # processes that have this script's mark
    grep -slz "^TENON_KILL=$tmp\$" /proc/[0-9]*/environ | wc -l
}
run() { # N KIND TOKENS: in the background; $pid is mpirun's
    rm -f "$tmp"/pid.* "$tmp/out" "$tmp/err"
    # shellcheck disable=SC2016 # the rank's own variables
    env TENON_KILL="$tmp" mpirun -n "$1" sh -c 'echo $$ >"$TENON_KILL/new.$OMPI_COMM_WORLD_RANK" && mv "$TENON_KILL/new.$OMPI_COMM_WORLD_RANK" "$TENON_KILL/pid.$OMPI_COMM_WORLD_RANK"; exec "$@"' \
        - "$tenon" run $model "$prompt" -n "$3" -c 150000 --ignore-eos --temperature 0 --parallel "$2" --patience $patience \
        >"$tmp/out" 2>"$tmp/err" </dev/null &
    pid=$!
}
pause() { # MILLISECONDS
    sleep "$(printf %d.%03d $(($1 / 1000)) $(($1 % 1000)))"
}
speaks() { # does rank 0 say something where it is ended by SIGTERM?
    local caught
    caught=$(sed -n 's/^SigCgt:\t//p' "/proc/$(cat "$tmp/pid.0" 2>/dev/null)/status" 2>/dev/null)
    (((0x${caught:-0} >> 14) & 1))
}
said() { # WHO
    grep -q '^tenon: .\|(interrupted)$' "$tmp/err" && return 0
    # mpirun tells where rank 0 itself was ended, and where Open MPI, whose MPI_Init then fails, ends it before SIGTERM does.
    [ "$1" = 0 ] || [ ! -s "$tmp/out" ] && grep -q 'mpirun noticed\|exited on signal\|exit code' "$tmp/err" && return 0
    ! $spoke # where rank 0 is not up yet nobody has a say
}

for n in 2 3; do
    for kind in tensor sums experts pipeline; do
        began=$(date +%s%3N)
        run $n "$kind" 12
        wait $pid
        ok "$kind of $n, undisturbed" [ $? = 0 ]
        took=$(($(date +%s%3N) - began))
        cp "$tmp/out" "$tmp/whole.$n.$kind"
    done
done
for i in $(seq "$count"); do
    n=$((2 + RANDOM % 2)) kinds=(tensor sums experts pipeline) signals=(KILL TERM INT STOP)
    kind=${kinds[RANDOM % 4]} signal=${signals[RANDOM % 4]} who=$((RANDOM % (n + 1))) moment=$((RANDOM * 32768 + RANDOM))
    tokens=$((RANDOM % 4 ? 100000 : 12))
    [ $who = $n ] && who=mpirun
    run $n "$kind" $tokens
    # What has not become mpirun yet would act as this script where it is ended.
    while [ "$(cat /proc/$pid/comm 2>/dev/null)" = bash ]; do :; done
    pause $((moment % (took * 3 / 2)))
    while [ $who != mpirun ] && [ ! -e "$tmp/pid.$who" ] && kill -0 $pid 2>/dev/null; do sleep 0.05; done
    spoke=false
    speaks && spoke=true
    name="$i: $kind of $n, $tokens tokens, SIG$signal to $who after $((moment % (took * 3 / 2))) ms, SEED ${2:-1}"
    case $who in
    mpirun) target=$pid ;;
    *) target=$(cat "$tmp/pid.$who" 2>/dev/null) ;;
    esac
    kill -"$signal" "$target" 2>/dev/null
    [ $who"$signal" = mpirunSTOP ] && sleep 1 && kill -KILL $pid # who stops the launcher alone has stopped what ends the others
    [ $who"$signal" = mpirunSTOP ] && signal=KILL
    (for _ in $(seq $most); do sleep 1; kill -0 $pid 2>/dev/null || exit; done; touch "$tmp/hangs"; kill -KILL $pid) &
    watch=$!
    wait $pid 2>/dev/null
    status=$?
    kill -KILL $watch
    wait $watch 2>/dev/null
    ok "$name: ends" [ ! -e "$tmp/hangs" ]
    rm -f "$tmp/hangs"
    for _ in $(seq 100); do
        [ "$(left)" = 0 ] && break
        sleep 0.1
    done
    ok "$name: no process stays" [ "$(left)" = 0 ]
    # shellcheck disable=SC2046 # numbers
    [ "$(left)" = 0 ] || kill -KILL $(grep -slz "^TENON_KILL=$tmp\$" /proc/[0-9]*/environ | sed 's/[^0-9]//g')
    # What Open MPI's own files are to its launcher nobody clears where that is killed, but orte-clean.
    if [ $who"$signal" != mpirunKILL ]; then
        ok "$name: no file of Open MPI stays" [ -z "$(find "$TMPDIR" -mindepth 1 ! -name 'ompi.*.[0-9]*' ; find "$TMPDIR" -mindepth 2)" ]
        ok "$name: no shared memory stays" [ -z "$(find "$shared" -mindepth 1)" ]
        ok "$name: a line says why, status $status" eval "[ $status = 0 ] || said $who"
    fi
    rm -rf "${TMPDIR:?}"/* "${shared:?}"/*
    ok "$name: no other file stays" [ -z "$(find "$tmp" -name '*.tmp*' -o -name '*.new*' -o -name 'new.*')" ]
    ok "$name: status $status is 0 of whole text only" eval "[ $status != 0 ] || cmp -s '$tmp/out' '$tmp/whole.$n.$kind'"
done
end
