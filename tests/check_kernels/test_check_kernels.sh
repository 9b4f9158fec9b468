#!/bin/sh
# Can check_kernels fail? A kernel with one fault at a time must be caught with the right words, and a folder of golden
# files that is missing, empty, broken or incomplete is a failure, not a crash.
. tests/build/lib.sh
tool=$build/tests/check_kernels

# finds FAULT STATUS WORDS: with the fault, the tool ends like this and prints a line with these words.
finds() {
    BAD_KERNEL=$1 "$tool" --plugins "$build/tests/bad_kernels" --test rms_norm --group 'rms_norm w f32 c' --tier c \
        >"$tmp/out" 2>&1
    status=$?
    if [ "$status" -ne "$2" ] || ! grep -F "$3" "$tmp/out"; then
        echo "status $status"
        cat "$tmp/out"
        false
    fi
}
fault() {
    check "a kernel with the fault '$1' is caught: $2" finds "$1" 1 "$2"
}

check 'the kernel without a fault passes' finds 'no fault' 0 'passed rms_norm w f32 c'
fault beside 'wrote beside output 0'
fault gap 'wrote between the rows of output 0'
fault input 'wrote to input 0, which is read-only'
fault weight 'wrote to parameter 0, which is read-only'
fault scratch 'wrote beside scratch 0'
fault NaN 'output 0 element 0 is nan'
fault crash 'Segmentation fault'
fault error 'no reason'
fault inaccurate 'the reference has'
fault threads 'one thread (here 2'
fault alignment 'memory shifted'
if [ "$(uname -m)" = x86_64 ]; then
    fault control 'forward changed MXCSR'
    fault 'control of a worker' 'forward changed MXCSR'
fi
fault gradient 'gradient of input 0 element'
fault 'no weight gradient' 'gradient of role 0 element'

# On a device: its own operations, and kernels for it. The bad one has norms in f32 alone.
# finds_far FAULT SIDE STATUS WORDS [ARGUMENT...]: as above, with what the device brings for SIDE.
finds_far() {
    fault=$1 side=$2 expected=$3 words=$4
    shift 4
    BAD_KERNEL=$fault "$tool" --device bad --plugins "$build/tests/bad_kernels" --test rms_norm --tier "$side" "$@" \
        >"$tmp/out" 2>&1
    status=$?
    if [ "$status" -ne "$expected" ] || ! grep -F "$words" "$tmp/out"; then
        echo "status $status"
        cat "$tmp/out"
        false
    fi
}
golden_on_cpu() {
    "$tool" --device cpu --ops tests/data/ops
}
far_fault() {
    for side in eager kernels; do
        check "the fault '$1' of a device is caught: $side, $2" finds_far "$1" $side 1 "$2" --group 'rms_norm w f32 bad'
    done
}

far_goldens="--ops tests/data/ops --group rmsnorm"
for side in eager kernels; do
    check "the device without a fault passes: $side" finds_far 'no fault' $side 0 "passed rms_norm w f32 bad $side" \
        --group 'rms_norm w f32 bad'
    # shellcheck disable=SC2086 # words
    check "it passes golden cases: $side" finds_far 'no fault' $side 0 "passed rmsnorm 3 f32 bad $side" $far_goldens
    # shellcheck disable=SC2086
    check "golden cases find a fault: $side" finds_far inaccurate $side 1 'output 0 is ' $far_goldens
    # shellcheck disable=SC2086
    check "golden gradients find a fault: $side" finds_far gradient $side 1 'gradient of input 0 is ' $far_goldens
done
# shellcheck disable=SC2086
check 'what a device declines is told' finds_far 'no fault' eager 0 \
    'SKIPPED rmsnorm 0 bf16 bad eager: it has only norms in f32 with a weight' $far_goldens
# shellcheck disable=SC2086
check 'what a kernel declines is told' finds_far 'no fault' kernels 0 \
    'SKIPPED rmsnorm 0 bf16 bad kernels: dtype: site has bf16, kernel takes f32' $far_goldens
# shellcheck disable=SC2086
check 'skips are counted' finds_far 'no fault' eager 0 '5 passed, 0 failed, 10 skipped' $far_goldens --group 'rmsnorm '
check 'nothing but skips is no success' finds_far 'no fault' eager 1 '0 passed, 0 failed, ' --group 'rms_norm w gated'
check 'an unknown device' finds_far 'no fault' eager 3 "'bad:1' cannot be opened" --device bad:1
check 'a device that does nothing is caught' finds_far nothing eager 1 'output 0 element 0 is ' --group 'rms_norm w f32 bad'
check 'the CPU is a device, too' golden_on_cpu
check 'a device is not timed' finds_far 'no fault' eager 2 'usage: check_kernels' --bench
far_fault beside 'wrote beside output 0'
far_fault gap 'wrote between the rows of output 0'
far_fault input 'wrote to input 0, or beside it, which is read-only'
far_fault weight 'wrote to parameter 0, or beside it, which is read-only'
far_fault NaN 'output 0 element 0 is nan'
far_fault crash 'Segmentation fault'
far_fault error 'no reason'
far_fault late 'what was lined up failed'
far_fault inaccurate 'eager has'
far_fault alignment 'memory right'
far_fault gradient 'gradient of input 0 element'
far_fault 'no weight gradient' 'gradient of role 0 element'
check "the fault 'scratch' of a device's kernel is caught" finds_far scratch kernels 1 'wrote beside scratch 0' \
    --group 'rms_norm w f32 bad'

# golden DIR STATUS WORDS: the status of --ops DIR, and a line that it prints.
golden() {
    "$tool" --tier c --ops "$1" >"$tmp/out" 2>&1
    status=$?
    if [ "$status" -ne "$2" ] || ! grep -F "$3" "$tmp/out"; then
        echo "status $status"
        cat "$tmp/out"
        false
    fi
}
# tensors FILE BYTES JSON: a safetensors file with zeros.
tensors() {
    printf "\\$(printf %o ${#3})\\0\\0\\0\\0\\0\\0\\0%s" "$3" >"$1"
    head -c "$2" /dev/zero >>"$1"
}

check 'a missing folder' golden "$tmp/none" 4 'No such file or directory'
mkdir "$tmp/empty" "$tmp/broken" "$tmp/lacking" "$tmp/shapes" "$tmp/unknown"
check 'an empty folder' golden "$tmp/empty" 4 'no golden files'
cp tests/data/ops/rmsnorm.safetensors "$tmp/broken"
head -c 100 tests/data/ops/rope.safetensors >"$tmp/broken/rope.safetensors"
check 'a broken file' golden "$tmp/broken" 1 'broken/rope.safetensors: '
check 'the files beside a broken one' golden "$tmp/broken" 1 'passed rmsnorm 0 f32 c'
tensors "$tmp/lacking/rope.safetensors" 4 '{"0.cos":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
check 'a case without its tensors' golden "$tmp/lacking" 1 'lacks the tensor 0.sin'
tensors "$tmp/shapes/rmsnorm.safetensors" 44 \
    '{"0.x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"0.weight":{"dtype":"F32","shape":[7],"data_offsets":[16,44]}}'
check 'shapes that do not fit' golden "$tmp/shapes" 1 'FAILED rmsnorm 0 f32 c'
cp tests/data/ops/rmsnorm.safetensors "$tmp/unknown/softmax.safetensors"
check 'an operation that no test knows' golden "$tmp/unknown" 1 'SKIPPED softmax'
finish
