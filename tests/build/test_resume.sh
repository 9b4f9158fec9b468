#!/bin/sh
# tenon train: a training that was killed, at any moment, and goes on ends with the bytes of one that was not: all weights
# and an adapter, on one thread and on two. Whatever ended it, checkpoints are whole; and so they are on a full disk.
. tests/build/lib.sh
tenon=$build/tenon
steps=14

# Samples of 20 to 83 tokens each, by a linear congruential generator: the same every time.
awk 'BEGIN {
    for (i = 0; i < 21; i++) {
        line = ""
        count = 20 + i * 37 % 64
        for (t = 0; t < count; t++) {
            seed = (seed * 1103515245 + 12345 + i) % 2147483648
            line = line (t ? ", " : "") 10 + int(seed / 65536) % 900
        }
        print "{\"input_ids\": [" line "]}"
    }
}' >"$tmp/data.jsonl"
head -n 3 "$tmp/data.jsonl" >"$tmp/held.jsonl"

# train OUT THREADS ARGUMENT...: a rate at which steps change a lot, two batches a step, epochs of six steps, of which the
# last has fewer rows.
train() {
    out=$1 threads=$2
    shift 2
    exec "$tenon" train models/demo "$tmp/data.jsonl" --eval "$tmp/held.jsonl" --out "$out" --threads "$threads" --quiet \
        --dtype f32 --kernels none --lr 3e-3 --batch 2 --accumulate 2 --steps $steps --save-every 3 "$@"
}

# A number from 0 to the argument less one; each draw is another, and each run of the test has others.
seed=${RESUME_SEED:-$$}
echo "RESUME_SEED=$seed"
draw() {
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    drawn=$((seed / 65536 % $1))
}

lines() {
    if [ -f "$1/trainer_log.jsonl" ]; then wc -l <"$1/trainer_log.jsonl"; else echo 0; fi
}

# Waits until the log has so many lines, or the process is gone; and somewhat longer, up to a step or a save.
await_lines() { # OUT LINES PID
    while [ "$(lines "$1")" -lt "$2" ] && kill -0 "$3" 2>/dev/null; do sleep 0.01; done
    draw 25
    sleep "0.$(printf %02d "$drawn")"
}

# Ends the run by SIGNAL again and again, and goes on with it, until it is done. Every end is the signal's or a good one.
interrupted() { # OUT SIGNAL THREADS ARGUMENT...
    to=$1 signal=$2 threads_now=$3 ends=0
    shift 3
    while :; do
        (train "$to" "$threads_now" --resume "$@") >"$tmp/said" 2>&1 &
        pid=$!
        before=$(lines "$to")
        draw 5
        await_lines "$to" $((before + drawn + 1)) $pid
        [ "$ends" -lt 40 ] && kill -s "$signal" $pid 2>/dev/null
        wait $pid
        status=$?
        if [ "$status" -eq 0 ]; then
            [ "$ends" -eq 0 ] || break
            rm -rf "$to" # it was faster than this script: anew, with another moment
            continue
        fi
        [ "$status" -gt 128 ] || { cat "$tmp/said"; return 1; }
        ends=$((ends + 1))
        for folder in "$to"/checkpoint-*; do
            case $folder in
            *.part* | *'*') ;;
            *) [ -f "$folder/training.json" ] && [ -f "$folder/state.safetensors" ] || { ls -R "$to"; return 1; } ;;
            esac
        done
    done
    echo "$ends ends by $signal"
}

# What a run leaves but older checkpoints, of which an interrupted one has others.
same() { # OUT OUT
    for file in "$1"/*; do
        [ -f "$file" ] && { cmp "$file" "$2/$(basename "$file")" || return 1; }
    done
    diff -r "$1/checkpoint-$steps" "$2/checkpoint-$steps"
}

whole_run() {
    (train "$@")
}
for kind in --full '--lora=r=4,alpha=8'; do
    name=$(echo "$kind" | tr -d '=,-')
    check "$kind" whole_run "$tmp/$name" 1 "$kind"
    check "$kind on two threads" whole_run "$tmp/$name-2" 2 "$kind"
    check "$kind: two threads make the same bytes" same "$tmp/$name" "$tmp/$name-2"
    for signal in KILL TERM; do
        for threads in 1 2; do
            check "$kind, $threads thread(s), ended by $signal" interrupted "$tmp/$name-$signal$threads" $signal $threads "$kind"
            check "$kind, $threads thread(s), ended by $signal: the same bytes" same "$tmp/$name" "$tmp/$name-$signal$threads"
            check 'and nothing half done is left' test -z "$(find "$tmp/$name-$signal$threads" -name '*.part*')"
            rm -rf "$tmp/$name-$signal$threads"
        done
    done
done

# A disk that is full while a checkpoint is written: one line that names what cannot be written, the status, and the last
# checkpoint is whole; where there is room again, the run goes on to the same bytes.
full_disk() {
    mount -t tmpfs -o size=$1 none "$tmp/disk" || return 1
    (train "$tmp/disk/out" 1 --full) >"$tmp/said" 2>&1
    status=$?
    cat "$tmp/said"
    ls -R "$tmp/disk"
    [ "$status" -eq 4 ] && [ "$(wc -l <"$tmp/said")" -eq 1 ] && grep -q 'No space left on device.*--resume goes on behind step' "$tmp/said" &&
        [ -z "$(find "$tmp/disk/out" -name '*.part*')" ] && mount -o remount,size=1g "$tmp/disk" &&
        (train "$tmp/disk/out" 1 --full --resume) && same "$tmp/full" "$tmp/disk/out"
    status=$?
    umount "$tmp/disk"
    return $status
}
mkdir "$tmp/disk"
if mount -t tmpfs -o size=1m none "$tmp/disk" 2>/dev/null; then
    umount "$tmp/disk"
    check 'a full disk' full_disk 75m
else
    echo 'SKIPPED a full disk: a file system in memory needs root'
fi
finish
