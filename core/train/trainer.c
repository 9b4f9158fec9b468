/* A forward over texts, their loss, and the way back. */
#include "open/parallel.h"
#include "train/replicas.h"
#include "train/router_loss.h"
#include "train/save.h"
#include "train/resume.h"
#include "train/walk.h"

#include "base/convert.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/structs.h"
#include "eager/vec.h"
#include "generate/chunk.h"
#include "run/guest.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_TOKENS = 4096, HEAD_TOKENS = GRAPH_WIDE_TOKENS };

struct tn_trainer {
    tn_model *model;
    const model_shape *shape;
    train_params params;
    optimiser optimiser;
    arena arena;
    tape tape;
    chunk_inputs in;
    router_loss router; /* factor 0: none                                                         */
    guest_watch watch;
    run_segment *segment; /* max_tokens                                                            */
    chunk_part *part;
    int64_t (*lengths)[MODEL_ROPES];
    train_walk walk;
    size_t met;    /* most of the tape that was ever used                                               */
    float *logits; /* of a row for each thread                                                                  */
    int64_t max_tokens;
    int32_t threads;
};

static tn_status open_parts(tn_trainer *t, tn_keep keep, tn_error *err)
{
    const device *device = t->model->target.device;
    t->segment = calloc((size_t)t->max_tokens, sizeof *t->segment);
    t->part = calloc((size_t)t->max_tokens, sizeof *t->part);
    t->lengths = calloc((size_t)t->max_tokens, sizeof *t->lengths);
    t->logits = calloc((size_t)tn_thread_count() * (size_t)t->shape->vocab, sizeof *t->logits);
    if (!t->segment || !t->part || !t->lengths || !t->logits)
        return tn_fail(err, TN_E_MEMORY, "gradients", "out of memory; use a smaller max_tokens");
    tn_status status = walk_open(&t->walk, t->model, keep, err);
    if (status == TN_OK)
        status = params_open(&t->params, t->model, err);
    replicas_open(&t->params);
    if (status == TN_OK) /* as many addresses as there is memory: what is used of them is what the texts need      */
        status = tape_open(&t->tape, &t->arena, device, memory_of_machine((size_t)16 << 30),
                           (tape_sums){params_find, &t->params}, err);
    if (status == TN_OK)
        status = chunk_init(&t->in, device, t->model->dtype, t->shape, 1, t->max_tokens, 0, err);
    return status;
}

/* An adapter's factors act in f32, but while they are trained in mixed precision in the model's type, as autocast has
 * it. */
static void round_factors(const tn_model *model, bool rounded)
{
    const graph *g = model->target.graph;
    for (size_t i = 0; i < g->site_count; i++)
        if (g->sites[i]->site.op == TN_OP_LORA_LINEAR) {
            uint64_t *features = &g->sites[i]->site.features;
            *features = rounded ? *features | TN_HAS_ROUNDED_FACTORS : *features & ~TN_HAS_ROUNDED_FACTORS;
        }
}

static bool is_out_of(double value, double least, double most)
{
    return !(value >= least && value <= most); /* NaN is, too                                              */
}

tn_trainer *tn_trainer_open(tn_model *model, const tn_train_options *given, tn_error *err)
{
    tn_train_options options = {.size = sizeof options};
    tn_status taken = model ? TN_OK : structs_missing("model", err);
    if (taken == TN_OK && given)
        taken = structs_take(&options, sizeof options, given, "tn_train_options", err);
    options.max_tokens = options.max_tokens ? options.max_tokens : MAX_TOKENS;
    if (taken == TN_OK && (options.max_tokens < 1 || options.max_tokens > INT32_MAX))
        taken =
            tn_fail(err, TN_E_USAGE, "max_tokens", "is %lld; pass a positive number", (long long)options.max_tokens);
    if (taken == TN_OK && model->group)
        taken = tn_fail(err, TN_E_USAGE, "parallel", "training is not cut over ranks; give replicas");
    if (taken == TN_OK && (options.precision < TN_PRECISION_AUTO || options.precision > TN_PRECISION_PURE))
        taken = tn_fail(err, TN_E_USAGE, "precision", "is %d; there is none of that number", (int)options.precision);
    if (taken == TN_OK && (options.keep < TN_KEEP_AUTO || options.keep > TN_KEEP_LAYERS))
        taken = tn_fail(err, TN_E_USAGE, "keep", "is %d; there is none of that number", (int)options.keep);
    if (taken == TN_OK && is_out_of(options.router_loss, 0, 1e6))
        taken = tn_fail(err, TN_E_USAGE, "router_loss", "is %g; pass the factor, or 0", options.router_loss);
    tn_trainer *t = taken == TN_OK ? calloc(1, sizeof *t) : NULL;
    if (taken == TN_OK && !t)
        tn_fail(err, TN_E_MEMORY, "tn_trainer_open", "out of memory");
    if (!t)
        return NULL;
    t->model = model;
    t->shape = model->flow->shape(model->arch_state);
    t->max_tokens = options.max_tokens;
    t->threads = tn_thread_count();
    router_loss_open(&t->router, options.router_loss);
    tn_status status =
        options.router_loss > 0 && !models_balances(model->arch->model_type)
            ? tn_fail(err, TN_E_USAGE, model->folder, "is a %s, whose routers have no loss", model->arch->model_type)
        : (options.precision == TN_PRECISION_PURE && model->dtype == TN_F32) ||
                (options.precision == TN_PRECISION_MIXED && (model->adapter ? model->dtype == TN_F32 : !model->narrow))
            ? tn_fail(err, TN_E_USAGE, "precision",
                      "is not how %s was opened: in \"mixed\" for mixed, in bf16 for pure", model->folder)
        : !model->target.training
            ? tn_fail(err, TN_E_USAGE, model->folder,
                      "gradients need a model that was opened for training (tn_model_options.training)")
        : model->borrowed ? tn_fail(err, TN_E_USAGE, model->folder, "its weights are the program's, which trains them")
        : t->shape->no_head ? tn_fail(err, TN_E_USAGE, model->folder, "has no head, so it gives no loss")
                            : open_parts(t, options.keep, err);
    status = parallel_meet(model, status, err);
    if (status == TN_OK && model->replicas)
        status = parallel_alike(model, err);
    if (status == TN_OK) {
        round_factors(model, options.precision != TN_PRECISION_PURE && model->dtype != TN_F32);
        guest_watch_open(&t->watch, model->target.device, model->target.graph);
        return t;
    }
    tn_trainer_close(t);
    return NULL;
}

void tn_trainer_close(tn_trainer *t)
{
    if (!t)
        return;
    round_factors(t->model, false);
    guest_watch_close(&t->watch);
    tape_close(&t->tape);
    optimiser_close(&t->optimiser);
    params_close(&t->params);
    chunk_close(&t->in);
    router_loss_close(&t->router);
    walk_close(&t->walk);
    free(t->segment);
    free(t->part);
    free(t->lengths);
    free(t->logits);
    free(t);
}

void tn_trainer_clear(tn_trainer *t)
{
    if (t)
        params_clear(&t->params);
}

tn_status tn_trainer_gradient(const tn_trainer *t, const char *name, tn_tensor *gradient, tn_error *err)
{
    if (!t || !name || !gradient)
        return tn_fail(err, TN_E_USAGE, "tn_trainer_gradient", "trainer, name or gradient is NULL");
    if (t->params.group)
        return tn_fail(err, TN_E_USAGE, "tn_trainer_gradient", "ranks have parts of gradients");
    return params_gradient(&t->params, name, gradient, err);
}

/* ---- what goes in ---------------------------------------------------------------------------------- */

static tn_status check_texts(const tn_trainer *t, const tn_train_texts *texts, int64_t *tokens, tn_error *err)
{
    *tokens = 0;
    if (!texts->ids || !texts->labels || !texts->lengths || texts->count < (t->params.group ? 0 : 1))
        return tn_fail(err, TN_E_USAGE, "tn_trainer_backward",
                       "no texts; pass ids, labels and lengths of at least one");
    for (int64_t i = 0; i < texts->count; i++) {
        if (texts->lengths[i] < 1 || texts->lengths[i] > t->max_tokens - *tokens)
            return tn_fail(err, TN_E_USAGE, "lengths", "text %lld has %lld tokens, and all together may have 1 to %lld",
                           (long long)i, (long long)texts->lengths[i], (long long)t->max_tokens);
        *tokens += texts->lengths[i];
    }
    for (int64_t i = 0; i < *tokens; i++) {
        int64_t id = texts->ids[i], label = texts->labels[i];
        if (id < 0 || id >= t->shape->vocab || (label != -100 && (label < 0 || label >= t->shape->vocab)))
            return tn_fail(err, TN_E_USAGE, "ids",
                           "token %lld has id %lld and label %lld, the vocabulary has 0 to %lld", (long long)i,
                           (long long)id, (long long)label, (long long)t->shape->vocab - 1);
    }
    return TN_OK;
}

static tn_status enter(tn_trainer *t, const tn_train_texts *texts, int64_t tokens, graph_run *r)
{
    tn_status status = walk_enter(&t->walk, r, texts);
    if (status != TN_OK)
        return status;
    for (int64_t i = 0, at = 0; i < texts->count; at += texts->lengths[i], i++) {
        int64_t n = texts->lengths[i];
        for (int64_t k = 0; k < n; k++) {
            t->in.ids[at + k] = texts->ids[at + k];
            t->in.index[at + k] = (int32_t)k;
            for (int a = 0; a < ROPE_AXES; a++)
                t->in.positions[at + k][a] = (float)k;
        }
        for (int32_t k = 0; k < t->shape->rope_count; k++)
            t->lengths[i][k] = rope_tables_length(&t->shape->rope[k], 0, n);
        t->segment[i] = (run_segment){at, n, t->walk.cache + i * t->shape->layers};
        t->part[i] = (chunk_part){n, t->lengths[i], 0};
    }
    inbox_begin(&t->in.box);
    status = chunk_upload(&t->in, t->part, texts->count, r->err);
    chunk_show(&t->in, tokens, r);
    r->segment = t->segment;
    r->segments = texts->count;
    r->wanted = tokens;
    return status;
}

/* ---- the loss -------------------------------------------------------------------------------------- */

/* What each token is to predict: -100, or the label of the next one of its text. */
static int64_t target_of(const tn_train_texts *texts, int64_t text_end, int64_t token)
{
    return token + 1 < text_end ? texts->labels[token + 1] : -100;
}

/* -log of the label's probability; row becomes the gradient of that divided by the divisor, unless that is 0. The sum
 * of a whole vocabulary begins with its largest, and goes on in double. */
static double cross_entropy(float *row, int64_t vocab, int64_t label, double divisor)
{
    enum { PIECE = 4096 };
    double sum = 1, at_label = row[label];
    int64_t top = 0;
    for (int64_t i = 1; i < vocab; i++)
        top = row[i] > row[top] ? i : top;
    float largest = row[top];
    row[top] = -INFINITY;
    for (int64_t i = 0; i < vocab; i += PIECE)
        sum += (double)vec_exp_sum(row + i, vocab - i < PIECE ? vocab - i : PIECE, largest);
    row[top] = 1;
    if (divisor != 0) {
        double own = (double)row[label] / sum - 1;
        vec_scale(row, vocab, (float)(1 / (sum * divisor)));
        row[label] = (float)(own / divisor);
    }
    return (double)largest + log(sum) - at_label;
}

/* Rows of logits, and what becomes of each. */
typedef struct block {
    tn_trainer *t;
    const tn_tensor *logits;
    tn_tensor gradient; /* data NULL: not wanted                                                           */
    const int64_t *targets;
    double divisor, losses[HEAD_TOKENS];
} block;

static void rows_loss(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    block *b = ctx;
    const tn_tensor *logits = b->logits, *g = &b->gradient;
    int64_t vocab = b->t->shape->vocab;
    float *row = b->t->logits + thread * vocab;
    size_t size = tn_dtype_size(logits->dtype);
    for (int64_t i = begin; i < end; i++) {
        if (b->targets[i] == -100)
            continue;
        convert_to_f32((const char *)logits->data + (size_t)(i * logits->stride[0]) * size, logits->dtype, row, vocab);
        b->losses[i] = cross_entropy(row, vocab, b->targets[i], g->data ? b->divisor : 0) / b->divisor;
        if (g->data)
            convert_from_f32(row, g->dtype, (char *)g->data + (size_t)(i * g->stride[0]) * size, vocab);
    }
}

/* Of rows of logits. On a tape their gradients are made, too. */
static void block_loss(tn_trainer *t, const graph_run *r, const tn_tensor *logits, const int64_t *targets,
                       double divisor, tn_train_loss *loss)
{
    block b = {.t = t, .logits = logits, .targets = targets, .divisor = divisor};
    if (r->tape)
        b.gradient = tape_gradient(r->tape, logits);
    tn_parallel_for(logits->shape[0], 1, rows_loss, &b);
    for (int64_t i = 0; i < logits->shape[0]; i++) {
        loss->loss += b.losses[i];
        loss->counted += targets[i] != -100;
    }
}

/* Logits of some rows of the result, their loss, and on a tape back to those rows. The logits are forgotten. */
static void head(tn_trainer *t, graph_run *r, int64_t first, int64_t rows, const int64_t *targets, double divisor,
                 tn_train_loss *loss)
{
    size_t mark = arena_mark(r->arena), calls = t->tape.count;
    tn_tensor x = steps_part(&r->result, 0, first, rows);
    r->first_row = first;
    tn_tensor logits = t->model->flow->logits(r, t->model->arch_state, &x);
    r->first_row = 0;
    if (r->status != TN_OK)
        return;
    block_loss(t, r, &logits, targets, divisor, loss);
    if (r->tape)
        r->status = tape_backward(r->tape, calls, mark, r->err);
    else
        arena_release(r->arena, mark);
}

static void heads(tn_trainer *t, graph_run *r, const tn_train_texts *texts, double divisor, tn_train_loss *loss)
{
    for (int64_t i = 0, begin = 0; i < texts->count; begin += texts->lengths[i], i++)
        for (int64_t at = begin, end = begin + texts->lengths[i]; at < end && r->status == TN_OK; at += HEAD_TOKENS) {
            int64_t rows = end - at < HEAD_TOKENS ? end - at : HEAD_TOKENS, targets[HEAD_TOKENS];
            bool any = false;
            for (int64_t k = 0; k < rows; k++)
                any |= (targets[k] = target_of(texts, end, at + k)) != -100;
            if (any)
                head(t, r, at, rows, targets, divisor, loss);
        }
}

static double count_labels(const tn_train_texts *texts)
{
    double count = 0;
    for (int64_t i = 0, begin = 0; i < texts->count; begin += texts->lengths[i], i++)
        for (int64_t at = begin; at < begin + texts->lengths[i]; at++)
            count += target_of(texts, begin + texts->lengths[i], at) != -100;
    return count;
}

/* Kernels are checked with calls as large as these before they are used for them. */
static tn_status check_calls(tn_trainer *t, const tn_train_texts *texts, int64_t tokens, tn_error *err)
{
    int64_t longest = 1;
    for (int64_t i = 0; i < texts->count; i++)
        longest = texts->lengths[i] > longest ? texts->lengths[i] : longest;
    return model_check_calls(t->model, 1, tokens, longest, err);
}

static bool drops(const tn_trainer *t)
{
    return t->model->adapter && t->model->adapter->config.dropout != 0;
}

/* What an adapter drops in this call, of several ranks in as many as they are; 0: nothing. */
static uint64_t noise_of(const tn_trainer *t)
{
    if (!drops(t))
        return 0;
    random_state r = {t->model->adapter->config.seed};
    r.state = random_bits(&r) + (uint64_t)(t->optimiser.drawn + 1 + t->model->info.rank);
    return random_bits(&r) | 1;
}

/* What activations and their gradients may take: nine tenths of what is free or theirs already, without what
 * parameters will take and a gradient of the largest. */
static size_t budget_of(const tn_trainer *t)
{
    size_t free_bytes = memory_available(memory_of_machine((size_t)16 << 30)) / 10 * 9 + t->arena.peak + t->met;
    size_t arrays = 1 + (t->optimiser.steps == 0 ? 2 : 0);
    size_t taken = arrays * t->params.bytes / (size_t)t->model->info.ranks + t->params.fresh_bytes, largest = 0;
    for (size_t i = 0; i < t->params.count; i++)
        largest = t->params.at[i].bytes > largest ? t->params.at[i].bytes : largest;
    taken += largest + 2 * (size_t)HEAD_TOKENS * (size_t)t->shape->vocab * sizeof(float);
    return free_bytes > taken ? free_bytes - taken : 0;
}

static tn_status run(tn_trainer *t, const tn_train_texts *texts, int64_t tokens, tape *tape, tn_train_loss *loss,
                     tn_error *err)
{
    graph_run r = {
        .device = t->model->target.device, .arena = &t->arena, .dtype = t->model->dtype, .tape = tape, .err = err};
    double divisor = texts->divisor != 0 ? texts->divisor : count_labels(texts);
    t->met = t->tape.high > t->met ? t->tape.high : t->met;
    t->walk.budget = t->walk.keep == TN_KEEP_AUTO ? budget_of(t) : 0;
    tape_reset(&t->tape);
    t->tape.tokens = t->in.device_ids;
    t->tape.padding = t->shape->padding;
    r.noise = tape ? noise_of(t) : 0;
    tn_status status = enter(t, texts, tokens, &r);
    if (status != TN_OK || (divisor == 0 && t->router.factor == 0))
        return status;
    if (t->router.factor > 0)
        router_loss_begin(&t->router, &r);
    walk_forward(&t->walk, &r);
    if (r.routes && r.status == TN_OK) {
        loss->router = router_loss_end(&t->router, tape);
        loss->loss += t->router.factor * loss->router;
    }
    heads(t, &r, texts, divisor, loss);
    if (tape)
        walk_backward(&t->walk, &r);
    return r.status;
}

/* tape NULL: the loss alone. */
static tn_status learn(tn_trainer *t, const tn_train_texts *given, tape *tape, tn_train_loss *loss, tn_error *err)
{
    int64_t tokens;
    tn_train_loss own = {.size = sizeof own};
    tn_train_texts texts;
    tn_status status =
        t ? structs_take(&texts, sizeof texts, given, "tn_train_texts", err) : structs_missing("trainer", err);
    if (status == TN_OK && loss)
        status = structs_check(loss, "tn_train_loss", err);
    if (status == TN_OK)
        status = check_texts(t, &texts, &tokens, err);
    if (status == TN_OK && tokens > 0)
        status = check_calls(t, &texts, tokens, err);
    if (status != TN_OK)
        return status;
    t->params.many = tokens > GRAPH_MAX_TOKENS;
    int32_t limit = threads_limit(t->threads);
    guest_watch_begin(&t->watch);
    status = tokens > 0 ? run(t, &texts, tokens, tape, &own, err) : TN_OK;
    guest_watch_end(&t->watch);
    threads_limit(limit);
    if (status == TN_OK && loss)
        status = structs_give(loss, &own, sizeof own, "tn_train_loss", err);
    return model_files_check(t->model, status, err);
}

tn_status tn_trainer_backward(tn_trainer *t, const tn_train_texts *texts, tn_train_loss *loss, tn_error *err)
{
    int64_t calls = 1;
    tn_status status = learn(t, texts, t ? &t->tape : NULL, loss, err);
    if (!t)
        return status;
    status = replicas_agree(&t->params, status, err);
    if (status == TN_OK && t->params.group)
        status = replicas_add(&t->params, texts->count > 0, &calls, err);
    else if (status == TN_OK)
        params_add(&t->params);
    t->optimiser.drawn += status == TN_OK && drops(t) ? calls : 0;
    return status;
}

tn_status tn_trainer_evaluate(tn_trainer *t, const tn_train_texts *texts, tn_train_loss *loss, tn_error *err)
{
    return learn(t, texts, NULL, loss, err);
}

tn_status tn_trainer_step(tn_trainer *t, const tn_train_step *given, double *norm, tn_error *err)
{
    tn_train_step step;
    double own;
    tn_status status =
        t ? structs_take(&step, sizeof step, given, "tn_train_step", err) : structs_missing("trainer", err);
    if (status != TN_OK)
        return status;
    step.beta1 = step.beta1 != 0 ? step.beta1 : 0.9;
    step.beta2 = step.beta2 != 0 ? step.beta2 : 0.999;
    step.eps = step.eps != 0 ? step.eps : 1e-8;
    if (is_out_of(step.rate, 0, 1e6) || is_out_of(step.decay, 0, 1e6) || is_out_of(step.eps, 0, 1e6) ||
        is_out_of(step.max_norm, 0, INFINITY) || is_out_of(step.beta1, 0, 1 - 1e-9) ||
        is_out_of(step.beta2, 0, 1 - 1e-9))
        return tn_fail(
            err, TN_E_USAGE, "tn_train_step",
            "rate %g, betas %g and %g, eps %g, decay %g, max_norm %g: none may be negative, betas are below 1",
            step.rate, step.beta1, step.beta2, step.eps, step.decay, step.max_norm);
    int32_t limit = threads_limit(t->threads);
    status = optimiser_step(&t->optimiser, t->model, &t->params, &step, norm ? norm : &own, err);
    threads_limit(limit);
    return status;
}

tn_status tn_trainer_save(const tn_trainer *t, const char *folder, tn_error *err)
{
    if (!t || !folder)
        return structs_missing(t ? "folder" : "trainer", err);
    if (t->model->adapter)
        return tn_fail(err, TN_E_USAGE, t->model->folder,
                       "its adapter was trained, not its weights; use tn_trainer_save_adapter or tn_model_merge");
    tn_status status = replicas_writes(&t->params) ? save_model(t->model, false, folder, err) : TN_OK;
    return replicas_agree(&t->params, model_files_check(t->model, status, err), err);
}

tn_status tn_trainer_save_adapter(const tn_trainer *t, const char *folder, tn_error *err)
{
    if (!t || !folder)
        return structs_missing(t ? "folder" : "trainer", err);
    tn_status status = replicas_writes(&t->params) ? save_adapter(t->model, folder, err) : TN_OK;
    return replicas_agree(&t->params, status, err);
}

tn_status tn_trainer_save_state(const tn_trainer *t, const char *file, tn_error *err)
{
    if (!t || !file)
        return structs_missing(t ? "file" : "trainer", err);
    return model_files_check(t->model, resume_save(&t->params, &t->optimiser, file, err), err);
}

tn_status tn_trainer_load_state(tn_trainer *t, const char *file, tn_error *err)
{
    if (!t || !file)
        return structs_missing(t ? "file" : "trainer", err);
    return model_files_check(t->model, resume_load(&t->params, &t->optimiser, t->model, file, err), err);
}
