/* Inside core: sessions of a parallel model. What rank 0 does with them is told to the others, which do it too. */
#ifndef TENON_CORE_RANKS_H
#define TENON_CORE_RANKS_H

#include "models/multimodal.h"
#include "open/parallel.h"

/* ORDER_NEW: rows, context, chunk, whole_cache. ORDER_REWIND: the length. ORDER_RUN: tokens, outputs, what is there
 * beside the ids, whether progress is asked, whether NaN among logits is no error, so that all end where rank 0 does;
 * how many tokens stand for images, videos and sounds. Then what a ranks_call has. */
enum { WANTS_LOGITS = 1, WANTS_LAST = 2, WANTS_HIDDEN = 4 };
enum { HAS_MASK = 1, HAS_POSITIONS = 2, HAS_TYPES = 4, HAS_AXES = 8 };
enum { RUN_FEATURES = 4 }; /* with the kind: which number says how many tokens stand for it                   */

/* A call as the others are told it, with what towers, which run on rank 0 alone, have made of pictures and sounds. What
 * is not there is NULL. */
typedef struct ranks_call {
    int64_t *ids, *mask, *positions, *types; /* [B,T]                                                        */
    float *axes;                             /* [3,B,T]                                                      */
    float *features[MULTIMODAL_KINDS];       /* [tokens of the kind, H]                                      */
    float *deep[RUN_DEEP][MULTIMODAL_KINDS]; /* the same, of images and videos                               */
    size_t bytes;                            /* of all                                                       */
} ranks_call;

/* Where its arrays lie in bytes (NULL: only how many there are). TN_E_INTERNAL: these are no numbers of a call. */
tn_status ranks_lay_out(const tn_session *s, const parallel_order *order, char *bytes, ranks_call *call, tn_error *err);

/* Of a session of a model that is not parallel, and on ranks but 0, these do nothing. */
tn_status ranks_new(tn_session *s, const tn_session_options *options, tn_error *err);
void ranks_order(const tn_session *s, parallel_kind kind, int64_t number);
/* progress: is asked behind each chunk, and its answer told (ranks_ask). */
tn_status ranks_run(const tn_session *s, const tn_batch *batch, const tn_outputs *outputs, bool progress,
                    tn_error *err);

/* A progress function of rank 0's that the others hear the answer of. */
typedef struct ranks_asked {
    const tn_session *session;
    int (*progress)(void *ctx, int64_t done, int64_t total);
    void *ctx;
    tn_error *err;
} ranks_asked;
int ranks_ask(void *asked, int64_t done, int64_t total);

#endif
