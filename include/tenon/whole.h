/* Tenon: the whole model with kernels and without, on real text. tenon.h has the rules. */
#ifndef TENON_WHOLE_H
#define TENON_WHOLE_H

#include <tenon/model.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_text_options {
    uint32_t size;
    int64_t max_tokens; /* of the text that are used; 0: 576                                       */
    int64_t window;     /* tokens that are computed together, with nothing before them; 0: 576, or the model's
                           maximum where that is smaller                                            */
    bool no_search;     /* when it fails: not which sites bring the difference                       */
    /* Called now and then with what is done; non-zero return cancels. May be NULL. */
    int (*progress)(void *ctx, const char *what, int64_t done, int64_t total);
    void *progress_ctx;
} tn_text_options;

/* The model in one type: its logits with the kernels and without, at every token of the text. */
typedef struct tn_text_row {
    uint32_t size;
    tn_dtype dtype;
    int64_t sites;                               /* that kernels have                              */
    double rms, largest;                         /* of the differences between logits               */
    double kl_mean, kl_max;                      /* divergence of the kernels' distribution from eager's, in nats */
    double top1;                                 /* share of the tokens whose most likely next token is the same */
    double perplexity_eager, perplexity_kernels; /* NaN where the text is a single token             */
    double distance_eager;                       /* rms of eager's logits in 16 bits from those in f32        */
    double distance_kernels;                     /* rms of the kernels' logits from eager's in f32           */
    double worst;                                /* in units of what rounding explains: 1.0 is the bound     */
    bool passed;
    char reason[256];
} tn_text_row;

/* A site that brings the difference. */
typedef struct tn_text_site {
    uint32_t size;
    const char *kernel;
    const tn_site *site; /* of the model                                                          */
} tn_text_site;

/* rows: the model's own type first; f32 after it, where the model computes in 16 bits and kernels take its sites in
 * f32, too. sites: the smallest set found without which what is left passes; empty when all passed. */
typedef struct tn_text_report {
    uint32_t size;
    bool passed;
    bool complete; /* the search for the sites came to its end                                       */
    int64_t tokens, window;
    size_t row_count, site_count;
    const tn_text_row *const *rows;
    const tn_text_site *const *sites;
    /* In which calls, besides prompts in a session's chunks: single tokens at the end of the first window; the text's
     * beginning once more, in calls of 2 to most_few tokens; rows of a batch, 0: the text is too short for one. */
    int64_t single_tokens, few_tokens, most_few, batch_rows;
} tn_text_report;

/* Computes ids, the tokens of a text, with the kernels that are applied and without, and says whether the difference is
 * rounding: docs/numerics.md has the rule. Kernels are not checked first, nor taken off. The checkpoint is opened a
 * second time in another type, so this needs memory for that. Returns TN_E_VERIFY when the difference is too large;
 * report is filled in that case too, else NULL. options may be NULL. TN_E_USAGE when no kernel is applied. Owned:
 * tn_text_report_free. [one thread] */
TN_API tn_status tn_compare_text(tn_model *model, const int64_t *ids, int64_t count, const tn_text_options *options,
                                 tn_text_report **report, tn_error *err);
TN_API void tn_text_report_free(tn_text_report *report); /* [one thread] */

/* A text in other calls than as one prompt, with what is in place at the model's sites. */
typedef struct tn_calls_row {
    uint32_t size;
    const char *calls;         /* "7 tokens at a time"; static storage                                */
    int64_t tokens, different; /* how many were compared; of these, those that have other bits         */
    int64_t layer, token; /* the first result that has: 0 the embedding, i + 1 that of layer i, the model's layers +
                             1 the logits; and the first token there. -1: none                   */
} tn_calls_row;

/* Computes ids, 2 to 65536 tokens of a text, in one call, and again token by token, in calls of several sizes, in a
 * longer context, beside other rows and behind padding, and behind a rewind where the model can go back; and compares
 * the bits of every layer's result and of the logits. TN_E_VERIFY when some are others; rows are filled in that case
 * too. What kernels promise these bits (TN_SAME_BITS) docs/numerics.md says. Owned: free(rows). [one thread] */
TN_API tn_status tn_compare_calls(tn_model *model, const int64_t *ids, int64_t count, tn_calls_row ***rows,
                                  size_t *row_count, tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
