/* A piece of work for test_memory: a model over lent memory, whose sites are called. */
#include "memory_pieces.h"

#include <string.h>

#define CONFIG                                                                                                         \
    "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForSequenceClassification\"], \"vocab_size\": 9, "         \
    "\"hidden_size\": 8, \"intermediate_size\": 12, \"num_hidden_layers\": 1, \"num_attention_heads\": 2}"

/* The first is not lent. */
static const struct {
    const char *name;
    int64_t shape[2];
} lent[] = {{"layers.0.mlp.up_proj.weight", {12, 8}},
            {"layers.0.mlp.gate_proj.weight", {12, 8}},
            {"layers.0.mlp.down_proj.weight", {8, 12}},
            {"embed_tokens.weight", {9, 8}},
            {"layers.0.self_attn.q_proj.weight", {8, 8}},
            {"layers.0.self_attn.k_proj.weight", {8, 8}},
            {"layers.0.self_attn.v_proj.weight", {8, 8}},
            {"layers.0.self_attn.o_proj.weight", {8, 8}},
            {"layers.0.input_layernorm.weight", {8, 0}},
            {"layers.0.post_attention_layernorm.weight", {8, 0}},
            {"norm.weight", {8, 0}}};

enum { LENT = sizeof lent / sizeof *lent };

/* With a kernel, gradients, and a weight that moves. */
static tn_status call(tn_model *m, uint64_t *sum, tn_error *err)
{
    float x[16] = {1, 2, 3, 4}, y[16] = {0}, dx[16] = {0}, w[8] = {1, 1, 1, 1, 2, 2, 2, 2};
    tn_tensor in = tn_tensor_dense(x, TN_F32, 2, (int64_t[]){2, 8}), out = in, dout = in;
    tn_tensor weight = tn_tensor_dense(w, TN_F32, 1, (int64_t[]){8});
    out.data = y;
    dout.data = dx;
    tn_grads grads = {.size = sizeof grads, .out = {in}, .in = {dout}};
    tn_bound *b = tn_site_bind(m, "model.norm", TN_OP_RMS_NORM, 2, err);
    tn_status status = b ? tn_bound_forward(b, &in, 1, &out, 1, err) : err->code;
    if (status == TN_OK)
        status = tn_bound_point(b, TN_ROLE_WEIGHT, &weight, 1, err);
    piece_add(sum, y, sizeof y);
    if (status == TN_OK)
        status = tn_bound_forward(b, &in, 1, &out, 1, err);
    if (status == TN_OK)
        status = tn_bound_backward(b, &in, 1, &grads, err);
    piece_add(sum, y, sizeof y);
    piece_add(sum, dx, sizeof dx);
    tn_bound_close(b);
    return status;
}

tn_status piece_borrow(const char *path, uint64_t *sum, tn_error *err)
{
    static _Alignas(64) float memory[128];
    const char *names[LENT];
    tn_tensor tensors[LENT];
    const tn_model_options o = {
        .size = sizeof o, .training = true, .per_module = true, .weights_change = true, .partial = true};
    (void)path;
    for (int i = 0; i < 128; i++)
        memory[i] = (float)(i % 11) / 8;
    for (int i = 0; i < LENT; i++) {
        names[i] = lent[i].name;
        tensors[i] = tn_tensor_dense(memory, TN_F32, lent[i].shape[1] ? 2 : 1, lent[i].shape);
    }
    tn_model *m = tn_model_borrow(CONFIG, names + 1, tensors + 1, LENT - 1, &o, err);
    tn_status status = m ? call(m, sum, err) : err->code;
    tn_model_close(m);
    return status;
}
