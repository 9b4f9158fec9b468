/* The models that make_checkpoint knows: their configuration and the tensors that follow from it. */
#ifndef MAKE_CHECKPOINT_SPEC_H
#define MAKE_CHECKPOINT_SPEC_H

#include "weights.h"

#include <stdio.h>

typedef struct spec {
    const char *name, *class_name, *model_type;
    int64_t hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, max_positions, bos, eos;
    int64_t experts, top_k, expert_intermediate; /* 0: dense                                       */
    double eps, theta;
    bool tied, head_norm, llama3_rope;
    bool block_sparse_moe; /* Mixtral's names of experts and of their keys                           */
    bool gemma;            /* four norms by 1 + w in a layer, and Gemma 2's keys                       */
} spec;

/* The model called name, or NULL. */
const spec *spec_find(const char *name);
void spec_list(FILE *out);

/* All tensors in file order. Owned: free(). NULL when out of memory. */
weights_tensor *spec_tensors(const spec *s, tn_dtype dtype, size_t *count);

/* config.json and generation_config.json. false: could not write. */
bool spec_write_config(const spec *s, tn_dtype dtype, const char *folder);

#endif
