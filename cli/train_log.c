/* DIR/trainer_log.jsonl: a line for each step, with the members that LLaMA-Factory's has. Nothing in it depends on
 * time, so that a training that was interrupted has the same one. */
#include "train.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static tn_status keep(train_log *log, const train_entry *entry, tn_error *err)
{
    if ((log->count & (log->count + 1)) == 0) { /* there is room for one less than a power of two */
        train_entry *more = realloc(log->entries, (2 * log->count + 1) * sizeof *more);
        if (!more)
            return tn_fail(err, TN_E_MEMORY, log->path, "out of memory; close other programs");
        log->entries = more;
    }
    log->entries[log->count++] = *entry;
    return TN_OK;
}

/* A line of the file; false where it is none, as the last one of a process that was killed. */
static bool parse(const char *line, size_t length, train_entry *e)
{
    json_t *root = json_loadb(line, length, JSON_DECODE_INT_AS_REAL, NULL);
    const json_t *loss = json_object_get(root, "loss"), *eval = json_object_get(root, "eval_loss");
    *e = (train_entry){.step = (int64_t)json_real_value(json_object_get(root, "step")),
                       .epoch = json_real_value(json_object_get(root, "epoch")),
                       .loss = json_real_value(loss),
                       .norm = json_real_value(json_object_get(root, "grad_norm")),
                       .rate = json_real_value(json_object_get(root, "learning_rate")),
                       .eval = eval ? json_real_value(eval) : NAN};
    bool good = e->step > 0 && (loss || eval);
    json_decref(root);
    return good;
}

tn_status train_log_open(train_log *log, const char *folder, tn_error *err)
{
    snprintf(log->path, sizeof log->path, "%s/trainer_log.jsonl", folder);
    log->file = fopen(log->path, "a+e");
    if (!log->file)
        return tn_fail(err, TN_E_INPUT, log->path, "cannot be written: %s", strerror(errno));
    if (flock(fileno(log->file), LOCK_EX | LOCK_NB) != 0)
        return tn_fail(err, TN_E_USAGE, folder, "another tenon train is at work there; wait for it");
    rewind(log->file);
    return TN_OK;
}

tn_status train_log_read(train_log *log, int64_t done, int64_t steps, tn_error *err)
{
    char *line = NULL;
    size_t room = 0;
    off_t good = 0;
    tn_status status = TN_OK;
    train_entry e;
    log->steps = steps;
    for (ssize_t n; status == TN_OK && (n = getline(&line, &room, log->file)) > 0; good += n) {
        if (line[n - 1] != '\n' || !parse(line, (size_t)n, &e) || e.step > done)
            break;
        status = keep(log, &e, err);
    }
    free(line);
    if (status == TN_OK && (ftruncate(fileno(log->file), good) != 0 || fseeko(log->file, good, SEEK_SET) != 0))
        status = tn_fail(err, TN_E_INPUT, log->path, "cannot be written: %s", strerror(errno));
    return status;
}

tn_status train_log_add(train_log *log, const train_entry *e, tn_error *err)
{
    char epoch[32], loss[32], norm[32], rate[32];
    tn_status status = keep(log, e, err);
    if (status != TN_OK || !log->file)
        return status;
    fprintf(log->file, "{\"epoch\": %s, \"step\": %lld, ", train_number(e->epoch, epoch), (long long)e->step);
    if (isnan(e->eval))
        fprintf(log->file, "\"loss\": %s, \"grad_norm\": %s, \"learning_rate\": %s, ", train_number(e->loss, loss),
                train_number(e->norm, norm), train_number(e->rate, rate));
    else
        fprintf(log->file, "\"eval_loss\": %s, ", train_number(e->eval, loss));
    fprintf(log->file, "\"total_steps\": %lld}\n", (long long)log->steps);
    return fflush(log->file) == 0 && !ferror(log->file)
               ? TN_OK
               : tn_fail(err, TN_E_INPUT, log->path, "cannot be written: %s", strerror(errno));
}

void train_log_sync(const train_log *log)
{
    fsync(fileno(log->file));
}

void train_log_close(train_log *log)
{
    if (log->file)
        fclose(log->file);
    free(log->entries);
    *log = (train_log){0};
}
