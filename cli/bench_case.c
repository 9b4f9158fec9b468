/* tenon bench: one case, and where its measurements are. */
#include "bench.h"

static tn_status feed(const bench *b, tn_session *session, int64_t at, int64_t tokens, tn_error *err)
{
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = tokens, .ids = b->ids + at};
    tn_outputs outputs = {.size = sizeof outputs, .last_logits = b->logits};
    return tn_session_run(session, &batch, &outputs, err);
}

tn_status bench_begin_case(const bench *b, tn_session *session, const bench_case *c, tn_error *err)
{
    tn_session_reset(session);
    return c->context ? feed(b, session, 0, c->context, err) : TN_OK;
}

tn_status bench_run_case(const bench *b, tn_session *session, const bench_case *c, tn_error *err)
{
    tn_status status = c->decode ? TN_OK : feed(b, session, 0, c->tokens, err);
    for (int64_t i = 0; c->decode && i < c->tokens && status == TN_OK; i++)
        status = feed(b, session, c->context + i, 1, err);
    return status;
}

double *bench_times(const bench *b, const bench_side *side, size_t c)
{
    return side->seconds + (int64_t)c * b->repeat * TURN_SAMPLES;
}

int64_t bench_samples(const bench *b, size_t c)
{
    return b->repeat * b->cases[c].samples;
}
