/* Inside core: the values of quantised weights, a piece of a row at a time. */
#ifndef TENON_CORE_WEIGHT_H
#define TENON_CORE_WEIGHT_H

#include <stdbool.h>
#include <tenon/operation.h>

/* One matrix [rows,columns] of codes, and what they are multiplied with (meaning.h, above tn_role). Borrowed. */
typedef struct weight {
    const tn_tensor *codes, *scale, *zero; /* the last two or NULL                                */
    const int32_t *group;                  /* of each column; NULL: they follow one another       */
    int64_t group_columns;                 /* of one group, where they do                          */
} weight;

/* scale, zero and group may be NULL. */
weight weight_make(const tn_tensor *codes, const tn_tensor *scale, const tn_tensor *zero, const tn_tensor *group);

/* Tensor index of the site's parameter. */
weight weight_of(const tn_site *site, tn_role role, int64_t index);

/* The values of elements [column, column + count) of a row, as f32 or rounded once to bf16 or f16. */
void weight_read(const weight *w, int64_t row, int64_t column, int64_t count, tn_dtype dtype, void *out);

#endif
