/* What ranks but 0 do: what rank 0 tells them. */
#include "base/structs.h"
#include "generate/ranks.h"
#include "generate/session.h"
#include "generate/session_state.h"

#include <tenon/parallel.h>

#include <stdlib.h>

typedef struct following {
    tn_model *model;
    tn_config *config;
    tn_session **sessions; /* by number; NULL: freed, or none of rank 0's either                          */
    int64_t count;
    tn_error *err;
} following;

static tn_status make_session(following *f, const parallel_order *order)
{
    const tn_session_options options = {.size = sizeof options,
                                        .rows = order->number[0],
                                        .context = order->number[1],
                                        .chunk = order->number[2],
                                        .whole_cache = order->number[3]};
    tn_session **more = realloc(f->sessions, (size_t)(order->session + 1) * sizeof *more);
    if (!more)
        return tn_fail(f->err, TN_E_MEMORY, "session", "out of memory");
    f->sessions = more;
    while (f->count <= order->session)
        f->sessions[f->count++] = NULL;
    tn_status alike = order->session == 0 ? parallel_alike(f->model, f->err) : TN_OK;
    f->model->sessions_made = order->session;
    if (alike == TN_OK)
        f->sessions[order->session] = tn_session_new(f->model, &options, f->err);
    else
        parallel_agree(f->model, alike, f->err);
    if (f->model->group->failed)
        return f->err->code;
    tn_error_clear(f->err); /* where it could not be made rank 0 has the error, too                          */
    return TN_OK;
}

/* What a follower's batch points to. */
typedef struct told_media {
    tn_pictures pictures[MULTIMODAL_KINDS];
    const float *deep[MULTIMODAL_KINDS][RUN_DEEP];
    tn_sounds sounds;
} told_media;

static const tn_pictures *take_pictures(const tn_session *s, const parallel_order *order, const ranks_call *call,
                                        multimodal_kind kind, told_media *to)
{
    tn_pictures *p = &to->pictures[kind];
    *p = (tn_pictures){.size = sizeof *p,
                       .features = call->features[kind],
                       .feature_count = order->number[RUN_FEATURES + kind],
                       .deep = to->deep[kind],
                       .deep_count = s->shape->media ? s->shape->media->deep_count : 0};
    for (int32_t i = 0; i < RUN_DEEP; i++)
        to->deep[kind][i] = call->deep[i][kind];
    return p->features ? p : NULL;
}

static tn_status take_call(tn_session *s, const parallel_order *order, char *bytes, tn_batch *batch, told_media *to,
                           tn_error *err)
{
    ranks_call call;
    tn_status status = ranks_lay_out(s, order, bytes, &call, err);
    if (status == TN_OK && order->bytes != (int64_t)call.bytes)
        status = tn_fail(err, TN_E_INTERNAL, "parallel",
                         "a call of rank 0 has other bytes than it tells of; report this defect");
    if (status != TN_OK)
        return status;
    *batch = (tn_batch){.size = sizeof *batch,
                        .rows = s->rows,
                        .tokens = order->number[0],
                        .ids = call.ids,
                        .mask = call.mask,
                        .positions = call.positions,
                        .token_types = call.types,
                        .axes = call.axes};
    to->sounds = (tn_sounds){.size = sizeof to->sounds,
                             .features = call.features[MULTIMODAL_SOUND],
                             .feature_count = order->number[RUN_FEATURES + MULTIMODAL_SOUND]};
    batch->images = take_pictures(s, order, &call, MULTIMODAL_IMAGE, to);
    batch->videos = take_pictures(s, order, &call, MULTIMODAL_VIDEO, to);
    batch->sounds = to->sounds.features ? &to->sounds : NULL;
    return TN_OK;
}

static tn_status run(following *f, tn_session *s, const parallel_order *order, char *bytes)
{
    float *hidden[1];
    tn_batch batch;
    told_media media;
    tn_outputs outputs = {.size = sizeof outputs};
    tn_status status = take_call(s, order, bytes, &batch, &media, f->err);
    if (status != TN_OK)
        return status;
    if (!s->discard && !(s->discard = malloc((size_t)(HEAD_ROWS * s->shape->vocab) * sizeof *s->discard)))
        return tn_fail(f->err, TN_E_MEMORY, "session", "out of memory");
    outputs.logits = order->number[1] & WANTS_LOGITS ? s->discard : NULL;
    outputs.last_logits = order->number[1] & WANTS_LAST ? s->discard : NULL;
    outputs.hidden = order->number[1] & WANTS_HIDDEN ? hidden : NULL;
    s->any_logits = order->number[4];
    ranks_asked ask = {.session = s, .err = f->err};
    status = session_run(s, &batch, &outputs, order->number[3] ? ranks_ask : NULL, &ask, f->err);
    if (status == TN_E_CANCELLED || status == TN_E_VERIFY) { /* all of them have that                       */
        tn_error_clear(f->err);
        status = TN_OK;
    }
    return status;
}

static tn_status carry_out(following *f, const parallel_order *order, char *bytes)
{
    if (order->kind == ORDER_APPLY)
        return parallel_apply_told(f->model, f->config, order, bytes, f->err);
    if (order->kind == ORDER_NEW)
        return make_session(f, order);
    tn_session *s = order->session < f->count ? f->sessions[order->session] : NULL;
    if (!s && order->kind == ORDER_FREE)
        return TN_OK;
    if (!s)
        return tn_fail(f->err, TN_E_INTERNAL, "parallel", "an order of rank 0 is about no session; report this defect");
    if (order->kind == ORDER_RUN)
        return run(f, s, order, bytes);
    if (order->kind == ORDER_RESET)
        tn_session_reset(s);
    else if (order->kind == ORDER_REWIND)
        tn_session_rewind(s, order->number[0], NULL);
    else if (order->kind == ORDER_FREE) {
        tn_session_free(s);
        f->sessions[order->session] = NULL;
    }
    return TN_OK;
}

tn_status tn_follow(tn_model *model, tn_config *config, tn_error *err)
{
    tn_error own = TN_ERROR_INIT;
    following f = {.model = model, .config = config, .err = err ? err : &own};
    parallel_order order = {.kind = ORDER_NEW};
    if (!model || !config)
        return structs_missing(model ? "config" : "model", err);
    if (!model->group || model->group->end.rank == 0)
        return tn_fail(err, TN_E_USAGE, "parallel", "tn_follow is for ranks but 0 of a model that is opened parallel");
    tn_status status = TN_OK;
    model->following = true;
    while (status == TN_OK) {
        char *bytes = NULL;
        status = group_tell(model->group, &order, sizeof order, true, f.err);
        if (status != TN_OK || order.kind == ORDER_END)
            break;
        if (order.bytes > 0 && !(bytes = malloc((size_t)order.bytes)))
            status = tn_fail(f.err, TN_E_MEMORY, "parallel", "out of memory");
        if (bytes)
            status = group_tell(model->group, bytes, (size_t)order.bytes, false, f.err);
        if (status == TN_OK)
            status = carry_out(&f, &order, bytes);
        free(bytes);
    }
    model->following = false;
    model->group->failed |= status != TN_OK;
    for (int64_t i = 0; i < f.count; i++)
        tn_session_free(f.sessions[i]);
    free(f.sessions);
    return status;
}
