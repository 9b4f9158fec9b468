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

/* The next array of those in bytes (NULL: there are none yet), or NULL where it has no elements. */
static void *next_array(char *bytes, size_t *used, int64_t count, size_t size)
{
    size_t at = *used;
    *used += (size_t)count * size;
    return bytes && count > 0 ? bytes + at : NULL;
}

static void lay_out_features(const int64_t *of, int64_t width, char *bytes, size_t *used, float **features)
{
    for (int kind = MULTIMODAL_IMAGE; kind < MULTIMODAL_KINDS; kind++)
        features[kind] = next_array(bytes, used, of[kind] * width, sizeof(float));
}

tn_status ranks_lay_out(const tn_session *s, const parallel_order *order, char *bytes, ranks_call *call, tn_error *err)
{
    int64_t count = s->rows * order->number[0], has = order->number[2], width = s->shape->hidden;
    int64_t of[MULTIMODAL_KINDS] = {0}, most = s->shape->media ? count : 0;
    bool sound = order->number[0] > 0 && order->number[0] <= INT32_MAX;
    for (int kind = MULTIMODAL_IMAGE; kind < MULTIMODAL_KINDS; kind++) {
        of[kind] = order->number[RUN_FEATURES + kind];
        sound = sound && of[kind] >= 0 && of[kind] <= most;
    }
    if (!sound)
        return tn_fail(err, TN_E_INTERNAL, "parallel", "a call of rank 0 has impossible sizes; report this defect");
    size_t *used = &call->bytes, size = sizeof(int64_t);
    *call = (ranks_call){0};
    call->ids = next_array(bytes, used, count, size);
    call->mask = next_array(bytes, used, has & HAS_MASK ? count : 0, size);
    call->positions = next_array(bytes, used, has & HAS_POSITIONS ? count : 0, size);
    call->types = next_array(bytes, used, has & HAS_TYPES ? count : 0, size);
    call->axes = next_array(bytes, used, has & HAS_AXES ? ROPE_AXES * count : 0, sizeof(float));
    lay_out_features(of, width, bytes, used, call->features);
    of[MULTIMODAL_SOUND] = 0;
    for (int32_t i = 0; s->shape->media && i < s->shape->media->deep_count; i++)
        lay_out_features(of, width, bytes, used, call->deep[i]);
    return TN_OK;
}

static void copy_list(int64_t *to, const int64_t *from, size_t count)
{
    if (to)
        memcpy(to, from, count * sizeof *to);
}

static tn_status write_call(const tn_session *s, const tn_batch *batch, const ranks_call *to, tn_error *err)
{
    size_t count = (size_t)(batch->rows * batch->tokens);
    copy_list(to->ids, batch->ids, count);
    copy_list(to->mask, batch->mask, count);
    copy_list(to->positions, batch->positions, count);
    copy_list(to->types, batch->token_types, count);
    if (to->axes)
        memcpy(to->axes, s->media.axes, ROPE_AXES * count * sizeof *to->axes);
    return media_read(&s->media, to->features, to->deep, err);
}

tn_status ranks_run(const tn_session *s, const tn_batch *batch, const tn_outputs *outputs, bool progress, tn_error *err)
{
    if (!s->model->group || s->model->group->end.rank > 0)
        return TN_OK;
    if (outputs->hidden && s->model->by_layers)
        return tn_fail(err, TN_E_USAGE, "parallel", "layers of a pipeline do not tell their states; use tensor");
    parallel_order order = {.kind = ORDER_RUN,
                            .session = s->number,
                            .number = {batch->tokens,
                                       (outputs->logits ? WANTS_LOGITS : 0) | (outputs->last_logits ? WANTS_LAST : 0) |
                                           (outputs->hidden ? WANTS_HIDDEN : 0),
                                       (batch->mask ? HAS_MASK : 0) | (batch->positions ? HAS_POSITIONS : 0) |
                                           (batch->token_types ? HAS_TYPES : 0) | (s->media.axes ? HAS_AXES : 0),
                                       progress, s->any_logits}};
    for (int kind = MULTIMODAL_IMAGE; kind < MULTIMODAL_KINDS; kind++)
        order.number[RUN_FEATURES + kind] = s->media.count[kind];
    ranks_call call;
    tn_status status = ranks_lay_out(s, &order, NULL, &call, err);
    order.bytes = (int64_t)call.bytes;
    char *bytes = status == TN_OK ? malloc(call.bytes) : NULL;
    if (status == TN_OK && !bytes)
        status = tn_fail(err, TN_E_MEMORY, "session", "out of memory");
    if (status == TN_OK)
        status = ranks_lay_out(s, &order, bytes, &call, err);
    if (status == TN_OK)
        status = write_call(s, batch, &call, err);
    if (status == TN_OK)
        status = parallel_tell(s->model, &order, bytes, err);
    free(bytes);
    return status;
}
