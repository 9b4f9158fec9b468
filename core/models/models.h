/* Inside core: architectures. One file per modeling file of transformers says what the tree looks like and how data
 * flows through it; models.c lists them. */
#ifndef TENON_CORE_MODELS_H
#define TENON_CORE_MODELS_H

#include "graph/build.h"
#include "run/steps.h"

/* What a layer is given by those before it: h, and what still has to be added to it. A run has more that layers write
 * to: layer_inputs, chosen, and keys. */
typedef struct model_walk {
    tn_tensor h, sum;
    bool trails; /* sum has to be added                                                            */
} model_walk;

/* How data flow through what an architecture has built; state is what its build returned. */
typedef struct model_flow {
    void (*free_state)(void *state);
    /* Rows [n,H] of the result to logits [n,V]. */
    tn_tensor (*logits)(graph_run *r, const void *state, const tn_tensor *x);
    const model_shape *(*shape)(const void *state);
    /* From token ids to the final norm: what comes before the layers, each of them, what comes behind, which fills
     * r->result. h and sum stay where they are. */
    void (*begin)(graph_run *r, const void *state, model_walk *walk);
    void (*layer)(graph_run *r, const void *state, int64_t i, model_walk *walk);
    void (*end)(graph_run *r, const void *state, model_walk *walk);
} model_flow;

typedef struct model_arch {
    const char *model_type; /* config.json's "model_type"                                        */
    const char *class_name; /* of the causal language model, the root of the tree                */
    /* Builds a decoder's tree under b->graph->root. config's errors stick in b, as building's do. The state is the
     * flow's; NULL with b->err filled on failure. */
    void *(*build)(graph_builder *b, const config_reader *config);
    const struct multimodal_spec *media; /* instead of build: of a model that sees or hears             */
} model_arch;

/* A published type around another, which is what runs: its config is an object of config.json, and its tensors have
 * other names. */
typedef struct model_wrapper {
    const char *model_type, *class_name;
    const char *config;              /* the object                                                          */
    const char *inner;               /* what it holds where that says no model_type                         */
    const build_alias *aliases;      /* of all names of the inner one; see graph_builder.outer              */
    bool text_only;                  /* towers stand beside it, which are not read                          */
    const struct tower_kind *vision; /* but for this one, built beside it                             */
    const char *token_key;           /* the id that stands for rows of pictures                         */
    int64_t token;
} model_wrapper;

#define ARCHITECTURE(name) extern const model_arch name##_arch;
#include "models/architectures.h"
#undef ARCHITECTURE

/* The entry for model_type, or NULL with an error that names the nearest. models.c */
const model_arch *models_find(const char *model_type, tn_error *err);

/* The entry for model_type; NULL where it is none. Their names by number, NULL behind the last. wrappers.c */
const model_wrapper *models_wrapper(const char *model_type);
const char *models_wrapper_name(size_t i);

/* Is it the name of a tensor that stands beside a wrapped text model? wrappers.c */
bool models_stands_beside(const char *name);

/* What builds the model, as model_arch.build, and how data flow through what it has built. around: what it is published
 * inside, or NULL; config: that of the whole, inner the model's own. models.c */
void *models_build(const model_arch *arch, const model_wrapper *around, graph_builder *b, const config_reader *config,
                   const config_reader *inner);
const model_flow *models_flow(const model_arch *arch, const model_wrapper *around);

/* All of these in turn, but for layers that another rank has (stages.h). models.c */
void models_forward(const model_flow *flow, graph_run *r, const void *state);

/* Has the type a loss of its routers (load_balancing_loss_func)? models.c */
bool models_balances(const char *model_type);

/* May a checkpoint of this type hold the tensor although the model of so many layers reads it nowhere? unread.c */
bool models_leaves(const char *model_type, int64_t layers, const char *name);

#endif
