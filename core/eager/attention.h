/* Inside core/eager: what the two files of ATTENTION share. */
#ifndef TENON_CORE_EAGER_ATTENTION_H
#define TENON_CORE_EAGER_ATTENTION_H

#include "eager/eager.h"

/* How scores become probabilities. */
typedef struct attention_scores {
    tn_dtype dtype;       /* of the model: what is rounded to                                          */
    float scale, softcap; /* softcap 0: none                                                     */
    int64_t window;       /* 0: none                                                                   */
    bool has_sink;
} attention_scores;

/* attention_softmax.c: one query's products with n keys become probabilities in f32, not yet rounded. index[i] is the
 * position of key i; the query at position q sees it when 0 <= index[i] <= q and, with a window, q - index[i] < window.
 * A query that sees nothing gets zeros. sink: its head's, if there is one. */
void attention_softmax(const attention_scores *rule, float *scores, const int32_t *index, int64_t n, int32_t q,
                       float sink);

#endif
