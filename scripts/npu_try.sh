#!/bin/sh
# usage: npu_try.sh BUILD: everything that somebody with an Ascend chip is asked to run, after set_env.sh, into one file to
# send back, BUILD/npu-try.log: what is installed, texts beside the CPU's, operators, made-up cases, models, speed. A
# command that fails does not end it. QUICK=1: without made-up cases, and of the models three.
set -u
build=$1
log=$build/npu-try.log
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
wrong=0
{ date -u; uname -srm; "$build/tenon" --version; env | grep '^ASCEND_\|^LD_LIBRARY_PATH=' | sort; } >"$log" 2>&1
cat "${ASCEND_HOME_PATH:-/nowhere}"/*/ascend_toolkit_install.info >>"$log" 2>/dev/null

# usage: try NAME COMMAND...: its output, what it ended with and how long it took.
try() {
    name=$1 begin=$(date +%s)
    shift
    printf '\n==== %s: %s\n' "$name" "$*" >>"$log"
    "$@" >"$folder/$name" 2>&1
    code=$?
    cat "$folder/$name" >>"$log"
    echo "==== $name: $code, $(($(date +%s) - begin)) s" >>"$log"
    [ $code -eq 0 ] || wrong=$((wrong + 1))
    echo "$name: $([ $code -eq 0 ] && echo well || echo "ended with $code"), $(tail -n 1 "$folder/$name")"
}
text() {
    "$build/tenon" run models/demo "And it came" -n 32 --temperature 0 -q --device "$@"
}

command -v npu-smi >/dev/null && try driver npu-smi info
try headers sh tests/ascend/test_ascend_headers.sh
try text-cpu text cpu --kernels=none
try text-npu text npu --kernels=none
try text-kernels text npu --kernels=auto
try text-launched env TENON_NPU_GRAPH=no "$build/tenon" run models/demo "And it came" -n 32 --temperature 0 -q --device npu --kernels=none
for other in text-npu text-kernels text-launched; do
    cmp -s "$folder/text-cpu" "$folder/$other" || { echo "$other: another text than the CPU's" | tee -a "$log"; wrong=$((wrong + 1)); }
done
try operators "$build/tests/check_kernels" --device npu --ops tests/data/ops
models=tests/data/models
if [ "${QUICK:-0}" = 0 ]; then
    try made-up "$build/tests/check_kernels" --device npu
else
    models=$folder/few
    mkdir "$models"
    for model in llama qwen3 qwen3_moe; do ln -s "$PWD/tests/data/models/$model" "$models"; done
fi
try models "$build/tests/check_models" "$models" --device npu --skip-unsupported --config tests/data/unchecked.json
try speed "$build/tenon" bench models/demo --device npu --kernels=none
try speed-launched env TENON_NPU_GRAPH=no "$build/tenon" bench models/demo --device npu --kernels=none
try speed-kernels "$build/tenon" bench models/demo --device npu --kernels=auto
try where-time-goes "$build/tenon" bench models/demo --device npu --kernels=none --profile
echo "$wrong of these went wrong; all of it is in $log" | tee -a "$log"
