#!/bin/sh
# usage: npu_count.sh BUILD: what an Ascend device is asked to do for a token and for a prompt, counted by its simulator.
# Shapes: Qwen3-0.6B with two and with three layers and a small vocabulary, from which 28 are reckoned (the last layer of
# a prompt is not like the others: it gives the last token alone); and a model of 128 experts, 8 for a token, whose widths
# are a quarter of Qwen3-30B-A3B's, so that it takes a few minutes: launches, executors and descriptors do not depend on
# widths. Its 48 layers are reckoned from two and three as well.
set -eu
build=$(cd "$1" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/experts.json" <<'C'
{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": false, "decoder_sparse_step": 1,
 "head_dim": 128, "hidden_act": "silu", "hidden_size": 512, "intermediate_size": 1536, "max_position_embeddings": 4096,
 "mlp_only_layers": [], "moe_intermediate_size": 192, "norm_topk_prob": true, "num_attention_heads": 8,
 "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 3, "num_key_value_heads": 1, "rms_norm_eps": 1e-06,
 "rope_theta": 1000000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 4096}
C
for layers in 2 3; do
    "$build/tests/make_checkpoint" --like qwen3-0.6b --layers $layers --vocab 4096 "$folder/dense.$layers" >/dev/null
    "$build/tests/make_checkpoint" --config "$folder/experts.json" --layers $layers "$folder/experts.$layers" >/dev/null
done
LD_LIBRARY_PATH=$build/tests/ascend_sim ASCEND_SIM_QUIET=1
export LD_LIBRARY_PATH ASCEND_SIM_QUIET
"$build/tests/npu_count" "Qwen3-0.6B's shape" 28 "$folder/dense.2" "$folder/dense.3" "$build/plugins"
"$build/tests/npu_count" "128 experts" 48 "$folder/experts.2" "$folder/experts.3" "$build/plugins"
