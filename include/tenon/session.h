/* Tenon: sessions, which run a model. tenon.h has the rules. */
#ifndef TENON_SESSION_H
#define TENON_SESSION_H

#include <tenon/model.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_session tn_session;

typedef struct tn_session_options {
    uint32_t size;
    int64_t rows;    /* batch rows, at least 1; 0: 1                                            */
    int64_t context; /* positions per row; 0: the model's maximum                               */
    int64_t chunk;   /* most tokens per row computed at once; 0: 512                             */
    /* All memory of the cache is taken now. Otherwise addresses are reserved, and memory follows the tokens that are
     * there, without copying; a call that finds none is TN_E_MEMORY, and the session must be reset. The results are the
     * same. Devices with memory of their own always take all. */
    bool whole_cache;
} tn_session_options;

/* A KV cache and an arena for activations; allocates everything that running tokens will need but the cache's memory,
 * which grows; towers allocate what their pictures and sounds take for the call, and the first call of each size of a
 * kernel what comparing it with eager takes. options may be NULL. Owned:
 * tn_session_free. Kernels must not be applied or reverted while sessions of the model exist (it is refused). A session
 * and its model are used by the same thread at a time. [one thread] */
TN_API tn_session *tn_session_new(tn_model *model, const tn_session_options *options, tn_error *err);
TN_API void tn_session_free(tn_session *session); /* [one thread] */

/* Forgets all tokens. [one thread] */
TN_API void tn_session_reset(tn_session *session);

/* Forgets all but the first `length` tokens, so that what follows them can be another text: of a conversation, only
 * what is new in a prompt is then to be computed. For sessions of one row without padding. TN_E_USAGE: more tokens than
 * there are. TN_DECLINED, with nothing changed: the way back is lost, because layers keep a state instead of keys, a
 * window's keys were overwritten (it goes back by `chunk` tokens), rotary frequencies have followed the length, or
 * pictures have shifted positions; reset then and feed all. [one thread] */
TN_API tn_status tn_session_rewind(tn_session *session, int64_t length, tn_error *err);

/* Positions that the longest row holds; bytes of the cache when it is full, and that it holds now; of the arena.
 * [one thread] */
TN_API int64_t tn_session_length(const tn_session *session);
TN_API size_t tn_session_cache_bytes(const tn_session *session);
TN_API size_t tn_session_cache_held(const tn_session *session);
TN_API size_t tn_session_arena_bytes(const tn_session *session);

/* Images or videos of a batch: those of the first row first, each row's in the order of its tokens. Either patches, of
 * which the model's tower makes features, or features that were made elsewhere. Arrays are dense. */
typedef struct tn_pictures {
    uint32_t size;
    int64_t count;        /* images or videos                                                 */
    const int64_t *grids; /* [count, 3]: patches of each in time, height and width             */
    const float *pixels;  /* [patches, width]: pixel_values, as the model's processor cuts them */
    int64_t patches, width;
    const float *features;    /* instead of pixels: [feature_count, hidden], in the order of the tokens */
    const float *const *deep; /* beside features: deep_count arrays of the same shape (deepstack)     */
    int64_t feature_count, deep_count;
    const float *grid_seconds; /* videos: [count], seconds from one grid to the next; NULL: 1       */
    /* Models without grids: pixels are whole pictures of that shape, [count, 3, height, width] or, cut into tiles,
     * [count, tiles, 3, height, width] or [all tiles, 3, height, width], or patches of each with places of their own
     * [count, patches, 3 * side * side]; patches and width are not looked at. */
    int32_t pixel_ndim;
    const int64_t *pixel_shape; /* [pixel_ndim]                                                      */
    const int64_t *sizes;       /* [count, 2]: image_sizes, height and width in pixels; or NULL         */
    const int64_t *places;      /* [count, patches, 2]: image_position_ids, x and y, -1 of padding; or NULL */
} tn_pictures;

/* Sounds of a batch in the same order. */
typedef struct tn_sounds {
    uint32_t size;
    int64_t count;    /* clips                                                            */
    const float *mel; /* [count, bins, frames]: input_features                            */
    int64_t bins, frames;
    const int64_t *mask;    /* [count, frames]: feature_attention_mask, 0 behind the end of a clip; or: */
    const int64_t *lengths; /* [count]: real frames of each; NULL, too: all are                  */
    const float *features;  /* instead of mel: [feature_count, hidden]                           */
    int64_t feature_count;
} tn_sounds;

/* Tokens that follow what the session already holds. Arrays are [rows, tokens], dense. */
typedef struct tn_batch {
    uint32_t size;
    int64_t rows, tokens;
    const int64_t *ids;
    const int64_t *mask;      /* 0: padding, on the left; NULL: none                             */
    const int64_t *positions; /* for rope; NULL: counted from the mask                           */
    /* Of multimodal models. What stands for pictures and sounds among the ids is replaced by their features, one for
     * one: exactly as many as there are such tokens that the mask does not exclude. */
    const tn_pictures *images, *videos;
    const tn_sounds *sounds;
    const int64_t *token_types; /* mm_token_type_ids: 0 text, 1 image, 2 video; NULL: from the ids    */
    const float *axes; /* [3, rows, tokens]: positions in time, height and width, instead of positions; NULL: made of
                          the grids, and after them counted on                                        */
} tn_batch;

/* Where results go; each may be NULL. Owned by the caller. f32 whatever the model's dtype. */
typedef struct tn_outputs {
    uint32_t size;
    float *logits;        /* [rows, tokens, vocab]                                                 */
    float *last_logits;   /* [rows, vocab]                                                         */
    float *const *hidden; /* layers + 1 arrays [rows, tokens, hidden]: the input of the first layer, the
                             outputs of layers 0 .. L-2, the result of the final norm; NULL: not wanted */
    /* What towers made of the batch's pictures and sounds: [feature_count, hidden], as many as it has tokens for
     * them. image_deep: as many arrays as the model has deepstack features, or NULL. */
    float *image_features, *video_features, *sound_features;
    float *const *image_deep, *const *video_deep;
    float *axes; /* [3, rows, tokens]: the positions that were used; 0 for padding                     */
} tn_outputs;

/* Feeds the batch. outputs may be NULL: the cache is filled. When it returns the results are there. Logits of a real
 * token with a NaN or plus infinity are an error, TN_E_VERIFY, that says which layer's result was the first to hold
 * one. After an error the session must be reset. While kernels compute, what of the process they may not change
 * (docs/design.md) is put back: other threads do not change signal handlers, working directory, umask, descriptors 0 to
 * 2 or timers meanwhile. [one thread] */
TN_API tn_status tn_session_run(tn_session *session, const tn_batch *batch, const tn_outputs *outputs, tn_error *err);

/* ---- watching ---------------------------------------------------------------------------------- */

/* One operation that was performed: a call of a kernel, or of what the device itself has for it. Operations that are
 * composed of others are seen as these, so no time is told twice, and what lies between the events is the host's own.
 */
typedef struct tn_event {
    uint32_t size;
    tn_op op;
    const char *kernel; /* its id; NULL: eager                                                   */
    const char *path;   /* of the site's module, as long as the model is open; NULL: a step of no module */
    tn_dtype dtype;     /* that it computes with                                                 */
    int64_t tokens;
    double begin, end;        /* seconds since some moment, the same for all                       */
    double operations, bytes; /* multiplications and additions, of attention those of pairs that no mask hides; what it
                                 must at least move: each tensor, and each parameter that its tokens use, once   */
} tn_event;

typedef void tn_observer(void *ctx, const tn_event *event);

/* From now on observer is told of each operation that the session performs, right after it and on the thread that runs
 * the session; it must not use the session. A device's queue is waited for after each. NULL: nobody any more, which
 * costs nothing. [one thread] */
TN_API tn_status tn_session_observe(tn_session *session, tn_observer *observer, void *ctx, tn_error *err);

/* ---- generating -------------------------------------------------------------------------------- */

/* What a callback wants; any other value is the last of these. */
typedef enum tn_next { TN_NEXT_TOKEN, TN_NEXT_END_ROW, TN_NEXT_END_ALL } tn_next;

/* Callbacks run on the thread that generates. */
typedef struct tn_generate_options {
    uint32_t size;
    int64_t max_tokens;
    double temperature; /* 0: greedy                                                              */
    int64_t top_k;      /* 0: all                                                                 */
    double top_p;       /* 0 or 1: all                                                            */
    uint64_t seed;
    bool ignore_eos;
    /* Called for each token as it comes; non-zero return ends its row, which is all of tn_generate (not an error). */
    int (*on_token)(void *ctx, int64_t id);
    /* Called while the prompt is computed. Non-zero return ends it. */
    int (*on_prompt)(void *ctx, int64_t done, int64_t total);
    void *ctx;
    double min_p; /* 0: all; else tokens at least this part as likely as the likeliest stay         */
    /* 0 or 1: none. The logit of each token of history, prompt and what was generated is divided by it, or multiplied
     * where it is negative, once however often the token came, before everything else and also when greedy. */
    double repetition_penalty;
    const int64_t *history; /* [history_count] tokens that the session holds before prompt, for the penalty; or NULL */
    int64_t history_count;
    /* Called before each token is chosen, with what the model computed for it: logits[vocab] of a row that goes on,
     * which may be changed (-inf excludes a token; NaN, or nothing but -inf, is TN_E_INPUT; +inf too, unless greedy).
     * step: how many tokens the row has so far. What is left goes through the penalty and all that follows. Returns a
     * tn_next; a row that ends gets no further token (TN_STOP_CALLBACK). */
    int (*on_logits)(void *ctx, int64_t row, int64_t step, float *logits, int64_t vocab);
    /* As on_token, of a row; returns a tn_next. */
    int (*on_row_token)(void *ctx, int64_t row, int64_t id);
    /* One row: up to so many tokens at a time are copied from where history, prompt and answer last went on as they do
     * now, and computed together with the token before them; those that are what would have been chosen anyway are
     * kept, one by one, through all of the above. With kernels that promise the same bits (TN_SAME_BITS) the text is
     * the same as without. Models that cannot go back (tn_session_rewind) go token by token. 0: none; at most 64. */
    int32_t speculate;
} tn_generate_options;

typedef enum tn_stop { TN_STOP_LENGTH, TN_STOP_EOS, TN_STOP_CALLBACK, TN_STOP_CONTEXT } tn_stop;

typedef struct tn_generate_result {
    uint32_t size;
    tn_stop stop;
    int64_t count; /* tokens written                                                               */
    double prompt_seconds, decode_seconds;
    int64_t drafted, accepted; /* tokens that were copied, and those of them that came               */
} tn_generate_result;

/* Tokens are drawn as in transformers: on_logits, repetition penalty, temperature, top_k, top_p, min_p, in this order.
 * The same options and seed draw the same tokens from the same logits, whatever the number of threads: a random number
 * belongs to the seed and to the position of the token in its row.
 *
 * Feeds prompt (at least one token) and appends up to max_tokens tokens to out[max_tokens], with a session of one row.
 * result may be NULL; it is filled after an error too. options NULL: nothing but the prompt is fed. Any of the model's
 * end-of-sequence tokens is written and ends it. The last token written has not been fed: whoever goes on begins with
 * it. Behind pictures or sounds: tn_session_run with all of the prompt but its last token, which is the prompt here.
 * [one thread] */
TN_API tn_status tn_generate(tn_session *session, const int64_t *prompt, int64_t prompt_count,
                             const tn_generate_options *options, int64_t *out, tn_generate_result *result,
                             tn_error *err);

/* The same for every row of a session: a batch of prompts, shorter ones padded on the left (prompts->mask), each of
 * which ends by itself; pictures and sounds may be in it. Tokens of row b go to out + b * max_tokens; out is
 * [rows, max_tokens]. Row b draws with seed + b; history is before each row. results, unless NULL, receives a list, one
 * of each row in order, whose decode_seconds end with the row; after an error too, unless it is NULL then. Owned:
 * free(). Rows that ended are fed padding until all have, and cost what they did; the session is
 * to be reset then.
 *
 * A row sees nothing of the others. With kernels that promise the same bits (TN_SAME_BITS; docs/numerics.md) at all of
 * the model's sites its tokens are those that its prompt gives alone. Elsewhere they need not be: products of few and
 * of many tokens are summed in another order, so where two tokens are about as likely either may come; and frequencies
 * that follow the length follow the longest row. [one thread] */
TN_API tn_status tn_generate_rows(tn_session *session, const tn_batch *prompts, const tn_generate_options *options,
                                  int64_t *out, tn_generate_result ***results, tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
