#!/bin/sh
# Whole models on the simulator of an NPU, without kernels and with all of them: transformers' numbers. The simulator's
# rotation rounds narrow types once, where transformers rounds three times (how often the vendor's does is written down
# nowhere); gemma3n_text, whose sparse gates are chosen by rounding, is then twice as far off in bf16, so it goes without
# npu_fused_rope.
set -e
LD_LIBRARY_PATH=$TENON_BUILD/tests/ascend_sim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} ASCEND_SIM_QUIET=1
export LD_LIBRARY_PATH ASCEND_SIM_QUIET
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ln -s "$PWD/tests/data/models/gemma3n_text" "$folder"
"$TENON_BUILD/tests/check_models" "$folder" --device npu --kernels none --kernels npu_fused_rmsnorm
"$TENON_BUILD/tests/check_models" tests/data/models --device npu --without gemma3n_text
