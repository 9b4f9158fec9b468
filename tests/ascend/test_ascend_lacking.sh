#!/bin/sh
# Installations that lack an operator: what needs it is declined with its name, and a softcap goes without aclnnTanh;
# and those that lack what graphs are made of, which change nothing but launches. The name is changed in a copy of the
# simulator's libraries, so that it is not found.
set -u
ASCEND_SIM_QUIET=1
export ASCEND_SIM_QUIET
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
passed=0 failed=0

# FUNCTION MODEL: what check_models says of the model without the operator, or the function of the runtime
without() {
    rm -rf "$folder/models"
    mkdir "$folder/models"
    cp "$TENON_BUILD"/tests/ascend_sim/lib*.so "$folder"
    LC_ALL=C sed -i "s/$1GetWorkspaceSize/${1%?}_GetWorkspaceSize/g" "$folder/libopapi.so"
    LC_ALL=C sed -i "s/$1/${1%?}_/g" "$folder/libascendcl.so"
    ln -s "$PWD/tests/data/models/$2" "$folder/models"
    LD_LIBRARY_PATH=$folder "$TENON_BUILD/tests/check_models" "$folder/models" --device npu --kernels none 2>&1
}

# NAME TEXT PATTERN: does the text have a line like that?
expect() {
    if printf '%s\n' "$2" | grep -q "$3"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAIL %s: %s\n' "$1" "$2"
    fi
}

# OPERATOR MODEL
declined() {
    expect "$2 without $1" "$(without "$1" "$2")" "the installation of CANN has no $1\\>"
}

declined aclnnErf llama_gelu
declined aclnnRelu llama_relu
declined aclnnClamp olmoe
declined aclnnSqrt gemma3n_text
declined aclnnExp qwen3_next
declined aclnnRsqrt qwen3_next
declined aclnnSoftplus qwen3_next
declined aclnnExp mamba2
declined aclnnSoftplus mamba2
declined aclnnTanh apertus
declined aclnnGtScalar phimoe
declined aclnnIndexAdd deepseek_v32
declined aclnnClamp deepseek_v32
for function in aclnnInplaceScatterUpdate aclmdlRICaptureBegin aclmdlRIExecuteAsync; do
    expect "qwen3 without $function" "$(without $function qwen3)" '^[1-9][0-9]* passed, 0 failed$'
done
expect 'gemma2 without aclnnTanh' "$(without aclnnTanh gemma2)" '^[1-9][0-9]* passed, 0 failed$'
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
