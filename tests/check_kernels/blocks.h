/* A folder of quantised weights, each format in a file, with the values that they stand for. */
#ifndef TENON_CHECK_BLOCKS_H
#define TENON_CHECK_BLOCKS_H

#include "check_kernels.h"
#include "checkpoint/checkpoint.h"

enum { BLOCKS_TOKENS = 3 };

/* Holds eager against every file. False after a message: there is no such folder. */
bool blocks_run(check_state *s, const char *folder);

/* One matrix, in f32 beside it. */
typedef struct blocks_matrix {
    const char *name;
    tn_tensor codes, values, x; /* x [3, columns]: what is multiplied; without data: anything           */
    shards_parts parts;
    int32_t ulps; /* that a value may be off                                                        */
    bool product; /* its values are of a size that can be summed                                    */
} blocks_matrix;

/* Its rows as those of an embedding, and products. */
void blocks_check(check_state *s, const blocks_matrix *m);

/* The same of the tensors that a folder of that format has, which are turned as they are when a model is opened. False:
 * the format is none of those. */
bool blocks_packed(check_state *s, const char *format, const tn_safetensors *file);

#endif
