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
    for (int64_t at = 0; at < r->count && status == TN_OK; at += t->s.batch) {
        tn_train_loss own = {.size = sizeof own};
        const train_batch *b = train_rows_take(r, at, least(at + t->s.batch, r->count));
        const tn_train_texts texts = texts_of(b, divisor);
        progress_update(&t->w.progress, "evaluation", at, r->count);
        if (stop_asked())
            return TN_E_CANCELLED;
        status = tn_trainer_evaluate(t->trainer, &texts, &own, err);
        *loss += own.loss;
    }
    return status;
}

/* Behind a step where that is to be done, unless the log has it. */
static tn_status evaluate_if_due(train_run *t, tn_error *err)
{
    train_entry e = {.step = t->done, .epoch = (double)t->done / (double)t->epoch_steps};
    const train_entry *last = t->log.count > 0 ? &t->log.entries[t->log.count - 1] : NULL;
    bool due = t->done > 0 && (t->done % t->s.save_every == 0 || t->done == t->steps);
    if (!t->held.data || !due || (last && last->step == t->done && !isnan(last->eval)))
        return TN_OK;
    tn_status status = evaluate(t, &e.eval, err);
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
    for (int64_t at = begin; at < end; at += t->s.batch) {
        tn_train_loss own = {.size = sizeof own};
        const train_batch *b = train_rows_take(&t->rows, at, least(at + t->s.batch, end));
        const tn_train_texts texts = texts_of(b, divisor);
        progress_update(&t->w.progress, label, at - begin, end - begin);
        tn_status status = tn_trainer_backward(t->trainer, &texts, &own, err);
        workspace_notices(&t->w);
        if (status != TN_OK)
            return status;
        *loss += own.loss;
        t->tokens += b->tokens;
        t->told_tokens += b->tokens;
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
    train_log_sync(&t->log); /* no checkpoint is ahead of it                                            */
    tn_status status = train_checkpoint_write(t->trainer, &t->s, &t->id, t->done, t->steps,
                                              (double)t->done / (double)t->epoch_steps, err);
    if (status == TN_OK)
        t->saved = t->done;
    return status;
}

tn_status train_steps(train_run *t, tn_error *err)
{
    t->told = seconds_now();
    progress_start(&t->w.progress, t->s.o);
    tn_status status = evaluate_if_due(t, err);
    while (status == TN_OK && t->done < t->steps && !stop_asked()) {
        int64_t step = t->done + 1;
        status = one_step(t, err);
        if (status == TN_OK && (t->done % t->s.save_every == 0 || t->done == t->steps || stop_asked()))
            status = save(t, err);
        if (status == TN_OK)
            status = stop_asked() ? TN_OK : evaluate_if_due(t, err);
        if (status != TN_OK && status != TN_E_CANCELLED)
            at_step(t, step, err);
    }
    progress_clear(&t->w.progress);
    return status == TN_OK && (t->done < t->steps || stop_asked()) ? TN_E_CANCELLED : status;
}
