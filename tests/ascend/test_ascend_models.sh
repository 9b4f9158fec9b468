#!/bin/sh
# Whole models on the simulator of an NPU, without kernels and with all of them: transformers' numbers. They go without
# the check before use, so that no kernel that it would refuse is spared.
set -eu
LD_LIBRARY_PATH=$TENON_BUILD/tests/ascend_sim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} ASCEND_SIM_QUIET=1
export LD_LIBRARY_PATH ASCEND_SIM_QUIET
failed=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/models"
for model in tests/data/models/*/; do
    case $model in
    */gemma3n/) continue ;; # its tower is left out there: see below
    esac
    ln -s "$PWD/${model%/}" "$folder/models"
done
"$TENON_BUILD/tests/check_models" "$folder/models" --device npu --config tests/data/unchecked.json >"$folder/output" || failed=1
cat "$folder/output"
# No model is declined.
declined=$(sed -n 's/^SKIP \([^ ]*\) .*/\1/p' "$folder/output" | sort -u | tr '\n' ' ')
[ -z "$declined" ] || { echo "declined are $declined"; failed=1; }
# Without its tower it is its text model, and a line says so.
text() {
    "$TENON_BUILD/tenon" run tests/data/models/gemma3n --tokens 1,11,25,7,41,90,33,5 -n8 --temperature=0 --dtype=f32 --kernels=none --json "$@"
}
ids='s/^{"tokens": *\(\[[^]]*\]\).*/\1/'
there=$(text --device npu 2>"$folder/said" | tr -d '\n' | sed "$ids")
here=$(text 2>/dev/null | tr -d '\n' | sed "$ids")
if [ -z "$here" ] || [ "$there" != "$here" ] || ! grep -q 'does not perform DEPTHWISE, which the tower needs' "$folder/said"; then
    cat "$folder/said"
    echo "gemma3n on the NPU: $there, here: $here"
    failed=1
fi
exit $failed
