/* Inside core/quantize: a .gguf that is to be written. */
#ifndef TENON_CORE_QUANTIZE_H
#define TENON_CORE_QUANTIZE_H

#include "base/text.h"
#include "checkpoint/gguf_arch.h"
#include "open/model.h"

enum { QUANTIZE_NAME = 256, QUANTIZE_ALIGN = 32 };

/* Which elements of the checkpoint's tensor, as a matrix of rows one below the other, a tensor has: matrix k's element
 * of row r and column c is in row k * per + first + r and column `column` + c * step; turned: in row k * per + first +
 * c and column `column` + r * step. step 0: its matrices are the checkpoint's. */
typedef struct quantize_view {
    int64_t per, first, column, step;
    bool turned;
} quantize_view;

/* One tensor: a matrix, a list of numbers, or a stack of matrices that the checkpoint has one by one. */
typedef struct quantize_tensor {
    char name[64];
    char form[QUANTIZE_NAME]; /* what the checkpoint calls it; '#' stands for the number of a matrix          */
    int64_t matrices, rows, columns;
    int32_t ndim;
    int64_t layer; /* -1: of none                                                                     */
    int64_t pairs; /* heads whose rows are put in pairs; 0: rows stay where they are                     */
    bool plus_one; /* of every value                                                                    */
    bool stays;    /* it is MXFP4, which no other type is as small as without a loss                    */
    quantize_view view;
    int64_t made; /* where its values begin among the plan's factors; -1: a tensor has them            */
    tn_dtype from, to;
    size_t bytes;
} quantize_tensor;

/* What --type says. */
typedef struct quantize_recipe {
    const char *name;
    int64_t file_type; /* general.file_type                                                              */
    tn_dtype usual, finer, output;
} quantize_recipe;

typedef struct quantize_plan {
    const tn_model *model;
    config_reader config;
    const model_shape *shape;
    const gguf_arch *arch;
    const quantize_recipe *recipe;
    int64_t experts;
    quantize_tensor *tensors; /* owned; with room for two of each of the checkpoint's, and two more */
    size_t count;
    float *factors; /* of rotary frequencies, or NULL; owned                                               */
    int64_t factor_count;
    text keys, infos; /* of the header, and how many keys                                                     */
    uint64_t key_count;
    tn_status status;
    tn_error *err;
} quantize_plan;

/* The recipe of that name; NULL: TN_E_USAGE lists them. */
const quantize_recipe *quantize_recipe_find(const char *name, tn_error *err);

/* Does importance change what is written? */
bool quantize_recipe_weighs(const quantize_recipe *recipe);

/* quantize_types.c: which type a tensor gets. */
tn_dtype quantize_type(const quantize_plan *p, const quantize_tensor *t);

/* quantize_names.c: fills in tensors; what the checkpoint calls a matrix of one. */
void quantize_list(quantize_plan *p);
void quantize_matrix_name(const quantize_tensor *t, int64_t number, char name[QUANTIZE_NAME]);

/* Where the model has matrix number of it; NULL: it was not asked for. */
const void *quantize_matrix_data(const quantize_plan *p, const quantize_tensor *t, int64_t number);

/* quantize_parts.c: adds what a .gguf has of a tensor that it has otherwise; known: its name behind the layer's. False:
 * it is none. */
bool quantize_parts_add(quantize_plan *p, const char *name, const char *known, int64_t layer, const tn_tensor *tensor);

/* quantize_config.c: keys that say what config.json does, and tensors of frequencies. */
void quantize_config(quantize_plan *p);

/* quantize_vocab.c: keys of the tokenizer and the chat template; path: the checkpoint's. */
void quantize_vocab(quantize_plan *p, const char *path);

/* quantize_header.c: keys. */
void quantize_put_string(quantize_plan *p, const char *key, const char *value, size_t length);
void quantize_put_text(quantize_plan *p, const char *key, const char *value);
void quantize_put_integer(quantize_plan *p, const char *key, int64_t value);
void quantize_put_number(quantize_plan *p, const char *key, double value);
void quantize_put_flag(quantize_plan *p, const char *key, bool value);

/* A list whose elements follow by quantize_add_. */
typedef enum quantize_element { QUANTIZE_I32 = 5, QUANTIZE_F32 = 6, QUANTIZE_STRING = 8 } quantize_element;
void quantize_put_list(quantize_plan *p, const char *key, quantize_element element, uint64_t count);
void quantize_add_string(quantize_plan *p, const char *value, size_t length);
void quantize_add_i32(quantize_plan *p, int32_t value);
void quantize_add_f32(quantize_plan *p, float value);

/* All of the header, up to the first tensor's data. Owned: free(). NULL: out of memory. */
char *quantize_header(quantize_plan *p, size_t *size);

/* Bytes of a tensor's data with what keeps the next one aligned. */
size_t quantize_padded(size_t bytes);

/* quantize_folder.c: all of it for FP8. */
tn_status quantize_folder(const tn_model *model, const char *out, const tn_quantize_options *options, tn_error *err);

/* quantize_check.c: is what was written there the same model? pairs: rows of q and k may be in another order. */
tn_status quantize_check_model(const tn_model *model, const char *written, bool pairs, tn_error *err);

/* quantize_check.c: does a file with that header mean the same model and tokenizer as path? */
tn_status quantize_check(const quantize_plan *p, const char *path, const char *out, const char *header, size_t size,
                         tn_error *err);

#endif
