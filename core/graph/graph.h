/* Inside core: the model graph. Modules form a tree with the names and classes of transformers; scopes hold the
 * functions of a modeling file; sites are the places that perform operations. */
#ifndef TENON_CORE_GRAPH_H
#define TENON_CORE_GRAPH_H

#include "device/device.h"

typedef struct graph_module graph_module;
typedef struct graph_site graph_site;
typedef struct graph graph;

/* A node of the tree. Scopes are nodes under the graph's second root. */
struct graph_module {
    char *name, *path; /* "mlp", "model.layers.0.mlp"                                            */
    const char *class_name;
    graph_module *parent, *first_child, *last_child, *next;
    graph_site *site;          /* or NULL. One whose outer site is of this module too is what the module does
                                  together with what precedes it: the norm of a sum                      */
    int64_t parameters, bytes; /* of its own tensors                                             */
    tn_dtype dtype;            /* of its own matrices, of several the first; TN_DTYPE_NONE: it has none */
    bool apart;                /* it and what is inside takes no part in steps of tokens: a tower         */
};

/* Calls by their tokens: one, some, many. A kernel may be faster with some of them only. */
typedef enum graph_size { GRAPH_ONE, GRAPH_SOME, GRAPH_MANY, GRAPH_SIZES } graph_size;
enum { GRAPH_MANY_TOKENS = 32 };
static inline graph_size graph_size_of(int64_t tokens)
{
    return tokens <= 1 ? GRAPH_ONE : tokens < GRAPH_MANY_TOKENS ? GRAPH_SOME : GRAPH_MANY;
}

/* What performs a site now. impl NULL: eager. */
typedef struct graph_binding {
    const struct registry_kernel *kernel;
    const tn_impl *impl;
    tn_plan plan;
    const void *packed;
    uint32_t not_at;       /* a bit for each graph_size whose calls go on as if nothing were bound: that is faster */
    const char *id, *file; /* of the kernel, for messages; NULL: not known                          */
    struct run_shadow *shadow; /* performs calls in its place (run.h), or NULL                      */
    struct first_calls *first; /* sizes that its calls were compared with eager at; NULL: nobody asks    */
    bool alone; /* the kernel was taken off while arenas are made for it: eager has memory of its own    */
} graph_binding;

/* What part[] holds, by operation of the site: ADD_RMS_NORM: the norm; LORA_LINEAR: the LINEAR; MLP: gate (or the fused
 * gate_up), up, down; MOE_BLOCK: route, experts, the shared MLP, its gate. */
enum { GRAPH_PART_NORM = 0, GRAPH_PART_LINEAR = 0 };
enum { GRAPH_PART_GATE = 0, GRAPH_PART_UP = 1, GRAPH_PART_DOWN = 2 };
enum { GRAPH_PART_ROUTE = 0, GRAPH_PART_EXPERTS = 1, GRAPH_PART_SHARED = 2, GRAPH_PART_SHARED_GATE = 3 };
#define GRAPH_PARTS 4

/* The most tokens (rows times tokens per row) of one call: what kernels plan their scratch for. */
enum { GRAPH_MAX_TOKENS = 4096 };

/* A LINEAR as wide as a vocabulary is given few rows at once (run/pieces.h), so that results stay small: as many as
 * kernels are tried with, but on a tape, where gradients lay out its weights anew for each call and calls of that size
 * are compared before. */
enum { GRAPH_WIDE = 32768, GRAPH_WIDE_TOKENS = 256, GRAPH_WIDE_TRIED = 64 };
static inline bool graph_is_wide(const tn_site *site)
{
    return site->op == TN_OP_LINEAR && site->dim[TN_DIM_OUT] >= GRAPH_WIDE;
}
static inline int64_t graph_most_tokens(const tn_site *site)
{
    return graph_is_wide(site) ? GRAPH_WIDE_TOKENS : GRAPH_MAX_TOKENS;
}

/* What of a site's rows, heads or channels is this rank's. group NULL: all. */
typedef struct graph_cut {
    struct group *group;
    int64_t total, unit; /* dealt out in whole units (group.h)                                           */
} graph_cut;

struct graph_site {
    tn_site site; /* what kernels see                                                            */
    size_t index; /* in graph order: an outer site comes before those inside it                  */
    graph_module *module;
    graph_site *outer;             /* the enclosing site that a kernel may take instead, or NULL             */
    graph_site *part[GRAPH_PARTS]; /* sites that a composed operation is made of, or NULL, see below */
    graph_binding bound;
    const char *declined;                 /* why no kernel may have it; NULL: one may                                */
    const char *unadapted;                /* why no adapter can be around it; NULL: one can                           */
    bool lacking;                         /* nothing performs it: what it needs is not there (lacks.h)                */
    graph_site *product[GRAPH_PARTS - 1]; /* of experts that are cut: GROUPED_MATMULs by GRAPH_PART_GATE and so on */
    graph_cut
        cut; /* LINEAR, GROUPED_MATMUL: of what they give; MOE_EXPERTS: of the experts, or, by_parts, as MLP: of what is
                in their midst, and they are performed part by part, as is a MOE_BLOCK around such a one */
    bool stays_cut; /* nobody joins what it gives, or adds it up, but its caller               */
    bool dealt;     /* MOE_EXPERTS: cut is of the experts                                      */
    bool adds;      /* cut is of what it adds up over: what all ranks give makes the sum (steps_sum) */
    bool by_parts;  /* the parts' weights are cut: it is no operation of its own                   */
    bool staged;    /* of a layer that one rank has alone: this one, or (lacking) another          */
};

/* A step between the contracts that has numbers or an activation of its own. No kernel takes it, so it is no site of
 * the graph; devices are tried with it. */
typedef struct graph_step {
    tn_site site;
    int64_t width; /* of its rows                                                                */
} graph_step;

/* A tensor of a graph whose products are in another type than all else, and the same in that type: rounded from it. */
typedef struct graph_twin {
    const char *wide;
    char *narrow; /* NULL: nobody asked for it                                                            */
    int64_t count;
} graph_twin;

struct graph {
    graph_module *root, *scopes; /* scopes' children are the modeling files                      */
    graph_step **steps;
    size_t step_count, step_capacity;
    graph_site **sites;
    size_t site_count, site_capacity;
    tn_dtype dtype;
    tn_dtype narrow;   /* of products and attention (mixed precision); TN_DTYPE_NONE: dtype, as all else       */
    graph_twin *twins; /* owned; what they have in memory is not                                               */
    size_t twin_count, twin_capacity;
    const char *model_type;
    void *elsewhere; /* addresses of what other ranks have (elsewhere.h), or NULL                            */
    size_t elsewhere_bytes;
};

/* tree.c. Strings and nodes are owned by the graph. class_name must be static or live as long as the graph. */
graph *graph_new(tn_dtype dtype, const char *model_type, tn_error *err);
void graph_free(graph *g);
graph_module *graph_add_module(graph *g, graph_module *parent, const char *name, const char *class_name, tn_error *err);
/* Gives module its site. outer as in graph_site. All tensors of the site's params are copied into the graph. */
graph_site *graph_add_site(graph *g, graph_module *module, tn_op op, graph_site *outer, tn_error *err);
/* A site of inner's module with inner's meaning and parameters, around it and before it. */
graph_site *graph_wrap_site(graph *g, graph_site *inner, tn_op op, tn_error *err);
/* A step of module on rows of width elements; its meaning is the caller's to fill. */
graph_step *graph_add_step(graph *g, const graph_module *module, tn_op op, int64_t width, tn_error *err);
/* Whose wide tensor has these bytes, or NULL; the narrow tensor from the wide one. placing.c */
graph_twin *graph_find_twin(const graph *g, const char *data);
void graph_round_twin(const graph *g, const graph_twin *twin);
tn_status graph_set_site_param(tn_site *site, tn_role role, const tn_tensor *tensors, int64_t count, tn_error *err);
/* The site with that path; the outer one where a module has two. */
graph_site *graph_find_site(const graph *g, const char *path);

#endif
