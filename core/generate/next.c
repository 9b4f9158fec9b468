/* The next token of a row. */
#include "generate/next.h"

tn_status next_choose(sampler *s, const tn_generate_options *o, int64_t row, int64_t step, int64_t position,
                      float *logits, int64_t *id, int *wish, tn_error *err)
{
    *wish = o->on_logits ? o->on_logits(o->ctx, row, step, logits, s->vocab) : TN_NEXT_TOKEN;
    if (*wish != TN_NEXT_TOKEN)
        return TN_OK;
    sample_penalise(s, logits);
    tn_status status = sample_pick(s, logits, position, id, err);
    return status == TN_OK ? sample_see(s, id, 1, err) : status;
}

int next_tell(const tn_generate_options *o, int64_t row, int64_t id)
{
    bool stopped = o->on_token && o->on_token(o->ctx, id) != 0;
    int next = o->on_row_token ? o->on_row_token(o->ctx, row, id) : TN_NEXT_TOKEN;
    return next == TN_NEXT_TOKEN && stopped ? TN_NEXT_END_ROW : next;
}

bool next_is_end(const tn_model_info *info, int64_t id)
{
    for (int64_t i = 0; i < info->eos_total; i++)
        if (info->eos_ids[i] == id)
            return true;
    return false;
}
