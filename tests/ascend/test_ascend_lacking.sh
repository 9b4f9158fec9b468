#!/bin/sh
# Installations that lack an operator: what needs it is declined with its name, and a softcap goes without aclnnTanh.
# The operator's name is changed in a copy of the simulator's library, so that it is not found.
set -u
ASCEND_SIM_QUIET=1
export ASCEND_SIM_QUIET
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

# OPERATOR MODEL: what check_models says of the model without the operator
without() {
    rm -rf "$folder/models"
    mkdir "$folder/models"
    cp "$TENON_BUILD"/tests/ascend_sim/lib*.so "$folder"
    LC_ALL=C sed -i "s/$1GetWorkspaceSize/${1%?}_GetWorkspaceSize/g" "$folder/libopapi.so"
    ln -s "$PWD/tests/data/models/$2" "$folder/models"
    LD_LIBRARY_PATH=$folder "$TENON_BUILD/tests/check_models" "$folder/models" --device npu --kernels none 2>&1
}

# OPERATOR MODEL
declined() {
    if without "$1" "$2" | grep -q "the installation of CANN has no $1\\>"; then
        echo "ok   $2 without $1"
    else
        echo "FAIL $2 is not declined without $1"
        failed=1
    fi
}

declined aclnnErf llama_gelu
declined aclnnRelu llama_relu
declined aclnnClamp olmoe
declined aclnnSqrt gemma3n_text
declined aclnnExp qwen3_next
declined aclnnRsqrt qwen3_next
declined aclnnSoftplus qwen3_next
if without aclnnTanh gemma2 | grep -q '^[1-9][0-9]* passed, 0 failed'; then
    echo "ok   gemma2 without aclnnTanh"
else
    echo "FAIL gemma2 without aclnnTanh"
    failed=1
fi
exit $failed
