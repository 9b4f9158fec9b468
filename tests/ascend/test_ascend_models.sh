#!/bin/sh
# Whole models on the simulator of an NPU, without kernels and with all of them: transformers' numbers, but for those
# whose operations the device declines.
LD_LIBRARY_PATH=$TENON_BUILD/tests/ascend_sim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} ASCEND_SIM_QUIET=1
export LD_LIBRARY_PATH ASCEND_SIM_QUIET
exec "$TENON_BUILD/tests/check_models" tests/data/models --device npu
