/* Sessions over ranks: what rank 0 tells the others. */
#include "generate/ranks.h"

#include "generate/session_state.h"

#include <stdlib.h>
#include <string.h>

tn_status ranks_new(tn_session *s, const tn_session_options *o, tn_error *err)
{
    tn_model *m = s->model;
    if (!m->group)
        return TN_OK;
    s->number = m->sessions_made++;
    if (m->group->end.rank > 0)
        return TN_OK;
    const parallel_order order = {
        .kind = ORDER_NEW, .session = s->number, .number = {o->rows, o->context, o->chunk, o->whole_cache}};
    tn_status status = parallel_tell(m, &order, NULL, err);
    return status == TN_OK && s->number == 0 ? parallel_alike(m, err) : status;
}

void ranks_order(const tn_session *s, parallel_kind kind, int64_t number)
{
    parallel_tell(s->model, &(parallel_order){.kind = kind, .session = s->number, .number = {number}}, NULL, NULL);
}

int ranks_ask(void *ctx, int64_t done, int64_t total)
{
    const ranks_asked *a = ctx;
    int64_t stop = a->progress ? a->progress(a->ctx, done, total) != 0 : 0;
    return group_tell(a->session->model->group, &stop, sizeof stop, false, a->err) != TN_OK || stop;
}

tn_status ranks_run(const tn_session *s, const tn_batch *batch, const tn_outputs *outputs, bool progress, tn_error *err)
{
    size_t count = (size_t)(batch->rows * batch->tokens), row = count * sizeof(int64_t);
    if (!s->model->group || s->model->group->end.rank > 0)
        return TN_OK;
    if (batch->images || batch->videos || batch->sounds || batch->axes || batch->token_types)
        return tn_fail(err, TN_E_USAGE, "parallel", "pictures and sounds are not computed over ranks; give text alone");
    if (outputs->hidden && s->model->by_layers)
        return tn_fail(err, TN_E_USAGE, "parallel", "layers of a pipeline do not tell their states; use tensor");
    const int64_t *const lists[] = {batch->ids, batch->mask, batch->positions};
    char *bytes = malloc(3 * row);
    size_t used = 0;
    if (!bytes)
        return tn_fail(err, TN_E_MEMORY, "session", "out of memory");
    for (int i = 0; i < 3; i++)
        if (lists[i]) {
            memcpy(bytes + used, lists[i], row);
            used += row;
        }
    const parallel_order order = {
        .kind = ORDER_RUN,
        .session = s->number,
        .bytes = (int64_t)used,
        .number = {batch->tokens,
                   (outputs->logits ? WANTS_LOGITS : 0) | (outputs->last_logits ? WANTS_LAST : 0) |
                       (outputs->hidden ? WANTS_HIDDEN : 0),
                   (batch->mask ? HAS_MASK : 0) | (batch->positions ? HAS_POSITIONS : 0), progress, s->any_logits}};
    tn_status status = parallel_tell(s->model, &order, bytes, err);
    free(bytes);
    return status;
}
