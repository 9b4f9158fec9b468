/* Tenon: writing a checkpoint in fewer bits. tenon.h has the rules. */
#ifndef TENON_QUANTIZE_H
#define TENON_QUANTIZE_H

#include <tenon/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor that was written. */
typedef struct tn_quantized {
    uint32_t size;
    const char *name; /* in the file written                                                      */
    tn_dtype from, to;
    int64_t values, bytes; /* how many it has; what they take now                                      */
    double error;          /* root of the mean square that values are off by, over that of the values  */
    double weighed;        /* the same with squares weighed by importance; 0: none is known             */
    int64_t unreached;     /* experts of it that none of the ids reached: their columns count alike     */
} tn_quantized;

typedef struct tn_quantize_options {
    uint32_t size;
    int32_t threads; /* as in tn_model_options                                                    */
    /* Called while ids are read and then while values are written, with 0 <= done <= total; a non-zero return cancels.
     * May be NULL. */
    int (*progress)(void *ctx, const char *what, int64_t done, int64_t total);
    void (*tensor)(void *ctx, const tn_quantized *tensor); /* behind each tensor, in order. May be NULL      */
    void *ctx;
    /* Tokens of a text, at least 128 (tn_tokenizer_encode); NULL: none. The model reads them first, and the mean square
     * of what each column of a matrix meets is how much it counts what its values are off by. Not for Q8_0 and FP8. */
    const int64_t *ids;
    int64_t id_count;
} tn_quantize_options;

/* Writes model, which tn_model_open opens, as out. type is Q8_0, Q6_K, Q5_K_M, Q4_K_M, Q4_0, IQ4_NL or MXFP4: out is a
 * .gguf file that holds config, tokenizer and chat template, and each tensor has the type that llama.cpp's files of
 * that name give it. Or it is FP8: out is a folder as model is one, whose matrices of layers are F8_E4M3 in blocks of
 * 128 by 128. Its case does not matter. What cannot be said so of the model or of its tokenizer is TN_E_INPUT, and
 * nothing is written then. out appears when all of it is there, a file in the place of what was. options may be NULL.
 * [any thread] */
TN_API tn_status tn_quantize(const char *model, const char *out, const char *type, const tn_quantize_options *options,
                             tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
