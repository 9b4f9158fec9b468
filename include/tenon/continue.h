/* Tenon: one call that opens a model, gives it kernels and continues a text. tenon.h has the rules. */
#ifndef TENON_CONTINUE_H
#define TENON_CONTINUE_H

#include <tenon/session.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Callbacks run on the thread that calls. */
typedef struct tn_continue_options {
    uint32_t size;
    const char *plugins; /* a folder to look for plugins in, better absolute; NULL: only what is part of the program */
    const char *kernels; /* a SPEC (tn_config_set_kernels); NULL: "auto"                         */
    const tn_model_options *model; /* as for tn_model_open, or NULL                               */
    int64_t max_tokens;            /* 0: 64                                                       */
    /* How they are drawn, as in tn_generate_options; all 0: always the likeliest. */
    double temperature, top_p;
    int64_t top_k;
    uint64_t seed;
    /* Called once kernels are applied: what was chosen and why not others. The report lives during the call. */
    void (*on_report)(void *ctx, const tn_report *report);
    /* Called with the text as it comes, whole characters that end in NUL; non-zero return ends it (not an error). */
    int (*on_text)(void *ctx, const char *text, size_t length);
    void *ctx;
    tn_generate_result *result; /* filled after tokens were generated, its size is set; or NULL    */
} tn_continue_options;

/* Opens the checkpoint in folder and its tokenizer, scans for plugins, applies kernels, and continues prompt until
 * max_tokens, an end-of-sequence token or the positions that the model is made for. options may be NULL. All that it
 * opened is closed again, so for several texts, conversations, pictures or a configuration file the single steps are
 * better, in this order: tn_config_new or tn_config_load, tn_scan, tn_model_open, tn_tokenizer_open, tn_apply_kernels,
 * tn_tokenizer_encode, tn_session_new, tn_generate, and tn_stream_push for the text. [any thread] */
TN_API tn_status tn_continue_text(const char *folder, const char *prompt, const tn_continue_options *options,
                                  tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
