/* Inside core/eager: what the files of SHORT_CONV share. With e = the K - 1 inputs of state and then the x of the real
 * tokens of a row, token j is s_j = rnd(bias + sum_m w_m e_{j+m}), y_j = act(s_j); the last K - 1 of e are state'. */
#ifndef TENON_CORE_EAGER_SHORT_CONV_H
#define TENON_CORE_EAGER_SHORT_CONV_H

#include "eager/rows.h"
#include "eager/vec.h"

enum { CONV_BLOCK = 64 }; /* channels that are worked on together                                 */

typedef struct conv_job {
    const tn_tensor *x, *state, *index, *weight, *bias;
    tn_act act;
    tn_dtype dtype;
    int64_t rows, tokens, width, taps, blocks;
} conv_job;

/* Some channels of one batch row as f32, [.., CONV_BLOCK] each. */
typedef struct conv_work {
    float *e;      /* [past + tokens]                                                              */
    float *w;      /* [taps]                                                                       */
    float *bias;   /* [1]                                                                          */
    int32_t *real; /* [tokens]: which tokens are no padding                                        */
    int64_t first, channels, count;
} conv_work;

static inline int64_t conv_past(const conv_job *job)
{
    return job->taps - 1;
}

conv_job short_conv_job(const tn_call *call);

/* Gives a work its memory behind base (NULL: counts only); returns the bytes. */
size_t short_conv_layout(const conv_job *job, char *base, conv_work *work);

/* Filter and bias of a block of channels; state, x and the real tokens of one row of it. */
void short_conv_load_filter(const conv_job *job, int64_t block, conv_work *work);
void short_conv_load_row(const conv_job *job, int64_t row, conv_work *work);

/* s of real token j. */
void short_conv_sum(const conv_job *job, const conv_work *work, int64_t j, float s[CONV_BLOCK]);

/* Rows of a [B,T,C] or [B,C,K-1] tensor from and to f32, for the channels of a work. */
void short_conv_store(const tn_tensor *t, int64_t row, const conv_work *work, const float *of_real);
void short_conv_store_state(const tn_tensor *t, int64_t row, const conv_work *work, const float *from);
void short_conv_load_state(const tn_tensor *t, int64_t row, const conv_work *work, float *to);
/* One channel's filter, from the first of a column. */
void short_conv_store_filter(const tn_tensor *t, int64_t channel, const float *from);

/* Forward, beside backward in short_conv_grad.c, where the operation is put together. */
size_t short_conv_scratch(const tn_call *call);
tn_status short_conv_forward(const tn_call *call, tn_error *err);

#endif
