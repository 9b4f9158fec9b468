/* Inside core/checkpoint: turning the tensors of a quantised folder into what meaning.h says of quantised weights. Each
 * method of quantisation is a table of rules; what they share is in quantised_parts.c and quantised_packed.c. */
#ifndef TENON_CORE_QUANTISED_H
#define TENON_CORE_QUANTISED_H

#include "checkpoint/checkpoint.h"

enum { QUANTISED_NAME = 512 };

/* A method at work: what quantization_config says and the tensors do not. */
typedef struct quantised {
    shards *set;
    shards_loop loop;
    int64_t block[2]; /* rows and columns that share a scale; 0: as the scales' shape says                 */
    int64_t group;    /* columns of a group; 0: as the number of groups says                               */
    uint32_t bits;    /* bit n: codes of n bits may occur                                                  */
    bool symmetric;   /* zero points are in the middle, whatever is stored                                 */
    int32_t add;      /* to zero points as they are stored                                                 */
    tn_error *err;
} quantised;

typedef struct quantised_part {
    char name[QUANTISED_NAME];
    const char *file;
    tn_tensor tensor;
} quantised_part;

/* One kind of tensor: those whose names end in leaf; what stands before is the stem. Each rule meets all tensors before
 * the next one does; those that a rule has hidden meet no other. */
typedef struct quantised_rule {
    const char *leaf;
    tn_status (*turn)(quantised *q, const char *stem, quantised_part *part);
} quantised_rule;

typedef struct quantised_method {
    void (*read)(quantised *q, const config_reader *config); /* failures are config's; or NULL    */
    const quantised_rule *rules;                             /* leaf NULL ends them                */
} quantised_method;

extern const quantised_method quantised_fp8, quantised_compressed, quantised_gptq, quantised_awq, quantised_mxfp4,
    quantised_bitsandbytes, quantised_modelopt;

/* ---- tensors by name (quantised_parts.c) ------------------------------------------------------- */

/* The tensor stem + leaf; false where there is none. Without one need fails, naming the tensor that it belongs to. */
bool quantised_find(const quantised *q, const char *stem, const char *leaf, quantised_part *part);
tn_status quantised_need(const quantised *q, const char *stem, const char *leaf, const quantised_part *beside,
                         quantised_part *part);

/* TN_E_INPUT: "tensor 'NAME': TEXT", in its file. */
tn_status quantised_fail(const quantised *q, const quantised_part *part, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Fails unless it is of that type (TN_DTYPE_NONE: any), shape and not empty; a size of -1 may be any. */
tn_status quantised_want(const quantised *q, const quantised_part *part, tn_dtype dtype, int32_t ndim,
                         const int64_t *shape);

/* Fails where scales are no numbers: of another type, NaN, infinite. U8 is taken for F8_E8M0. */
tn_status quantised_check_scales(const quantised *q, quantised_part *part);

/* Memory of the set's; NULL: out of memory, said of part. */
void *quantised_keep(const quantised *q, const quantised_part *part, size_t bytes);

/* The same values at an address that is aligned for them; *t a dense tensor of part's. */
tn_status quantised_align(const quantised *q, const quantised_part *part, tn_tensor *t);

/* Columns of a group where count groups cover them: asked, where that is such a number, else as meaning.h deduces them,
 * else what divides them evenly; 0: none of these. */
int64_t quantised_columns(int64_t columns, int64_t count, int64_t asked);

/* Where groups of so many columns are not what meaning.h deduces: the group of each column. */
tn_status quantised_group_list(const quantised *q, const quantised_part *part, int64_t columns, int64_t count,
                               int64_t each, tn_tensor *group);

/* Scales and, where needed, groups of columns of codes [rows,columns], from one scale, one of each row, those of groups
 * in each row, or a grid of blocks, which are cut at the edges. */
tn_status quantised_scales(const quantised *q, quantised_part *scale, int64_t rows, int64_t columns,
                           shards_parts *parts);

/* [groups,rows] becomes [rows,groups], in the same type. */
tn_status quantised_turned_scales(const quantised *q, quantised_part *scale, tn_tensor *turned);

/* Adds stem + leaf in the place of from, which is hidden. */
tn_status quantised_add(const quantised *q, const char *stem, const char *leaf, const quantised_part *from,
                        const tn_tensor *codes, const shards_parts *parts);

/* Hides it; spent: it was copied, and its pages of the file are given back. */
void quantised_drop(const quantised *q, const quantised_part *part, bool spent);

/* A rule: the tensor is of no use here. */
tn_status quantised_ignore(quantised *q, const char *stem, quantised_part *part);

/* ---- codes in words (quantised_packed.c) -------------------------------------------------------- */

/* Streams of codes of so many bits, low bits first, in words of 32. A stream is a row of the matrix, or a column. */
typedef struct quantised_packed {
    const char *words;  /* at any address                                                          */
    int64_t step, next; /* bytes from a stream's word to its next one, and from a stream to the next */
    int32_t bits;       /* 2 to 8                                                                  */
    bool columns;       /* streams are columns                                                     */
    bool lanes;         /* AWQ: the codes of a word are in the order 0, 2, 4, 6, 1, 3, 5, 7        */
} quantised_packed;

/* Codes of so few bits are kept as U4 where rows allow it, others as I8. */
tn_dtype quantised_code_type(int32_t bits, int64_t columns);

/* What is added to a code of so many bits in that type (U8: zero points of U4): its middle becomes 8 or 0. */
int32_t quantised_shift(int32_t bits, tn_dtype dtype);

/* Re-lays codes as [rows,columns] of dtype (U4, I8, U8), plus add. TN_E_INPUT where one is above limit. */
tn_status quantised_unpack(const quantised *q, const quantised_part *part, const quantised_packed *packed, int64_t rows,
                           int64_t columns, tn_dtype dtype, int32_t add, int32_t limit, tn_tensor *out);

#endif
