/* Inside core/eager: what the files of SELECTIVE_SCAN share. */
#ifndef TENON_CORE_EAGER_SELECTIVE_SCAN_H
#define TENON_CORE_EAGER_SELECTIVE_SCAN_H

#include "eager/rows.h"
#include "eager/vec.h"

typedef struct scan_job {
    const tn_tensor *x, *state, *b, *c, *dt, *index, *decay, *bias, *skip;
    tn_dtype dtype;
    int64_t rows, tokens, groups, heads, share, n, p; /* share: heads of a group; state [n,p] of each */
    float least, limit;                               /* of steps                                       */
} scan_job;

/* What a head brings to all its tokens. */
typedef struct scan_head {
    float rate, bias, skip; /* rate: -e^decay                                                      */
} scan_head;

/* What one token is to a head. */
typedef struct scan_step {
    float s;     /* the step                                                                          */
    float keep;  /* e^(rate s)                                                                        */
    float slope; /* ds/ddt: 0 beyond the limits                                                       */
} scan_step;

scan_job selective_scan_job(const tn_call *call);
scan_head selective_scan_head(const scan_job *job, int64_t head);
scan_step selective_scan_step(const scan_job *job, const scan_head *h, int64_t row, int64_t token, int64_t head);

/* M [n,p] of a token becomes keep M + b (s x)^T; scaled [p] receives s x. */
void selective_scan_write(const scan_job *job, const scan_step *step, float *m, const float *b, const float *x,
                          float *scaled);

static inline bool selective_scan_is_real(const scan_job *job, int64_t row, int64_t token)
{
    return ((const int32_t *)job->index->data)[row * job->index->stride[0] + token] >= 0;
}

/* Forward, beside backward in selective_scan_grad.c, where the operation is put together. */
size_t selective_scan_scratch(const tn_call *call);
tn_status selective_scan_forward(const tn_call *call, tn_error *err);

#endif
