/* Inside core: building a model graph from a checkpoint. */
#ifndef TENON_CORE_BUILD_H
#define TENON_CORE_BUILD_H

#include "checkpoint/checkpoint.h"
#include "device/pages.h"
#include "graph/graph.h"

/* Memory that weights were copied to because they were asked for in another dtype, were not aligned to their elements,
 * or had to go to a device. Owned by the model. Many tensors lie in one block where the host can address it. */
typedef struct build_copies {
    const device *device;
    pages *blocks;
    size_t count, capacity;
    size_t used;    /* of the last block                                                              */
    char *together; /* so many bytes are kept for what comes next (build_together)                  */
    size_t together_bytes;
    int64_t total;
} build_copies;

/* All tensors are there: nobody writes to them any more. */
void build_copies_protect(build_copies *copies);
void build_copies_free(build_copies *copies);

/* What files call a piece of a tensor's name that the tree calls otherwise: ".mlp.", ".block_sparse_moe.". */
typedef struct build_alias {
    const char *tree, *file;
} build_alias;

/* What belongs to the codes that begin at data. */
typedef struct build_quantised {
    const void *data;
    shards_parts parts;
} build_quantised;

/* The first error sticks: after it every function below does nothing and returns NULL or false, so an architecture's
 * build can be written as a straight line and look at status once. */
typedef struct graph_builder {
    graph *graph;
    shards *weights;
    const device *device;
    build_copies *copies;
    tn_dtype dtype;
    const build_alias *aliases; /* applied one after the other until a file has the name; {0} ends them; or NULL */
    const build_alias *outer;   /* the same of what the file wraps around the model: each of its own, after those  */
    int (*progress)(void *ctx, const char *what, int64_t done, int64_t total); /* or NULL         */
    void *progress_ctx;
    int64_t done_bytes, total_bytes;
    struct group *group;       /* the ranks that parts are cut over, or NULL                                 */
    struct group *sums;        /* the ranks that add up what each half of a layer gives, or NULL             */
    bool whole_experts;        /* ... with experts dealt out, none of which is cut                           */
    struct group *stages;      /* the ranks that layers are dealt out to, or NULL                            */
    bool staged, elsewhere;    /* what is built now is of a layer that is dealt out; to another rank         */
    bool dequantise;           /* quantised weights are copied as values of dtype                           */
    bool whole_prompt;         /* tokens of a prompt see all of it, by what is around the model            */
    bool base;                 /* config.json names the base class, which has no head                       */
    bool bare;                 /* the tensor that was found last lacks the "model." of a causal model        */
    struct build_lacks *lacks; /* of borrowed memory (lacks.h); NULL: a checkpoint's files             */
    build_quantised *quantised;
    size_t quantised_count, quantised_capacity;
    tn_status status;
    tn_error *err;
} graph_builder;

/* Records a failure; returns NULL so that callers can `return build_fail(...)`. */
void *build_fail(graph_builder *b, tn_status code, const char *where, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

graph_module *build_module(graph_builder *b, graph_module *parent, const char *name, const char *class_name);

/* Is there a tensor "<module path>.<name>" in the checkpoint, under this name or an alias? */
bool build_has(graph_builder *b, const graph_module *module, const char *name);

/* On a device with memory of its own: the count tensors of so many elements, in the builder's type, that are read next
 * follow one another there, so that it may see them as one; ends with a count of 0. */
void build_together(graph_builder *b, int64_t count, int64_t elements);

/* The tensor "<module path>.<name>", checked to have the shape and to be floating, in the model's dtype; quantised
 * matrices stay as they lie, and build_param gives sites their scales. */
bool build_tensor(graph_builder *b, graph_module *module, const char *name, int32_t ndim, const int64_t *shape,
                  tn_tensor *out);

/* The element of the tensor "<module path>.<name>", which has no other: ndim 0 or 1. In the model's dtype. */
bool build_number(graph_builder *b, graph_module *module, const char *name, int32_t ndim, float *out);

/* Does the device perform the step in the model's dtype? For what a model may do without. */
bool build_performs(const graph_builder *b, tn_op op);

/* Some of one dimension of a tensor (once it is turned), one range behind the other. */
enum { BUILD_RANGES = 3 };
typedef struct build_ranges {
    int32_t count;
    struct build_range {
        int64_t first, rows;
    } at[BUILD_RANGES];
} build_ranges;
int64_t build_ranges_rows(const build_ranges *ranges);

/* A tensor that is not taken as it stands: kept in a dtype of its own (0: the model's); with its last two dimensions
 * changed over: the file has them in the other order, shape is that of the result; or, before that, seen with other
 * dimensions than those of the file, which are file (NULL: they are the same). shape is that of the file's whole, also
 * where only ranges of its dimension dim are taken. */
typedef struct build_form {
    tn_dtype dtype;
    bool turned;
    int32_t file_ndim;
    const int64_t *file;
    const build_ranges *ranges;
    int32_t dim;
} build_form;
bool build_tensor_as(graph_builder *b, graph_module *module, const char *name, int32_t ndim, const int64_t *shape,
                     const build_form *form, tn_tensor *out);

/* In how many columns the matrix "<module path>.<name>" may be cut, so that codes stay what they are: 1 where it has
 * none, 0 where they do not. */
int64_t build_columns_unit(graph_builder *b, const graph_module *module, const char *name);

/* A row of numbers that no file has, in a dtype of its own, in the device's memory. */
bool build_values(graph_builder *b, tn_dtype dtype, int64_t count, const float *values, tn_tensor *out);
/* The same of ones, in the model's dtype. */
bool build_ones(graph_builder *b, int64_t count, tn_tensor *out);
/* Vectors that build_tensor gave, of one length, as rows of a matrix. */
bool build_stack(graph_builder *b, const tn_tensor *rows, int64_t count, tn_tensor *out);

/* The tensor "<module path>.<name>" as it lies in the file, of any shape; in full what the file calls it, or would. */
bool build_find(graph_builder *b, const graph_module *module, const char *name, char *full, size_t size,
                tn_tensor *out);
/* What transformers calls a module of the tree, in the model that is published around this one, too. */
void build_published(const graph_builder *b, const char *path, char *out, size_t size);

/* Has the tensor "<module path>.<name>" this shape? False where there is none. */
bool build_has_shape(graph_builder *b, const graph_module *module, const char *name, int32_t ndim,
                     const int64_t *shape);

/* Gives module its site, inside outer (or NULL). */
graph_site *build_site(graph_builder *b, graph_module *module, tn_op op, graph_site *outer);

/* A step of module between the contracts, on rows of width elements. NULL after an error. */
tn_site *build_step(graph_builder *b, const graph_module *module, tn_op op, int64_t width);

/* Rows [first, first + count) of a matrix that build_tensor gave, as a tensor of its own. */
tn_tensor build_rows(graph_builder *b, const tn_tensor *of, int64_t first, int64_t count);

/* What the builder itself holds. */
void build_end(graph_builder *b);

/* The step's parameter of that role. step as build_step gave it. */
void build_step_params(graph_builder *b, tn_site *step, tn_role role, const tn_tensor *tensors, int64_t count);
void build_step_param(graph_builder *b, tn_site *step, tn_role role, const tn_tensor *tensor);

/* The site's parameter of that role, with the scales of what is quantised; its TN_AXIS_WEIGHT is their dtype. */
void build_param(graph_builder *b, graph_site *site, tn_role role, const tn_tensor *tensors, int64_t count);

/* The same tensors as from has under from_role, if it has any. from may be NULL. */
void build_lend(graph_builder *b, graph_site *to, tn_role role, const graph_site *from, tn_role from_role);

#endif
