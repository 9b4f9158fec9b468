/* Tenon: texts as vectors, as sentence-transformers makes them of a model. tenon.h has the rules. */
#ifndef TENON_EMBED_H
#define TENON_EMBED_H

#include <tenon/session.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_embedder tn_embedder;

/* How the last hidden states of a text's tokens become one vector. Of several (they are bits) the vectors stand one
 * behind the other, in this order. */
typedef enum tn_pooling {
    TN_POOLING_CLS = 1, /* that of the first token                                               */
    TN_POOLING_MAX = 2,
    TN_POOLING_MEAN = 4,
    TN_POOLING_MEAN_SQRT_LEN = 8,  /* the sum over the root of the number of tokens               */
    TN_POOLING_WEIGHTED_MEAN = 16, /* by position, the first counts once                        */
    TN_POOLING_LAST = 32           /* that of the last token                                     */
} tn_pooling;

typedef struct tn_embedder_options {
    uint32_t size;
    /* tn_pooling: instead of what the checkpoint's files say, none of which is read then; what is pooled is divided by
     * its length. 0: as the files say. */
    uint32_t pooling;
    int64_t max_tokens; /* of a text, if fewer than model and files allow; 0: what they do          */
} tn_embedder_options;

/* Its strings belong to the embedder. */
typedef struct tn_embedder_info {
    uint32_t size;
    int64_t width;              /* of a vector                                                   */
    int64_t max_tokens;         /* of a text, prompt included; 0: no bound is known              */
    bool include_prompt;        /* tokens of the prompt take part in pooling                     */
    const char *default_prompt; /* the name of the prompt that is used where none is asked for, or NULL */
    size_t prompt_count;
    const char *const *prompts; /* names                                                         */
} tn_embedder_info;

/* Reads what sentence-transformers writes beside a model: modules.json, the folders of pooling, dense layers and
 * normalisation that it names, config_sentence_transformers.json, sentence_bert_config.json. A checkpoint without
 * modules.json needs options->pooling. options may be NULL. The model must stay open, and is one object with it where
 * threads are concerned. Owned: tn_embedder_close. [one thread] */
TN_API tn_embedder *tn_embedder_open(tn_model *model, const tn_embedder_options *options, tn_error *err);
TN_API void tn_embedder_close(tn_embedder *embedder); /* [one thread] */

TN_API tn_status tn_embedder_get_info(const tn_embedder *embedder, tn_embedder_info *info); /* [one thread] */

/* What is put before a text for the purpose of that name, such as "query"; NULL: for the default one, "" where there is
 * none. NULL with an error that lists the names: it is not known. [one thread] */
TN_API const char *tn_embedder_prompt(const tn_embedder *embedder, const char *name, tn_error *err);

/* The vectors of a batch's rows: out [rows, width], f32. Padding may stand on either side. prompt: how many of each
 * row's tokens are those of its prompt; they matter only where include_prompt is false. A row sees nothing of the
 * others. Pooling, dense layers and norm are computed in f32 whatever the model's dtype. A vector with a NaN or an
 * infinity is TN_E_VERIFY. No pictures or sounds. [one thread] */
TN_API tn_status tn_embed(tn_embedder *embedder, const tn_batch *batch, int64_t prompt, float *out, tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
