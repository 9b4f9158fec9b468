/* Tensors that a .gguf has otherwise than the checkpoint: kv_b_proj of latent attention in two, one of them turned,
 * head by head; stacks of gpt-oss's experts, turned, gates and ups apart. What it takes is a view of the checkpoint's.
 */
#include "quantize/quantize.h"

#include <string.h>

/* Sizes of the model, and the tensor's. */
typedef struct sizes {
    int64_t heads, nope, v;
    int64_t matrices, rows, columns; /* a matrix or a list of them                                          */
    bool in_turns;                   /* gates and ups of biases                                             */
} sizes;

typedef struct part {
    const char *hf, *gguf;
    void (*shape)(const sizes *s, quantize_tensor *t);
} part;

/* ---- latent attention ---------------------------------------------------------------------------------------- */

static void keys(const sizes *s, quantize_tensor *t)
{
    t->ndim = 3;
    t->matrices = s->heads;
    t->rows = s->columns;
    t->columns = s->nope;
    t->view = (quantize_view){.per = s->nope + s->v, .step = 1, .turned = true};
}

static void values(const sizes *s, quantize_tensor *t)
{
    t->ndim = 3;
    t->matrices = s->heads;
    t->rows = s->v;
    t->columns = s->columns;
    t->view = (quantize_view){.per = s->nope + s->v, .first = s->nope, .step = 1};
}

static const part latent[] = {{"self_attn.kv_b_proj.weight", "attn_k_b.weight", keys},
                              {"self_attn.kv_b_proj.weight", "attn_v_b.weight", values},
                              {0}};

/* ---- gpt-oss -------------------------------------------------------------------------------------------------- */

/* [experts,in,out] of which every step-th output is one. */
static void stack(const sizes *s, quantize_tensor *t, int64_t column, int64_t step)
{
    t->ndim = 3;
    t->matrices = s->matrices;
    t->rows = s->columns / step;
    t->columns = s->rows;
    t->view = (quantize_view){.per = s->rows, .column = column, .step = step, .turned = true};
}

static void gates(const sizes *s, quantize_tensor *t)
{
    stack(s, t, 0, 2);
}

static void ups(const sizes *s, quantize_tensor *t)
{
    stack(s, t, 1, 2);
}

static void downs(const sizes *s, quantize_tensor *t)
{
    stack(s, t, 0, 1);
}

/* [experts,2 * inter]: in turns, or all gates before all ups. */
static void biases(const sizes *s, quantize_tensor *t, int64_t number)
{
    t->ndim = 2;
    t->matrices = 1;
    t->rows = s->rows;
    t->columns = s->columns / 2;
    t->view = (quantize_view){.column = number * (s->in_turns ? 1 : t->columns), .step = s->in_turns ? 2 : 1};
}

static void gate_biases(const sizes *s, quantize_tensor *t)
{
    biases(s, t, 0);
}

static void up_biases(const sizes *s, quantize_tensor *t)
{
    biases(s, t, 1);
}

static const part gpt_oss[] = {{"mlp.experts.gate_up_proj", "ffn_gate_exps.weight", gates},
                               {"mlp.experts.gate_up_proj", "ffn_up_exps.weight", ups},
                               {"mlp.experts.down_proj", "ffn_down_exps.weight", downs},
                               {"mlp.experts.gate_up_proj_bias", "ffn_gate_exps.bias", gate_biases},
                               {"mlp.experts.gate_up_proj_bias", "ffn_up_exps.bias", up_biases},
                               {0}};

/* ---- both ------------------------------------------------------------------------------------------------------- */

static sizes sizes_of(const quantize_plan *p, const char *name, const tn_tensor *tensor)
{
    char weights[QUANTIZE_NAME];
    tn_tensor unused;
    sizes s = {.heads = config_i64(&p->config, "num_attention_heads", 1, 1, INT32_MAX),
               .nope = config_i64(&p->config, "qk_nope_head_dim", 128, 1, INT32_MAX),
               .v = config_i64(&p->config, "v_head_dim", 128, 1, INT32_MAX),
               .matrices = tensor->ndim > 2 ? tensor->shape[0] : 1,
               .rows = tensor->shape[tensor->ndim - 2],
               .columns = tensor->shape[tensor->ndim - 1]};
    size_t bare = strlen(name) - (strlen(name) > strlen("_bias") ? strlen("_bias") : 0);
    text_cut(weights, sizeof weights, "%.*s", (int)bare, name);
    s.in_turns = shards_get(p->model->weights, weights, &unused); /* its weights are, too               */
    return s;
}

bool quantize_parts_add(quantize_plan *p, const char *name, const char *known, int64_t layer, const tn_tensor *tensor)
{
    const part *list = p->arch->traits & GGUF_LATENT             ? latent
                       : !strcmp(p->arch->model_type, "gpt_oss") ? gpt_oss
                                                                 : NULL;
    bool found = false;
    for (; list && list->hf; list++) {
        if (layer < 0 || strcmp(known, list->hf) != 0 || tensor->ndim < 2)
            continue;
        const sizes s = sizes_of(p, name, tensor);
        quantize_tensor *t = &p->tensors[p->count++];
        *t = (quantize_tensor){.layer = layer, .made = -1, .from = tensor->dtype};
        list->shape(&s, t);
        text_cut(t->name, sizeof t->name, "blk.%lld.%s", (long long)layer, list->gguf);
        text_cut(t->form, sizeof t->form, "%s", name);
        found = true;
    }
    return found;
}
