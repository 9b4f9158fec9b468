/* Inside core: what decoder-only models share: embedding, layers of attention and MLP, each added to h, final norm and
 * head. An architecture says what its modeling file calls things and which of its layers differ. */
#ifndef TENON_CORE_DECODER_H
#define TENON_CORE_DECODER_H

#include "models/gqa.h"
#include "models/models.h"
#include "models/moe_parts.h"
#include "models/rope_config.h"

/* Class names of one modeling file. */
typedef struct decoder_classes {
    const char *scope, *model, *layer, *attention, *mlp, *norm, *rotary;
    const char *embedding;  /* NULL: Embedding                                                    */
    const char *final_norm; /* of the last norm; NULL: as the others                              */
} decoder_classes;

/* Regular names: of the modeling file without "modeling_", and what its classes begin with. SPARSE: every layer has
 * experts, and no MLP has a name. */
#define DECODER_CLASSES_SPARSE(file, prefix)                                                                           \
    .scope = "modeling_" file, .model = prefix "Model", .layer = prefix "DecoderLayer",                                \
    .attention = prefix "Attention", .norm = prefix "RMSNorm", .rotary = prefix "RotaryEmbedding"
#define DECODER_CLASSES(file, prefix) DECODER_CLASSES_SPARSE(file, prefix), .mlp = prefix "MLP"

/* Names of a layer's norms: before attention and MLP, and of what they give before it is added (NULL: none). Without
 * one before it a half sees h itself; in a parallel layer the MLP then sees what attention sees. */
typedef struct decoder_norms {
    const char *attention, *after_attention, *mlp, *after_mlp;
    bool sums; /* those behind are of h with what a half gave, and become h                           */
} decoder_norms;

/* What files call modules and keys otherwise than most; a member that is NULL: as most do. */
typedef struct decoder_names {
    const char *embed, *layers, *head; /* embed_tokens, layers, lm_head                                */
    /* Either these, or the usual ones. */
    const char *hidden_key, *layers_key, *heads_key, *kv_key, *inter_key;
} decoder_names;

/* What a layer consists of. */
typedef struct decoder_layer_spec {
    const char *class_name;  /* NULL: as in decoder_classes                                            */
    const layer_kind *whole; /* instead of all below, which it may read; or NULL                      */
    const void *whole_spec;
    gqa_spec attention;
    const mixer_kind *mixer; /* instead of attention, built from mixer_spec                       */
    const void *mixer_spec;
    double keep[2], give[2]; /* of attention and MLP: factors of h and of what is added to it; 0: none     */
    bool alone;              /* attention or mixer with its norm, and nothing behind                 */
    const char *mlp_name;    /* NULL: mlp; "": its matrices are the layer's own                          */
    parts_mlp_spec mlp;
    moe_parts_spec moe;    /* instead of mlp where it has experts                                    */
    const feed_kind *feed; /* instead of both, built from feed_spec                                */
    const void *feed_spec;
    const feed_kind *tail; /* behind the layer, built from tail_spec; or NULL                       */
    const void *tail_spec;
} decoder_layer_spec;

/* One rotation of the model: what its sites are, and where its parameters stand in config.json. */
typedef struct decoder_rope {
    parts_rope_spec site; /* rotary is filled in; function NULL: the first one, with other tables */
    rope_config_spec config;
} decoder_rope;

typedef struct decoder_spec {
    const decoder_classes *classes;
    /* Where the tree hangs: the decoder is module name of parent, the head that of head_parent. NULL: "model" and
     * "lm_head" of the root. */
    graph_module *parent, *head_parent;
    const char *name;
    const decoder_names *names; /* NULL: the usual ones                                                */
    /* Defaults of the architecture before decoder_read, which 0 and NULL leave as most have them; config.json's
     * afterwards. */
    const char *act_key, *act; /* "hidden_act", "silu"                                         */
    bool prelu;                /* it may be prelu, whose weight each layer's MLP has             */
    const char *eps_key;       /* "rms_norm_eps"                                               */
    const char *positions_key; /* "max_position_embeddings", where nothing rotates                  */
    const char *final_norm;    /* "norm"; "": there is none                                      */
    parts_norm_kind norm;      /* TN_NORM_W, 1e-6; class_name is filled in                        */
    decoder_norms norms;       /* input_layernorm, post_attention_layernorm                       */
    double theta;              /* 10000                                                           */
    double partial;            /* rope_config_spec.partial                                         */
    int64_t kv_heads;          /* as many as heads */
    int64_t head_dim;          /* hidden / heads                                                  */
    bool ignore_head_dim;      /* the class does not read it                                       */
    bool no_intermediate;      /* the file may do without intermediate_size                        */
    int64_t inter_times;       /* ... which is then so many times hidden; 0: the architecture's matter */
    bool intermediates;        /* intermediate_size may be a list, which the architecture reads      */
    bool no_attention;         /* none of the layers has any, and the file no keys of it           */
    bool parallel;             /* attention and MLP side by side                                   */
    bool normed_residual;      /* what a norm before a half gives takes h's place                     */
    bool states_behind;        /* state i is what layer i gives, not what it is given              */
    bool wide;                 /* layers are added to an h of f32 whatever the model's type          */
    bool tied;
    bool no_padding;                /* the class of the embedding is told of no padding               */
    int64_t context;                /* most positions; 0: max_position_embeddings                       */
    decoder_rope rope[MODEL_ROPES]; /* decoder_read makes the first; the rest is the architecture's     */
    int rope_count;
    q_scale_params q_scale; /* of model_shape                                                          */
    bool restarts;          /* of longrope: what lies before a longer call is computed again            */
    /* Of config.json. */
    int64_t hidden, layers, vocab;
    int64_t padding;          /* of model_shape                                                        */
    int64_t embed_width;      /* of the embedding and the head; 0: hidden                             */
    const char *head_in;      /* the Linear from hidden to that width                                 */
    learnt_positions learnt;  /* of its first stage                                                   */
    decoder_layer_spec layer; /* as most layers are                                               */
    /* Changes what differs in layer i; NULL: nothing does. Errors stick in config. */
    void (*differ)(const config_reader *config, int64_t i, decoder_layer_spec *layer);
    const stage_kind *first, *last; /* before the layers and behind them; or NULL                     */
    const void *stage_spec;         /* of both                                                        */
    double embed_scale;             /* factor of the embedding, rounded to its type; 0: none                    */
    double embed_factor;            /* factor of the embedding as it is; 0: none                                */
    double residual_scale;          /* factor of what attention and MLP give; 0: none                           */
    bool head_bias;                 /* of the logits                                                         */
    double logit_scale;             /* factor of the logits; 0: none                                            */
    double logit_softcap;           /* 0: none                                                              */
} decoder_spec;

/* Reads what all of these models have in common. Errors stick in config. */
void decoder_read(const config_reader *config, decoder_spec *spec);

/* "n_positions" or "max_position_embeddings". */
int64_t decoder_positions(const config_reader *config, int64_t fallback);

/* "sliding_window": absent fallback, null 0. */
int64_t decoder_window(const config_reader *config, int64_t fallback);

/* Qwen's rule: a window only with "use_sliding_window". */
int64_t decoder_window_in_use(const config_reader *config);

/* What "layer_types" says of layer i, in the architecture's words; fallback where the key is absent. */
int32_t decoder_layer_type(const config_reader *config, int64_t i, const config_word *words, int32_t fallback);

/* Does layer i slide? As "layer_types" says, else fallback. */
bool decoder_slides(const config_reader *config, int64_t i, bool fallback);

/* The same, where all but every n-th layer slide unless the file lists them: n is "sliding_window_pattern", which
 * beside a list may be a word. */
bool decoder_slides_by(const config_reader *config, int64_t i, int64_t fallback);

/* Granite's factors of the embedding, the scores, what is added to the residual, and the logits. */
void decoder_granite_factors(const config_reader *config, decoder_spec *spec);

/* A number that must be positive; null: 0. */
double decoder_positive(const config_reader *config, const char *key, double fallback);

/* For decoder_spec.differ, Qwen's rule: layers slide as "layer_types" says, else from "max_window_layers" (28) on. */
void decoder_upper_slide(const config_reader *config, int64_t i, decoder_layer_spec *layer);

/* What models with experts have in common: how many there are (0: none in any layer, where the file has a dense MLP)
 * and how many a token gets. The two numbers are the defaults; an architecture adds the rest. */
moe_parts_spec decoder_experts(const config_reader *config, const decoder_spec *spec, const moe_parts_names *names,
                               int64_t experts, int64_t top_k);

/* The same with keys of the architecture's own; the usual ones are read, too. */
moe_parts_spec decoder_experts_of(const config_reader *config, const decoder_spec *spec, const moe_parts_names *names,
                                  const char *experts_key, int64_t experts, const char *top_k_key, int64_t top_k);

/* For decoder_spec.differ, Qwen's rule: layers in "mlp_only_layers" and all but every "decoder_sparse_step"-th have no
 * experts. */
void decoder_sparse(const config_reader *config, int64_t i, decoder_layer_spec *layer);

/* The state of decoder_flow, or NULL after an error. */
void *decoder_build(graph_builder *b, const config_reader *config, const decoder_spec *spec);

extern const model_flow decoder_flow;

#endif
