/* What check_models shares: the rules that a case is held to, and the lines that say how it went. */
#ifndef CHECK_MODELS_CHECK_H
#define CHECK_MODELS_CHECK_H

#include "generate/session.h"
#include "golden.h"

typedef struct tally {
    int passed, failed, skipped;
} tally;
extern tally check_tally;

/* One line; ok counts. */
void check_report(const golden *g, const char *what, const char *spec, bool ok, const char *detail);
void check_fail(const golden *g, const char *what, const char *spec, const tn_error *err);

/* Results of a model over the whole case: logits [B,T,V]; the hidden states, where they are wanted; what towers gave
 * and the three axes of positions, where the case has media. */
typedef struct run_results {
    float *logits, **hidden;
    int64_t layers, width, vocab;
    float *image, *video, *sound, *deep[GOLDEN_DEEP], *video_deep[GOLDEN_DEEP], *axes;
} run_results;

/* What the model gets beside the tokens: pictures, sound and no positions of three axes; or all that the case says:
 * features and positions. */
typedef enum run_mode { RUN_MADE, RUN_GIVEN } run_mode;

/* run.c: memory for the results, with hidden states or without; the case in calls of chunk tokens (0: all); all of it,
 * with somebody who looks at each operation. A session that has the whole prompt, and the logits of its last token. */
run_mode run_main_mode(const golden *g); /* with the positions of its file, and with pixels and sound       */
bool run_allocate(const golden *g, const tn_model *model, bool hidden, run_results *r);
void run_free(run_results *r);
bool run_case(const golden *g, tn_model *model, int64_t chunk, run_mode mode, run_results *r, tn_error *err);
bool run_watched(const golden *g, tn_model *model, run_mode mode, run_look *look, void *ctx, tn_error *err);
bool run_prompt(const golden *g, tn_session *session, float *last_logits, tn_error *err);

/* media.c: how many features a picture has beside its own (deepstack). */
int32_t media_deep(const tn_model *model);

/* What a call over tokens begin .. begin + count feeds. The parts are inside m or owned by it. */
typedef struct media {
    tn_pictures images, videos;
    tn_sounds sounds;
    const float *deep[GOLDEN_DEEP], *video_deep[GOLDEN_DEEP];
    int64_t *types;
    float *axes;
} media;
void media_fill(const golden *g, run_mode mode, int64_t begin, int64_t count, media *m, tn_batch *batch);
void media_free(media *m);
/* g, which has the deepstack features of its videos from r now, as long as that lives. */
const golden *media_remember(golden *g, const run_results *r);
/* Columns begin .. begin + count of rows of tokens, packed. Owned, free(); NULL from NULL. */
int64_t *media_columns(const tn_tensor *t, int64_t rows, int64_t tokens, int64_t begin, int64_t count);

/* compare.c: logits [B,T,V] from a position on, with what to say about them */
bool compare_logits(const golden *g, const float *got, const float *expected, int64_t from, char text[static 128]);
void check_f32(const golden *g, const run_results *r, const char *what, const char *spec);
void check_media(const golden *g, const run_results *r, const char *spec);
void check_hidden(const golden *g, const run_results *r, const char *spec);

/* near.c: tokens whose experts another rounding may change (docs/numerics.md). */
typedef struct near_tokens {
    bool *near, *clean; /* [positions]; clean: neither it nor a token before it in its row, and no padding  */
    int64_t positions, routers;
} near_tokens;
/* model: the case's, in any type; asked for its sites alone. One without a router has no such tokens. */
bool near_find(const golden *g, const tn_model *model, run_mode mode, near_tokens *n, tn_error *err);
void near_free(near_tokens *n);

/* rounding.c: logits in bf16, as far from the truth as transformers' own. The second form says so in text. */
void check_bf16(const golden *g, const run_results *r, const near_tokens *n, const char *what, const char *spec,
                bool rounds);
bool rounding_is_right(const golden *g, const run_results *r, const near_tokens *n, bool rounds, char text[static 192]);

/* decode.c: steps against the one pass that gave r; 16 tokens. */
void check_steps(const golden *g, tn_model *model, const run_results *r, const char *spec);
void check_greedy(const golden *g, tn_model *model, const char *spec);

/* embed.c: vectors of texts, where the case has them. */
void check_embedding(const golden *g, tn_model *model, tn_dtype dtype, const char *spec);

/* batch.c: the same bits in any call, with the kernels of the configuration. */
void check_batch(const golden *g, tn_model *model, tn_dtype dtype, const tn_config *config);

/* ranks.c: a model that is cut that way, as "tensor=2", gives the bits of one that is not. */
void check_ranks(const golden *g, tn_dtype dtype, tn_config *config, const char *spec, const char *parallel);

/* names.c: every tensor of the checkpoint is a parameter of the model, but those that transformers ignores too. */
void check_names(const golden *g, const tn_model *model);

#endif
