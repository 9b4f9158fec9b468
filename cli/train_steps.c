/* The steps of a training: gradients of several batches, a change of the weights, a line of the log, now and then a
 * checkpoint and a look at data that are held out. */
#include "stop.h"
#include "train.h"

#include <math.h>
#include <string.h>

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static tn_train_texts texts_of(const train_batch *b, double divisor)
{
    return (tn_train_texts){.size = sizeof(tn_train_texts),
                            .ids = b->ids,
                            .labels = b->labels,
                            .lengths = b->lengths,
                            .count = b->texts,
                            .divisor = divisor};
}

/* Where a run stands, for an error: a step is named from 1 on, as in the log. */
static tn_status at_step(const train_run *t, int64_t step, tn_error *err)
{
    tn_error why = *err;
    char from[96] = "no checkpoint was written yet";
    if (t->saved > 0)
        snprintf(from, sizeof from, "--resume goes on behind step %lld", (long long)t->saved);
    tn_error_clear(err);
    return tn_fail(err, why.code, why.where, "step %lld: %s; %s", (long long)step, why.message, from);
}

/* ---- ranks ----------------------------------------------------------------------------------------- */

tn_status train_share(train_run *t, tn_status status, const train_part *own, tn_error *err)
{
    status = tn_ranks_share(t->w.model, status, own, t->parts, sizeof *own, err);
    for (int32_t r = 0; status == TN_OK && r < t->s.ranks && t->stop == 0; r++)
        t->stop = t->parts[r].stop;
    return status;
}

/* Is any rank asked to stop? */
static tn_status look_around(train_run *t, tn_status status, tn_error *err)
{
    return train_share(t, status, &(train_part){.stop = stop_asked()}, err);
}

/* This rank's batch of as many as there are ranks, from begin on; it may have none. */
static const train_batch *take_own(train_rows *r, const train_settings *s, int64_t begin, int64_t end)
{
    int64_t own = least(begin + s->rank * s->batch, end);
    return train_rows_take(r, own, least(own + s->batch, end));
}

/* ---- data that are held out ----------------------------------------------------------------------- */

/* The mean over all of their labels. */
static tn_status evaluate(train_run *t, double *loss, tn_error *err)
{
    train_rows *r = &t->held;
    tn_status status = TN_OK;
    const train_settings in_order = {.shuffle = false};
    train_rows_turn(r, &in_order, 0);
    double divisor = (double)train_rows_labels(r, 0, r->count);
    *loss = 0;
    for (int64_t at = 0; at < r->count && status == TN_OK && !t->stop; at += t->s.batch * t->s.ranks) {
        tn_train_loss own = {.size = sizeof own};
        const train_batch *b = take_own(r, &t->s, at, r->count);
        const tn_train_texts texts = texts_of(b, divisor);
        progress_update(&t->w.progress, "evaluation", at, r->count);
        if (b->texts > 0)
            status = tn_trainer_evaluate(t->trainer, &texts, &own, err);
        status = train_share(t, status, &(train_part){.loss = own.loss, .stop = stop_asked()}, err);
        for (int32_t i = 0; status == TN_OK && i < t->s.ranks; i++)
            *loss += t->parts[i].loss;
    }
    return status == TN_OK && t->stop ? TN_E_CANCELLED : status;
}

/* Behind a step where that is to be done, unless the log has it. */
static tn_status evaluate_if_due(train_run *t, tn_error *err)
{
    train_entry e = {.step = t->done, .epoch = (double)t->done / (double)t->epoch_steps};
    const train_entry *last = t->log.count > 0 ? &t->log.entries[t->log.count - 1] : NULL;
    bool due = t->done > 0 && (t->done % t->s.save_every == 0 || t->done == t->steps);
    if (!t->held.data || !due)
        return TN_OK;
    const train_part own = {.number = last && last->step == t->done && !isnan(last->eval)};
    tn_status status = train_share(t, TN_OK, &own, err);
    if (status != TN_OK || t->parts->number) /* rank 0 has the log                                          */
        return status;
    status = evaluate(t, &e.eval, err);
    if (status == TN_OK && !isfinite(e.eval))
        status = tn_fail(err, TN_E_VERIFY, "--eval", "the loss is no number");
    if (status == TN_OK)
        status = train_log_add(&t->log, &e, err);
    if (status == TN_OK)
        train_print_eval(t, &e);
    return status;
}

/* ---- a step --------------------------------------------------------------------------------------- */

static tn_status backward(train_run *t, int64_t begin, int64_t end, double *loss, tn_error *err)
{
    double divisor = (double)train_rows_labels(&t->rows, begin, end);
    char label[48];
    snprintf(label, sizeof label, "step %lld/%lld", (long long)t->done + 1, (long long)t->steps);
    *loss = 0;
    for (int64_t at = begin; at < end; at += t->s.batch * t->s.ranks) {
        tn_train_loss own = {.size = sizeof own};
        const train_batch *b = take_own(&t->rows, &t->s, at, end);
        const tn_train_texts texts = texts_of(b, divisor);
        progress_update(&t->w.progress, label, at - begin, end - begin);
        tn_status status = tn_trainer_backward(t->trainer, &texts, &own, err);
        workspace_notices(&t->w);
        status = train_share(t, status, &(train_part){.loss = own.loss, .number = b->tokens}, err);
        if (status != TN_OK)
            return status;
        for (int32_t i = 0; i < t->s.ranks; i++) {
            *loss += t->parts[i].loss;
            t->tokens += t->parts[i].number;
            t->told_tokens += t->parts[i].number;
        }
    }
    return isfinite(*loss) ? TN_OK
                           : tn_fail(err, TN_E_VERIFY, "train", "the loss is no number; a smaller --lr may help");
}

static tn_status one_step(train_run *t, tn_error *err)
{
    double began = seconds_now();
    int64_t rows = t->s.batch * t->s.accumulate, begin = t->done % t->epoch_steps * rows;
    train_entry e = {.step = t->done + 1, .epoch = (double)(t->done + 1) / (double)t->epoch_steps, .eval = NAN};
    train_rows_turn(&t->rows, &t->s, t->done / t->epoch_steps);
    tn_status status = backward(t, begin, least(begin + rows, t->rows.count), &e.loss, err);
    e.rate = t->s.rate * tn_schedule_at(t->s.schedule, t->done, t->warmup, t->steps);
    const tn_train_step how = {.size = sizeof how, .rate = e.rate, .decay = t->s.decay, .max_norm = t->s.clip};
    if (status == TN_OK)
        status = tn_trainer_step(t->trainer, &how, &e.norm, err);
    if (status == TN_OK)
        status = train_log_add(&t->log, &e, err);
    if (status != TN_OK)
        return status;
    t->done++;
    t->seconds += seconds_now() - began;
    t->told_seconds += seconds_now() - began;
    train_print_step(t, &e);
    return TN_OK;
}

/* ---- all of them ---------------------------------------------------------------------------------- */

static tn_status save(train_run *t, tn_error *err)
{
    if (t->saved == t->done)
        return TN_OK;
    if (t->log.file)
        train_log_sync(&t->log); /* no checkpoint is ahead of it                                            */
    tn_status status = train_checkpoint_write(t->trainer, &t->s, &t->id, t->done, t->steps,
                                              (double)t->done / (double)t->epoch_steps, err);
    if (status == TN_OK)
        t->saved = t->done;
    return status;
}

tn_status train_steps(train_run *t, tn_error *err)
{
    const train_part nothing = {0};
    t->told = seconds_now();
    progress_start(&t->w.progress, t->s.o);
    tn_status status = look_around(t, TN_OK, err);
    if (status == TN_OK && !t->stop)
        status = train_share(t, evaluate_if_due(t, err), &nothing, err);
    while (status == TN_OK && t->done < t->steps && !t->stop) {
        int64_t step = t->done + 1;
        status = look_around(t, one_step(t, err), err);
        if (status == TN_OK && (t->done % t->s.save_every == 0 || t->done == t->steps || t->stop))
            status = train_share(t, save(t, err), &nothing, err);
        if (status == TN_OK && !t->stop)
            status = train_share(t, evaluate_if_due(t, err), &nothing, err);
        if (status != TN_OK && status != TN_E_CANCELLED)
            at_step(t, step, err);
    }
    progress_clear(&t->w.progress);
    return status == TN_OK && (t->done < t->steps || t->stop) ? TN_E_CANCELLED : status;
}
