#!/bin/sh
# The golden operators and the made-up cases, with denormals and unused slots of caches among them, on the simulator of
# an NPU: the device's own operations and its kernels, forward and gradients. No case may fail, no rule of the vendor's
# may be broken, and nothing may be left behind.
. tests/build/lib.sh
LD_LIBRARY_PATH=$build/tests/ascend_sim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} ASCEND_SIM_QUIET=1
export LD_LIBRARY_PATH ASCEND_SIM_QUIET

# runs [--ops DIR]: to $tmp/out and $tmp/err.
runs() {
    "$build/tests/check_kernels" --device npu "$@" >"$tmp/out" 2>"$tmp/err"
    status=$?
    tail -n 1 "$tmp/out"
    [ "$status" -eq 0 ]
}
no_failures() {
    ! grep '^ *FAILED' "$tmp/out"
}
silent() {
    cat "$tmp/err"
    [ ! -s "$tmp/err" ]
}
# Of every file something has passed: on each side where the kernels take it.
all_files() {
    for file in "$1"/*.safetensors; do
        name=$(basename "$file" .safetensors)
        sides='eager kernels'
        case $name in geglu) sides=eager ;; geglu_*) continue ;; esac
        for side in $sides; do
            grep -q "^passed $name [0-9]* bf16 npu $side " "$tmp/out" || echo "nothing of $name passed: $side"
        done
    done >"$tmp/missing"
    cat "$tmp/missing"
    [ ! -s "$tmp/missing" ]
}

for folder in tests/data/ops ../shared/goldens/ops; do
    [ -d "$folder" ] || continue
    check "$folder runs on the device" runs --ops "$folder"
    check "$folder: every case passes" no_failures
    check "$folder: every file is looked at" all_files "$folder"
    check "$folder: no broken rule, and nothing left behind" silent
    passed=$((passed + $(grep -c '^passed ' "$tmp/out")))
    grep '^SKIPPED ' "$tmp/out" | sed 's/^SKIPPED [^:]*: //' | sort | uniq -c | sort -rn
done
check 'made-up cases run on the device' runs
check 'every made-up case passes' no_failures
check 'made-up cases: no broken rule, and nothing left behind' silent
passed=$((passed + $(grep -c '^passed ' "$tmp/out")))
finish
