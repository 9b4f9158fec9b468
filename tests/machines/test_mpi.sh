#!/bin/bash
# tenon --parallel under mpirun: the text of one process; what is wrong in one line, and nothing that hangs or stays.
# shellcheck source=tests/machines/mpi.sh
. "$(dirname "$0")/mpi.sh"
model=models/demo
text="And it came to pass"

ended() { # that exit status, one line of ours (but for that of a busy machine) that has each word, and nothing on stdout
    local status=$1 got=$2
    shift 2
    [ "$status" = "$got" ] && [ ! -s "$tmp/out" ] && [ "$(grep '^tenon: ' "$tmp/err" | grep -vc 'other programs had the processors')" = 1 ] || return 1
    for word in "$@"; do
        grep -q -- "$word" "$tmp/err" || return 1
    done
}
same() { # the text of one process, of which there is some
    [ -s "$tmp/alone" ] && cmp -s "$tmp/alone" "$tmp/out"
}
differs() { ! [ "$1" = "$2" ]; }

apart=auto,-npu_fused_swiglu,-npu_fused_moe
for kernels in none $apart; do
    "$tenon" run $model "$text" -n 24 --temperature 0 -q --kernels="$kernels" >"$tmp/alone" 2>/dev/null
    for n in 2 3; do
        ranks $n "$tenon" run $model "$text" -n 24 --temperature 0 -q --kernels="$kernels" --parallel "tensor=$n"
        ok "$n ranks, $kernels: status" [ $? = 0 ]
        ok "$n ranks, $kernels: the text of one process" same
    done
done
for kind in sums experts; do # bits of as many ranks
    for n in 2 3; do
        ranks $n "$tenon" run $model "$text" -n 24 --temperature 0 -q --parallel "$kind=$n"
        ok "$kind of $n: status" [ $? = 0 ]
        cp "$tmp/out" "$tmp/once"
        ranks $n "$tenon" run $model "$text" -n 24 --temperature 0 -q --parallel "$kind=$n"
        ok "$kind of $n, all kernels: the same text again" cmp -s "$tmp/once" "$tmp/out"
    done
done
"$tenon" run $model "$text" -n 24 --temperature 0 -q --speculate=4 >"$tmp/alone" 2>/dev/null
for n in 2 3; do
    ranks $n "$tenon" run $model "$text" -n 24 --temperature 0 -q --speculate=4 --parallel "pipeline=$n"
    ok "pipeline of $n, all kernels, drafts: the text of one process" same
done
"$tenon" run $model "$text" -n 24 --temperature 0 -q --kernels=$apart >"$tmp/alone" 2>/dev/null
ranks 4 "$tenon" run $model "$text" -n 24 --temperature 0 -q --kernels=$apart --parallel pipeline=2,tensor=2
ok 'two stages of two ranks: the text of one process' same
ranks 3 "$tenon" run $model "$text" -n 4 --parallel pipeline=2,tensor=2
ok 'two stages of two on three ranks' ended 2 $? 'asks for 4 ranks, 3 were started'
ranks 4 "$tenon" run $model "$text" -n 4 --kernels=npu_fused_moe --parallel pipeline # the first layer has no experts
ok 'a kernel whose sites other ranks have' sh -c "[ $? = 0 ] && grep -q 'no site of the layers that this rank has' $tmp/err"
ranks 2 "$tenon" run $model "$text" -n 4 --kernels=cpu_delta_rule --parallel pipeline
ok 'a kernel that no rank has a site for' ended 3 $? 'takes no site of this model'
ranks 5 "$tenon" run $model "$text" -n 4 --parallel pipeline
ok 'more ranks than layers' ended 2 $? 'num_hidden_layers is 4' 'at most 4 ranks' 'tensor=5'
sees=tests/data/models/qwen2_5_omni_thinker photo=tests/data/media/files/exif6_100x60.jpg
"$tenon" run $sees "$text" --image $photo --audio tests/data/media/files/s16_22k_mono.wav -n 8 --temperature 0 -q --kernels=none >"$tmp/alone"
for kind in tensor pipeline; do
    ranks 2 "$tenon" run $sees "$text" --image $photo --audio tests/data/media/files/s16_22k_mono.wav -n 8 --temperature 0 -q --kernels=none --parallel $kind
    ok "$kind, a picture and a sound" same
done
ranks 2 "$tenon" run $sees "$text" --image README.md -n 8 --parallel tensor
ok 'no picture' ended 4 $? 'is no PNG, JPEG or WebP file'
mkdir "$tmp/locked" && cp $model/*.json $model/*.txt $model/model.safetensors "$tmp/locked"
"$tenon" lock "$tmp/locked" >"$tmp/model.lock"
"$tenon" run $model "$text" -n 4 --temperature 0 -q --kernels=none >"$tmp/alone" 2>/dev/null
for kind in tensor pipeline; do
    ranks 2 "$tenon" run "$tmp/locked" "$text" -n 4 --temperature 0 -q --kernels=none --parallel $kind --lock "$tmp/model.lock"
    ok "$kind, as it was locked" same
done
printf x | dd of="$tmp/locked/model.safetensors" bs=1 seek=3000000 conv=notrunc 2>/dev/null
for kind in tensor sums pipeline; do
    ranks 2 "$tenon" run "$tmp/locked" "$text" -n 4 --kernels=none --parallel $kind --lock "$tmp/model.lock"
    ok "$kind, a byte that differs" ended 4 $? 'model.safetensors: bytes 0 to' 'not those of the lock'
done
mkdir -m 755 "$tmp/plugins" && cp -r "$build/plugins/mpi.so" "$build/plugins/mpi" "$build/plugins/npu_rope.so" "$tmp/plugins"
chmod -R go-w "$tmp/plugins"
ranks 2 "$tenon" run $model "$text" -n 4 --only-plugins "$tmp/plugins" --parallel tensor --lock "$tmp/model.lock"
ok 'plugins that are missing' ended 3 $? 'is in the lock'
"$tenon" perplexity $model models/demo/heldout.txt -q >"$tmp/alone" 2>/dev/null
ranks 2 "$tenon" perplexity $model models/demo/heldout.txt -q --parallel pipeline
ok 'perplexity of a pipeline' same
"$tenon" perplexity $model models/demo/heldout.txt -q --kernels=none >"$tmp/alone" 2>/dev/null
ranks 2 "$tenon" perplexity $model models/demo/heldout.txt -q --kernels=none --parallel tensor
ok 'perplexity' same
"$tenon" run $model "$text" -n 30 --temperature 0 -q --speculate=4 >"$tmp/alone" 2>/dev/null
ranks 2 "$tenon" run $model "$text" -n 30 --temperature 0 -q --speculate=4 --parallel tensor
ok 'drafts are taken back' same
printf 'And it came\nto pass\n/quit\n' >"$tmp/lines"
"$tenon" chat $model -n 8 --temperature 0 -q --kernels=none <"$tmp/lines" >"$tmp/alone" 2>/dev/null
timeout -k 5 200 mpirun -q -n 2 "$tenon" chat $model -n 8 --temperature 0 -q --kernels=none --parallel tensor <"$tmp/lines" >"$tmp/out" 2>"$tmp/err"
ok 'a conversation from standard input' same
for kind in tensor pipeline; do
    ranks 2 "$tenon" bench $model --prompt 64 --decode 4 --repeat 1 --kernels=none --profile --json -q --parallel $kind
    ok "messages of $kind in a profile" grep -q '"messages": {' "$tmp/out"
done

timeout -k 5 200 mpirun -q -n 2 "$build/examples/parallel" $model "$build/plugins" "$text" >"$tmp/out" 2>"$tmp/err" </dev/null
"$tenon" run $model "$text" -n 24 --temperature 0 -q --kernels=$apart >"$tmp/alone" 2>/dev/null
ok 'a program that embeds the library' same

ranks 2 "$tenon" run $model "$text" -n 4
ok 'without --parallel' ended 2 $? 'processes were started' '--parallel'
ranks 3 "$tenon" run $model "$text" -n 4 --parallel tensor=2
ok 'another number of ranks' ended 2 $? 'asks for 2 ranks, 3 were started'
ranks 2 "$tenon" run $model "$text" -n 4 --parallel halves
ok 'no such way' ended 2 $? "'halves'" tensor
ranks 2 "$tenon" run "$tmp/nothing" "$text" -n 4 --parallel tensor
ok 'no such model' ended 4 $? nothing
ranks 2 "$tenon" run $model '' --parallel tensor
ok 'no prompt' ended 4 $? 'prompt is empty'
ranks 2 "$tenon" run $model "$text" -n 4 --kernels=npu_fused_nothing --parallel tensor
ok 'no such kernel' ended 3 $? 'npu_fused_nothing'
ranks 2 "$tenon" run $model "$text" -n 4 --parallel tensor --adapter "$tmp"
ok 'an adapter' ended 2 $? adapter

# shellcheck disable=SC2016 # the rank's own variable
only_one='[ "$OMPI_COMM_WORLD_RANK" = 1 ] &&'
ranks 2 sh -c "$only_one export TENON_CPU=c; exec \"\$@\"" - "$tenon" run $model "$text" -n 4 --parallel tensor
ok 'other instruction sets' ended 3 $? 'rank 1 on' 'is not like rank 0' TENON_CPU
cp -r $model "$tmp/other" && sed -i 's/"rms_norm_eps": [^,]*/"rms_norm_eps": 0.5/' "$tmp/other/config.json"
ranks 2 sh -c "$only_one set -- \"\$1\" run '$tmp/other' And -n 4 --parallel tensor; exec \"\$@\"" - "$tenon" run $model And -n 4 --parallel tensor
ok 'another config.json' ended 4 $? 'rank 1 on' 'config.json'
ranks 2 sh -c "$only_one set -- \"\$1\" run '$tmp/nothing' And -n 4 --parallel tensor; exec \"\$@\"" - "$tenon" run $model And -n 4 --parallel tensor
ok 'a rank without the model' ended 4 $? 'rank 1 on' nothing

ranks 2 sh -c "$only_one kill -STOP \$\$; exec \"\$@\"" - "$tenon" run $model "$text" -n 4 --parallel tensor --patience 1
ok 'a rank that does not begin' ended 3 $? 'not all ranks came to MPI_Init within 20 seconds'
"$tenon" run $model "$text" -n 4 --temperature 0 -q --kernels=none >"$tmp/alone" 2>/dev/null
ranks 2 env LD_PRELOAD="$build/tests/slow_mpi.so" SLOW_MPI_STAYS=1 "$tenon" run $model "$text" -n 4 --temperature 0 -q --kernels=none --parallel tensor --patience 3
ok 'a rank that does not come to the end' [ $? -ne 124 ]
ok 'a rank that does not come to the end: rank 0 says so' grep -q '^tenon: mpi: rank 0 on .* did not come to the end within 3 seconds$' "$tmp/err"
ok 'a rank that does not come to the end: the text' same

# A user thinks for longer than ranks wait for each other.
"$tenon" chat $model -n 8 --temperature 0 -q --kernels=none <"$tmp/lines" >"$tmp/alone" 2>/dev/null
(sleep 13; cat "$tmp/lines") | timeout -k 5 200 mpirun -q -n 2 "$tenon" chat $model -n 8 --temperature 0 -q --kernels=none --parallel tensor \
    --patience 6 >"$tmp/out" 2>"$tmp/err"
ok 'a user who thinks' same

hit() { # NAME SIGNAL RANK COMMAND...: the rank gets the signal when the first text is there; standard input stays open
    local name="$1, rank $3: SIG$2" signal=$2 who=$3 status patience=120
    shift 3
    [ "$signal" = STOP ] && patience=10
    rm -f "$tmp"/pid.* "$tmp/out" # before it is looked at, whenever the shell behind & begins
    # shellcheck disable=SC2016 # the rank's own variables
    timeout -k 5 200 mpirun -q -n 2 sh -c 'echo $$ >"'"$tmp"'/pid.$OMPI_COMM_WORLD_RANK"; exec "$@"' - "$tenon" "$@" \
        --patience $patience >"$tmp/out" 2>"$tmp/err" <>"$tmp/fifo" &
    local run=$!
    for _ in $(seq 1000); do
        [ -s "$tmp/out" ] && break
        sleep 0.1
    done
    kill -"$signal" "$(cat "$tmp/pid.$who")"
    wait $run
    status=$?
    ok "$name ends all" differs $status 0
    ok "$name: not by the time limit" differs $status 124
    [ "$signal$who" = KILL1 ] && ok "$name: rank 0 says that another one ended" grep -q '^tenon: run: rank 0 on .* another rank has ended' "$tmp/err"
    [ "$signal" = STOP ] && ok "$name: the other one says who" grep -q "^tenon: .*rank $who on .* did not answer" "$tmp/err"
    for r in 0 1; do
        for _ in $(seq 100); do
            kill -0 "$(cat "$tmp/pid.$r")" 2>/dev/null || break
            sleep 0.1
        done
        ok "$name: no process stays" sh -c "! kill -0 $(cat "$tmp/pid.$r") 2>/dev/null"
    done
}
mkfifo "$tmp/fifo"
exec 9<>"$tmp/fifo"
for signal in KILL STOP; do
    for who in 0 1; do
        hit 'a long text' $signal $who run $model "$text" -n 100000 -c 200000 --ignore-eos --parallel tensor
    done
done
echo 'And it came' >&9
hit 'a user who thinks' STOP 0 chat $model -n 8 --temperature 0 -q --parallel tensor
hit 'a pipeline' STOP 1 run $model "$text" -n 100000 -c 200000 --ignore-eos --parallel pipeline
# Training: ranks that share the batches of a step make the files of one process.
train() { # OUT RANKS ARGUMENT...: 0 ranks: one process without a launcher
    local out=$1 n=$2
    shift 2
    set -- "$tenon" train $model models/demo/heldout.txt --out "$tmp/$out" --steps 5 --length 32 --save-every 2 --batch 2 --lr 1e-3 -q "$@"
    if [ "$n" = 0 ]; then
        "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    else
        ranks "$n" "$@" --parallel "replicas=$n"
    fi
}
same_training() { diff -r "$tmp/$1" "$tmp/$2" >>"$tmp/err"; }
train lora.alone 0 --accumulate 2 --lora r=4,dropout=0.2 --eval models/demo/heldout.txt
ok 'training: one process' [ $? = 0 ]
train lora.ranks 2 --lora r=4,dropout=0.2 --eval models/demo/heldout.txt
ok 'training: two ranks' [ $? = 0 ]
ok 'training: the log, checkpoints and adapter of one process' same_training lora.alone lora.ranks
for how in f32 mixed bf16; do
    train full.alone.$how 0 --accumulate 6 --full --precision $how --router-loss 0.01
    train full.ranks.$how 3 --accumulate 2 --full --precision $how --router-loss 0.01
    ok "training: all weights in $how, three ranks, twice two batches" same_training full.alone.$how full.ranks.$how
done
rm -rf "$tmp/full.ranks.f32/checkpoint-5" "$tmp/full.ranks.mixed/checkpoint-5"
train full.ranks.f32 2 --accumulate 3 --full --precision f32 --router-loss 0.01 --resume
ok 'training: two ranks go on where three were' same_training full.alone.f32 full.ranks.f32
train full.ranks.mixed 0 --accumulate 6 --full --precision mixed --router-loss 0.01 --resume
ok 'training: one process goes on where three were' same_training full.alone.mixed full.ranks.mixed
train lora.ranks 2 --lora r=4,dropout=0.2 --accumulate 2 --resume
ok 'training: another number of batches' ended 2 $? 'was begun with --accumulate 2'
train lora.ranks 2
ok 'training: DIR is there' ended 4 $? 'is there already'
cp -r $model "$tmp/broken" && head -c 65536 /dev/zero | tr '\0' '\377' | dd of="$tmp/broken/model.safetensors" bs=1 seek=3000000 conv=notrunc 2>/dev/null
ranks 2 "$tenon" train "$tmp/broken" models/demo/heldout.txt --out "$tmp/none" --steps 2 --length 32 -q --kernels none --parallel replicas
ok 'training: weights that are no numbers' ended 4 $? 'step 1' 'are not numbers'
# shellcheck disable=SC2016 # the rank's own variable
ranks 2 sh -c "$only_one set -- \"\$@\" --seed 3; exec \"\$@\"" - "$tenon" train $model models/demo/heldout.txt --out "$tmp/other.seed" -q --parallel replicas
ok 'training: another seed on a rank' ended 2 $? 'rank 1 on' 'other options'
# shellcheck disable=SC2016
ranks 2 sh -c "$only_one set -- \"\$1\" train $model '$tmp/nothing.txt' --out '$tmp/other.data' -q --parallel replicas; exec \"\$@\"" - "$tenon" train $model models/demo/heldout.txt --out "$tmp/other.data" -q --parallel replicas
ok 'training: a rank without the data' ended 4 $? 'rank 1 on' 'nothing.txt'
stop() { # SIGNAL RANK: a rank gets the signal behind the first steps
    local run
    rm -rf "$tmp"/pid.* "$tmp/stopped"
    # shellcheck disable=SC2016 # the rank's own variables
    timeout -k 5 200 mpirun -q -n 2 sh -c 'echo $$ >"'"$tmp"'/pid.$OMPI_COMM_WORLD_RANK"; exec "$@"' - "$tenon" train $model models/demo/heldout.txt \
        --out "$tmp/stopped" --steps 100000 --length 32 --save-every 1000000 --parallel replicas --patience 10 >"$tmp/out" 2>"$tmp/err" </dev/null &
    run=$!
    for _ in $(seq 600); do
        [ -s "$tmp/stopped/trainer_log.jsonl" ] && break
        sleep 0.1
    done
    kill -"$1" "$(cat "$tmp/pid.$2")"
    wait $run
}
stop INT 1
ok 'training: a rank is asked to stop' differs $? 0
ok 'training: all is saved' sh -c "[ -e $tmp/stopped/checkpoint-$(wc -l <"$tmp/stopped/trainer_log.jsonl")/state.safetensors ] && grep -q 'all is saved' $tmp/err"
stop KILL 1
ok 'training: a rank is killed' differs $? 0
stop STOP 1
ok 'training: a rank that stands still' sh -c "[ $? != 124 ] && grep -q '^tenon: .*rank 1 on .* did not answer' $tmp/err"
end
