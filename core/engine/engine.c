/* Engines: options, and taking sequences in and out. */
#include "engine/engine_state.h"

#include "base/memory.h"
#include "base/structs.h"
#include "engine/prints.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_SEQUENCES = 16, DEFAULT_BUDGET = 512, MOST_SEQUENCES = 1024 };

static size_t quarter_of_memory(void)
{
    return memory_of_machine((size_t)4 << 30) / 4;
}

/* Models whose tokens see those behind them take a text in one call, which an engine does not promise. */
static tn_status check_model(const tn_model *model, const model_shape *shape, tn_error *err)
{
    if (shape->no_head)
        return tn_fail(err, TN_E_INPUT, model->folder, "has no head (lm_head.weight), so it continues no text");
    if (shape->both_sides || (shape->media && shape->media->sight == SIGHT_PROMPT))
        return tn_fail(err, TN_E_INPUT, model->folder,
                       "is a model whose prompts see those behind them, which are not "
                       "computed in pieces");
    if (model->group)
        return tn_fail(err, TN_E_USAGE, "parallel", "many texts at once are not computed over ranks; use sessions");
    return TN_OK;
}

static tn_status check_options(tn_engine_options *o, const model_shape *shape, tn_error *err)
{
    o->sequences = o->sequences ? o->sequences : DEFAULT_SEQUENCES;
    o->context = o->context ? o->context : shape->max_positions;
    o->budget = o->budget ? o->budget : DEFAULT_BUDGET;
    o->cache_bytes = o->cache_bytes ? o->cache_bytes : quarter_of_memory();
    if (o->sequences < 1 || o->sequences > MOST_SEQUENCES || o->context < 1 || o->context > INT32_MAX ||
        o->budget < 1 || o->budget + o->sequences > GRAPH_MAX_TOKENS)
        return tn_fail(err, TN_E_USAGE, "engine",
                       "sequences %lld, context %lld and budget %lld must be positive and not absurd",
                       (long long)o->sequences, (long long)o->context, (long long)o->budget);
    if (shape->learnt.count && o->context > shape->max_positions)
        return tn_fail(err, TN_E_USAGE, "engine",
                       "context %lld: the model has learnt %lld positions; use a smaller one", (long long)o->context,
                       (long long)shape->max_positions);
    return TN_OK;
}

/* How prompts are cut, and how generated tokens come to their place again: as they did, where that is part of what they
 * are. */
static void know_model(tn_engine *e)
{
    const model_shape *shape = e->maker.shape;
    for (int64_t i = 0; i < shape->layers; i++)
        e->has_states |= shape->layer[i].conv_taps > 0 || shape->layer[i].state_heads > 0;
    e->replays = e->has_states;
    for (int32_t i = 0; i < shape->rope_count; i++)
        e->replays |= shape->restart_at == 0 && rope_tables_follow(&shape->rope[i]);
}

static tn_status make(tn_engine *e, const tn_engine_options *o, tn_error *err)
{
    tn_model *model = e->model;
    const model_shape *shape = e->maker.shape;
    know_model(e);
    int64_t budget = e->has_states && o->budget < ENGINE_GRID ? ENGINE_GRID : o->budget;
    budget = budget < o->context ? budget : o->context;
    tn_status status = tn_model_get_info(model, &e->model_info);
    if (status != TN_OK)
        return tn_fail(err, status, "model", "has no information");
    e->limits = (sequence_limits){.vocab = shape->vocab,
                                  .context = o->context,
                                  .info = &e->model_info,
                                  .model = model,
                                  .shape = shape,
                                  .budget = budget,
                                  .run_tokens = budget + o->sequences,
                                  .key = prints_draw_key()};
    e->sequences = o->sequences;
    e->budget = budget;
    e->cache_bytes = o->cache_bytes;
    int64_t texts = ENGINE_PIECES / (ENGINE_LAYER_PIECES * (shape->layers > 0 ? shape->layers : 1)) - o->sequences;
    e->most_kept = texts < 0 ? 0 : texts < ENGINE_KEPT ? texts : ENGINE_KEPT;
    e->maker = (held_maker){model, shape, o->context, budget};
    e->running = calloc((size_t)o->sequences, sizeof *e->running);
    e->part = calloc((size_t)o->sequences, sizeof *e->part);
    e->of_part = calloc((size_t)o->sequences, sizeof *e->of_part);
    if (!e->running || !e->part || !e->of_part)
        return tn_fail(err, TN_E_MEMORY, "engine", "out of memory; use fewer sequences");
    status = model_check_calls(model, 1, budget + o->sequences, o->context, err);
    if (status == TN_OK)
        status = held_open_cache(&e->sample, &e->maker, err);
    if (status != TN_OK)
        return status;
    return compute_init(&e->compute, model, &e->sample.cache, o->sequences, budget + o->sequences, err);
}

tn_engine *tn_engine_new(tn_model *model, const tn_engine_options *options, tn_error *err)
{
    tn_engine_options o = {0};
    if (!model)
        structs_missing("model", err);
    if (!model || (options && structs_take(&o, sizeof o, options, "tn_engine_options", err) != TN_OK))
        return NULL;
    const model_shape *shape = model->flow->shape(model->arch_state);
    if (check_model(model, shape, err) != TN_OK || check_options(&o, shape, err) != TN_OK)
        return NULL;
    tn_engine *e = calloc(1, sizeof *e);
    if (!e) {
        tn_fail(err, TN_E_MEMORY, "engine", "out of memory");
        return NULL;
    }
    e->model = model;
    e->maker.shape = shape;
    e->model_info.size = sizeof e->model_info;
    e->next_id = 1;
    model->target.session_count++;
    if (make(e, &o, err) == TN_OK)
        return e;
    tn_engine_free(e);
    return NULL;
}

static void cancel(sequence *s)
{
    tn_error why = TN_ERROR_INIT;
    tn_fail(&why, TN_E_CANCELLED, "engine", "cancelled");
    sequence_end(s, TN_E_CANCELLED, &why);
}

void tn_engine_free(tn_engine *e)
{
    if (!e)
        return;
    for (int64_t i = 0; i < e->waiting_count; i++) {
        cancel(e->waiting[i]);
        sequence_free(e->waiting[i]);
    }
    for (int64_t i = 0; i < e->running_count; i++) {
        cancel(e->running[i]);
        sequence_free(e->running[i]);
    }
    for (int64_t i = 0; i < e->kept_count; i++) {
        held_close(e->kept[i]);
        free(e->kept[i]);
    }
    compute_close(&e->compute);
    held_close(&e->sample);
    free(e->waiting);
    free(e->running);
    free(e->part);
    free(e->of_part);
    e->model->target.session_count--;
    model_calls_done(e->model);
    free(e);
}

/* Room for all sequences, since those that run may wait again. */
static tn_status make_place(tn_engine *e, tn_error *err)
{
    int64_t all = e->waiting_count + e->running_count + 1;
    if (all <= e->waiting_capacity)
        return TN_OK;
    sequence **more = realloc(e->waiting, 2 * (size_t)all * sizeof *more);
    if (!more)
        return tn_fail(err, TN_E_MEMORY, "engine", "out of memory");
    e->waiting = more;
    e->waiting_capacity = 2 * all;
    return TN_OK;
}

tn_status tn_engine_add(tn_engine *e, const tn_engine_request *request, uint64_t *id, tn_error *err)
{
    tn_status status = e ? make_place(e, err) : structs_missing("engine", err);
    if (status != TN_OK)
        return status;
    tn_error why = TN_ERROR_INIT;
    sequence *s = sequence_new(request, &e->limits, &why);
    if (!s)
        return tn_fail(err, why.code, why.where, "%s", why.message);
    if (held_would_hold(&e->sample, s->prompt) > e->cache_bytes) {
        status = tn_fail(err, TN_E_INPUT, "input", "%lld tokens need more than the %zu MiB that the cache may take",
                         (long long)s->prompt, e->cache_bytes >> 20);
        sequence_free(s);
        return status;
    }
    s->id = e->next_id++;
    e->waiting[e->waiting_count++] = s;
    if (id)
        *id = s->id;
    return TN_OK;
}

void tn_engine_cancel(tn_engine *e, uint64_t id)
{
    for (int64_t i = 0; e && i < e->running_count; i++)
        if (e->running[i]->id == id) {
            cancel(e->running[i]);
            admit_leave(e, i);
            return;
        }
    for (int64_t i = 0; e && i < e->waiting_count; i++)
        if (e->waiting[i]->id == id) {
            sequence *s = e->waiting[i];
            memmove(e->waiting + i, e->waiting + i + 1, (size_t)(e->waiting_count - i - 1) * sizeof *e->waiting);
            e->waiting_count--;
            cancel(s);
            sequence_free(s);
            return;
        }
}

tn_status tn_engine_get_info(const tn_engine *e, tn_engine_info *info)
{
    if (!e || !info)
        return structs_missing(e ? "info" : "engine", NULL);
    tn_engine_info now = e->info;
    now.size = sizeof now;
    now.running = e->running_count;
    now.waiting = e->waiting_count;
    now.sequences = e->sequences;
    now.context = e->limits.context;
    now.cache_held = admit_held(e);
    now.cache_bytes = e->cache_bytes;
    return structs_give(info, &now, sizeof now, "tn_engine_info", NULL);
}
