/* Inside core: the table of operations. What a contract is stands here once: its name, what of a site's meaning it has,
 * the shapes of its tensors, what may share memory, what has gradients, how much work it is. Checking, drawing,
 * matching, timing and reports read it. A new operation is a row in table.c and an eager file. */
#ifndef TENON_CORE_OP_H
#define TENON_CORE_OP_H

#include <tenon/operation.h>

enum { OP_INPUTS = 7, OP_OUTPUTS = 3, OP_PARAMS = 32 };

/* What of its meaning a site must have for a tensor to be there; all zero: always there. */
typedef struct op_when {
    uint64_t features; /* all of these                                                            */
    uint32_t layouts;  /* one of these, as bits; 0: whatever it is                                */
    uint32_t norms;    /* the same of TN_AXIS_NORM                                                */
} op_when;

/* A tensor's shape is a short text: one letter for its type, then one letter for each dimension. A digit before a
 * dimension multiplies it: "d2IH" is a tensor of the site's dtype, with 2 x intermediate rows of hidden elements.
 *
 * Types: d the site's dtype, w that of routing weights, r that of router logits, c that of rotary tables, y that of
 * results of the scan; f f32, i i32, l i64.
 *
 * Dimensions of the site (tn_site.dim): H hidden, I intermediate, J intermediate of the shared expert, O out, W width,
 * D head, V head of values, R width of rotary tables, N query heads, K key/value heads, E experts, k experts of a
 * token, L rank of an adapter, M and m of all experts' beside gate and up, and beside down, G like D where decay is per
 * channel, else no dimension, F taps of a filter, P taps less one, Z residual streams, Q streams squared.
 *
 * Dimensions of the call: B rows of the batch, T tokens, S cached positions, C capacity, A any number; b either B or 1;
 * 1 itself; * any number of dimensions. The same letter is the same number in all tensors of a call. */
typedef struct op_tensor {
    const char *name, *shape; /* NULL: no more                                                     */
    op_when when;
    bool optional; /* of an output: no data where it is not wanted                                 */
    bool constant; /* of an input: it has no gradient                                              */
    bool unread;   /* of an input: backward does not read it, so it may have no data there         */
} op_tensor;

/* How much of a parameter one token uses. */
typedef enum op_use { OP_USE_ALL, OP_USE_TOP_K, OP_USE_ONE } op_use;

/* A parameter. Its shape has no letter for the type: that is the site's TN_AXIS_WEIGHT, or any float. */
typedef struct op_param {
    tn_role role;
    const char *shape; /* NULL: no more                                                            */
    op_when when;
    op_use use;
    bool per_expert; /* one tensor for each expert                                                 */
    bool any_float;  /* f32, bf16 or f16, whatever the other parameters are                        */
    bool maybe;      /* a site may do without                                                      */
    bool constant;   /* it has no gradient                                                         */
} op_param;

typedef enum op_kind {
    OP_CONTRACT, /* kernels can take it                                                           */
    OP_STEP,     /* between the contracts: devices perform it, kernels do not match it            */
    OP_LATER     /* has a name; nothing performs it                                               */
} op_kind;

typedef struct op_row {
    tn_op op;
    const char *name;
    op_kind kind;
    bool composed;          /* the graph composes it of others; devices need not have it              */
    uint32_t needs, allows; /* axes that a match must name values for, and that it may, as bits        */
    uint64_t features;      /* TN_HAS_... that a site may have                                         */
    uint32_t dims;          /* dimensions that every site has, as bits                                 */
    uint32_t more_dims;     /* that some sites have                                                    */
    uint32_t nums;          /* numbers that a site may have, as bits                                   */
    op_tensor in[OP_INPUTS], out[OP_OUTPUTS];
    op_param param[OP_PARAMS];
    int in_place; /* so many of its first outputs may be the memory of the inputs of the same number and type */
    /* Letters of outputs that are cut together where ranks have parts of it, whose results are those of the whole;
     * NULL: none. */
    const char *cut;
    bool picks; /* output 1 says which, output 0 how much: their columns come in any order            */
    /* Multiplications and additions of a call; NULL: those of its products with parameters. */
    double (*operations)(const tn_call *call);
    /* What else a site of this operation must fulfil; NULL: nothing. */
    tn_status (*check)(const tn_site *site, tn_error *err);
} op_row;

/* The row of an operation, or NULL: there is no such operation. table.c */
const op_row *op_find(tn_op op);

/* All rows, in the order of the table; NULL behind the last. table.c */
const op_row *op_at(size_t index);

/* Is the tensor or parameter there at this site? shape.c */
bool op_is_there(const op_when *when, const tn_site *site);

/* Inputs of a call of the site, and outputs: all, or without the optional ones. shape.c */
int op_in_count(const op_row *row, const tn_site *site);
int op_out_count(const op_row *row, const tn_site *site, bool with_optional);

/* What the free letters stand for; -1: not met yet. */
typedef struct op_free {
    int64_t rows, tokens, cached, capacity, any;
    int32_t lead_count; /* of *                                                                    */
    int64_t lead[TN_MAX_DIMS];
} op_free;

/* Which outputs are optional: bit i for out[i]. shape.c */
uint32_t op_optional_outputs(tn_op op);

extern const op_free op_nothing_free; /* all -1 */

/* Those of calls that are made up: batch rows of tokens each, behind cached positions. Operations on a list of tokens
 * get all of them. */
op_free op_free_of(const op_row *row, int64_t batch, int64_t tokens, int64_t cached);

/* Its type alone. shape.c */
tn_dtype op_dtype_of(const char *spec, const tn_site *site);

/* The same of one tensor of a parameter; its type is the weights' own. op_param_shape: without strides, which the sizes
 * of a site that nobody made a tensor of may be too large for. */
tn_tensor op_param_tensor(const op_param *param, const tn_site *site);
tn_dtype op_param_shape(const op_param *param, const tn_site *site, int32_t *ndim, int64_t shape[TN_MAX_DIMS]);

/* The role of the groups of columns that belong to a weight's; 0: it can have none, since it is no matrix that files
 * quantise. shape.c */
tn_role op_group_role(tn_role role);

/* Columns of a group, of so many of which a row is made (meaning.h); 0: no 2^n gives that number. shape.c */
int64_t op_group_columns(int64_t columns, int64_t groups);

/* Tensors of one parameter: 1, or one for each expert. */
int64_t op_param_count(const op_param *param, const tn_site *site);

/* The dimension of a site that a letter stands for; TN_DIM_MAX: it stands for something else. shape.c */
tn_dim op_dim_of(char letter);

/* Does t have the shape that spec describes? Binds free letters. shape.c */
bool op_fits(const char *spec, const tn_site *site, op_free *free_letters, const tn_tensor *t);

/* A call of the site, its tensors dense and without data, optional outputs included. shape.c */
tn_call op_call_of(const op_row *row, const tn_site *site, const op_free *free_letters);

/* Has this tn_norm a gate? meaning.c */
bool op_norm_is_gated(int32_t norm);

/* The last value of an axis, 0 for an axis that there is not; is there such a dimension? meaning.c */
int32_t op_last_value(tn_axis axis);
bool op_knows_dim(tn_dim dim);

/* Has it a gradient? Indices have none, and what is constant. table.c */
bool op_input_has_gradient(const op_row *row, int input, tn_dtype dtype);
bool op_param_has_gradient(const op_row *row, tn_role role, tn_dtype dtype);

/* Operations (additions and multiplications) and bytes that one forward call must at least move: each tensor and each
 * parameter that its tokens use once. Shapes are read, data is not. work.c */
double op_operations(const tn_call *call);
double op_bytes(const tn_call *call);

/* Most that a dimension of a site may be: what is computed of several stays within 64 bits. */
#define OP_LARGEST_DIM (INT64_C(1) << 40)

/* Does a site fulfil its operation's row: every axis, dimension and number, and every parameter with its shape?
 * Whatever stands in it, nothing is used before it is checked. TN_E_USAGE with the name of what is missing or wrong.
 * contract.c */
tn_status op_check_site(const tn_site *site, tn_error *err);

/* Do the tensors of a call fit? Checks number, dtype, shape and strides of in and out (not of out where call->grads is
 * set), and of every gradient with data. For tensors that come from outside; the graph's own fit. TN_E_USAGE with the
 * tensor's name when one does not. contract.c */
tn_status op_check_call(const tn_call *call, tn_error *err);

/* Tokens of a call: the dimensions before the last one, or the first two where there are heads. shape.c */
int64_t op_tokens(const tn_call *call);

#endif
