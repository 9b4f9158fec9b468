/* Inside core/eager: rows sorted by group (of an expert, say), each group multiplied by a matrix of its own. Work is a
 * line of items, cut by shapes and counts alone; what an item computes does not depend on where the line is cut. */
#ifndef TENON_CORE_EAGER_GROUPED_H
#define TENON_CORE_EAGER_GROUPED_H

#include "eager/gemm.h"

/* The matrix of one group: how products read it and gradients write it. data NULL: there is none. */
typedef struct grouped_matrix {
    char *data;
    tn_dtype dtype;
    int64_t stride; /* elements from row to row                                                  */
    bool oi;        /* [out,in]; else [in,out]                                                   */
    bool quantised; /* data has no meaning, codes and first have                                 */
    weight codes;
    int64_t first; /* output of the codes that it begins with                                    */
} grouped_matrix;

static inline bool grouped_is_list(tn_layout layout)
{
    return layout == TN_LAYOUT_EXPERT_LIST || layout == TN_LAYOUT_LIST_IO;
}

/* The same of a site's parameter, which may be quantised. */
grouped_matrix grouped_weight_of(const tn_site *site, tn_role role, tn_layout layout, int64_t group, int64_t first);

/* In a stack or a list; from output `first` on. */
grouped_matrix grouped_weight(const tn_param *param, tn_layout layout, int64_t group, int64_t first);

/* c [m,n] = a [m,k] times columns [column, column + n) of w^T, or of w where back is set: the way that gradients take.
 * Of shape type, m, n, k, lda and ldc are given; work as for gemm_run. */
void grouped_product(gemm_context *context, gemm_shape shape, const grouped_matrix *w, bool back, int64_t column,
                     const char *a, float *c, void *work);

/* Rows [first, first + rows) of the sorted ones, all of one group, and columns [column, column + columns) of what is
 * computed. mine: memory of the thread. */
typedef struct grouped_item {
    int64_t group, first, rows, column, columns;
    char *mine;
} grouped_item;

typedef struct grouped_pass {
    const int64_t *start; /* [groups + 1] where the rows of a group begin                           */
    int64_t groups;
    int64_t width, depth;    /* columns of the result, and multiplications per element (for balance)   */
    int64_t tile, tile_rows; /* of an item                                                             */
    bool whole;              /* an item has all rows of its group; groups without rows have items too  */
    char *threads;           /* thread_bytes for each                                                  */
    size_t thread_bytes;
    void (*item)(const void *ctx, gemm_context *context, const grouped_item *item);
    const void *ctx;
} grouped_pass;

void grouped_run(const grouped_pass *pass);

/* Gradients of the matrices: g^T x of each group's rows, laid out as param is, summed in f32 and rounded once; zeros
 * where a group has no rows. g [rows,out] and x [rows,in] in type. */
typedef struct grouped_grads {
    const tn_param *param; /* written; count 0: nothing is done                                  */
    tn_layout layout;
    int64_t first, out, in; /* output of the matrices that g begins with, and sizes of g and x   */
    tn_dtype type;
    const char *g, *x;
    int64_t ldg, ldx;
    const int64_t *start;
    int64_t groups;
    char *threads; /* thread_bytes, at least grouped_grads_bytes(), for each                     */
    size_t thread_bytes;
} grouped_grads;

size_t grouped_grads_bytes(void);
void grouped_weight_grads(const grouped_grads *grads);

#endif
