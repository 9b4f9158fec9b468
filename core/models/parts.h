/* Inside core: the modules that most architectures consist of, with the names and classes of transformers. Every
 * function builds a module and its sites, reads its tensors, and gives NULL after an error, which sticks in b. */
#ifndef TENON_CORE_PARTS_H
#define TENON_CORE_PARTS_H

#include "graph/build.h"

/* What a modeling file makes products with: NULL where it is torch's Linear. */
typedef struct parts_linear_kind {
    const char *class_name;
    bool turned;       /* files have weights as [in,out]                                            */
    const char *inner; /* the Linear inside, where the module holds one; NULL: it is one            */
} parts_linear_kind;
extern const parts_linear_kind parts_conv1d; /* transformers' Conv1D                               */

/* A Linear and its LINEAR site, inside outer (or NULL). Where a model is cut over ranks and there is no outer site,
 * each rank has some rows of it, and what they give is joined by steps_linear. */
graph_site *parts_linear(graph_builder *b, graph_module *parent, const char *name, int64_t in, int64_t out, bool bias,
                         graph_site *outer);
graph_site *parts_linear_of(const parts_linear_kind *kind, graph_builder *b, graph_module *parent, const char *name,
                            int64_t in, int64_t out, bool bias, graph_site *outer);

/* Which of its rows a rank has: those of ranges, which is one part of cut.total; stays: nobody joins what they give but
 * who asked. cut.group NULL: all rows. adds: of its columns, and what all ranks give is added up; rank 0 has the bias.
 */
typedef struct parts_share {
    graph_cut cut;
    build_ranges ranges;
    bool stays, adds;
} parts_share;

/* Some of total rows of one matrix, in units; where there are fewer units than ranks, all of them. */
parts_share parts_share_of(const graph_builder *b, int64_t total, int64_t unit);
/* The same of what is between the products of half a layer (heads, the inner row of an MLP), also where the model is
 * cut by sums. name: the tensor of the product behind it, whose codes are to stay together. */
parts_share parts_inner_of(const graph_builder *b, int64_t total, int64_t unit);
int64_t parts_inner_unit(graph_builder *b, const graph_module *m, const char *name, int64_t columns);
/* The same, but only where the model is cut by sums: of what is whole on every rank else. */
parts_share parts_summed_of(const graph_builder *b, int64_t total, int64_t unit);
/* By sums: the columns of the product behind it. Else nothing. */
parts_share parts_back_of(const graph_builder *b, const parts_share *inner);
/* What s gives is to be added up; stays: by whom it is inside of. */
void parts_add_up(graph_site *s, const parts_share *inner, bool stays);
/* In place of a bias that another rank adds. */
bool parts_zeros(graph_builder *b, int64_t count, tn_tensor *out);
/* The units in which rows are dealt out that have no order of their own: as many as products compute side by side, but
 * no fewer than 8, since products of one row or some may be summed in another order. */
int64_t parts_unit(const graph_builder *b, int64_t rows);
/* The rows of a matrix that has so many for each of what was shared out. */
parts_share parts_share_rows(const parts_share *share, int64_t of_each);
/* The same range once more, `by` rows further on: of another projection in the same matrix. */
void parts_share_again(parts_share *share, int64_t by);

/* What is in the midst of a site is cut, where cut.group is set: it is performed part by part. */
void parts_cut(graph_site *s, graph_cut cut);

graph_site *parts_linear_share(const parts_linear_kind *kind, graph_builder *b, graph_module *parent, const char *name,
                               int64_t in, int64_t out, bool bias, graph_site *outer, const parts_share *share);
/* The same where the share is of something; else as parts_linear_of. */
graph_site *parts_linear_some(const parts_linear_kind *kind, graph_builder *b, graph_module *parent, const char *name,
                              int64_t in, int64_t out, bool bias, const parts_share *share);

/* A norm of a modeling file: by root mean square, or LAYER_NORM, which also takes the mean away. */
typedef struct parts_norm_kind {
    const char *class_name;
    tn_norm variant; /* of an RMS norm                                                            */
    double eps;
    bool layer_norm, bias; /* LAYER_NORM; with a bias                                             */
    bool plain;            /* LAYER_NORM without either, which is one with a weight of ones       */
} parts_norm_kind;

/* A norm with its RMS_NORM or LAYER_NORM site. of_sum: the model adds a residual right before it, so that an
 * ADD_RMS_NORM site of the same module encloses that of an RMS norm. */
graph_site *parts_norm(graph_builder *b, graph_module *parent, const char *name, const parts_norm_kind *kind,
                       int64_t width, bool of_sum);

/* down_proj(act(gate_proj) * up_proj): module, MLP site and the LINEAR sites inside. */
typedef struct parts_mlp_names {
    const char *gate, *up, *down; /* gate: of both where the layout has them in one               */
} parts_mlp_names;
typedef struct parts_mlp_spec {
    const char *class_name;
    const parts_mlp_names *names; /* NULL: gate_proj, or gate_up_proj of both, up_proj, down_proj */
    int64_t hidden, inter;
    tn_act act;
    tn_layout layout; /* 0: SPLIT; GATE_UP: one matrix of both, gate first; UP_DOWN: without a gate */
    bool bias;
    const parts_linear_kind *linear; /* NULL: Linear                                              */
    double sparsity;                 /* share of gates that are cut off (TN_HAS_SPARSITY); 0: none               */
} parts_mlp_spec;
graph_site *parts_mlp(graph_builder *b, graph_module *parent, const char *name, const parts_mlp_spec *spec,
                      graph_site *outer);

/* The same of a module that is there. */
graph_site *parts_mlp_of(graph_builder *b, graph_module *m, const parts_mlp_spec *spec, graph_site *outer);

/* The function of a modeling file that rotates q and k, as a site of the file's scope: one per file. */
typedef struct parts_rope_spec {
    const char *function;
    const char *variant; /* tells calls of it with other shapes apart; NULL: there are none       */
    tn_rope style;
    int64_t heads, kv_heads, head_dim, rotary;
    bool merged;    /* its tables are made of three axes                                          */
    bool roundings; /* what follows hangs on its roundings                                        */
} parts_rope_spec;
graph_site *parts_rope(graph_builder *b, const char *scope, const parts_rope_spec *spec);

/* A step of module that multiplies rows of width elements by a number; NULL: there is nothing to do, by is 1, or 0,
 * which means that there is none. */
tn_site *parts_factor(graph_builder *b, const graph_module *module, double by, int64_t width);

/* A step of module that applies act to rows of width elements, ACT or GLU. Errors stick in b: xIELU has parameters,
 * which an MLP alone reads. */
tn_site *parts_act_step(graph_builder *b, const graph_module *module, tn_op op, tn_act act, int64_t width);

/* What an activation's name in config.json means. */
tn_act parts_act(const config_reader *config, const char *key, const char *fallback);

#endif
