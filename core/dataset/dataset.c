/* tenon/dataset.h: files read, many records at once, and what came of them. */
#include "dataset/dataset.h"

#include "base/structs.h"
#include "dataset/reader.h"
#include "base/sha256.h"

#include <tenon/services.h>

#include <stdlib.h>
#include <string.h>

enum { USUAL_LENGTH = 2048, BATCH = 256 };
#define BATCH_BYTES ((size_t)4 << 20)

struct tn_dataset {
    samples samples;
    int64_t max_length, skipped;
    char digest[65];
};

/* ---- reading ----------------------------------------------------------------------------------------- */

/* One record of a batch, which a thread makes samples of. */
typedef struct job {
    record record;
    samples made;
    int64_t line;
    tn_status status;
    tn_error err;
} job;

typedef struct reading {
    const record_reader *reader;
    tn_dataset *to;
    records file;
    job *jobs;
    int64_t count; /* of jobs                                                                      */
} reading;

static void read_jobs(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    reading *r = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        job *j = &r->jobs[i];
        samples_clear(&j->made);
        tn_error_clear(&j->err);
        j->status = record_read(r->reader, &j->record, r->file.kind == RECORDS_TEXT, &j->made, &j->line, &j->err);
    }
}

/* Fills jobs with records, no more of them than are soon read. */
static tn_status next_batch(reading *r, bool *more, tn_error *err)
{
    size_t bytes = 0;
    tn_status status = TN_OK;
    r->count = 0;
    *more = true;
    while (*more && status == TN_OK && r->count < BATCH && bytes < BATCH_BYTES) {
        job *j = &r->jobs[r->count];
        status = records_next(&r->file, &j->record, more, err);
        bytes += j->record.length;
        r->count += status == TN_OK && *more;
    }
    return status;
}

/* In the order of the file, so that it does not matter who read what. */
static tn_status join_batch(reading *r, tn_error *err)
{
    for (int64_t i = 0; i < r->count; i++) {
        const job *j = &r->jobs[i];
        int64_t line = r->file.kind == RECORDS_TEXT ? 0 : j->record.line + j->line;
        if (j->status == TN_E_INPUT && r->reader->options.skip_bad)
            r->to->skipped++;
        else if (j->status != TN_OK)
            return records_fail(r->file.path, line, j->status, j->err.message, err);
        else if (samples_join(&r->to->samples, &j->made, err) != TN_OK)
            return err->code;
    }
    return TN_OK;
}

static tn_status read_file(reading *r, const char *path, tn_error *err)
{
    bool more = true;
    tn_status status = records_open(&r->file, path, err);
    while (status == TN_OK && more) {
        tn_error cut = TN_ERROR_INIT;
        tn_status ended = next_batch(r, &more, &cut); /* what comes before it is told first */
        tn_parallel_for(r->count, 1, read_jobs, r);
        status = join_batch(r, err);
        if (status == TN_OK && ended != TN_OK)
            status = tn_fail(err, cut.code, cut.where, "%s", cut.message);
        if (status == TN_OK)
            status = records_done(&r->file, err);
    }
    records_close(&r->file);
    return status;
}

/* ---- what came of it --------------------------------------------------------------------------------- */

static tn_status take_digest(tn_dataset *d, tn_error *err)
{
    char hashes[3 * 65];
    const samples *s = &d->samples;
    if (sha256_hex(s->ids, s->tokens * sizeof *s->ids, hashes) &&
        sha256_hex(s->labels, s->tokens * sizeof *s->labels, hashes + 65) &&
        sha256_hex(s->ends, s->count * sizeof *s->ends, hashes + 2 * 65) &&
        sha256_hex(hashes, sizeof hashes, d->digest))
        return TN_OK;
    return tn_fail(err, TN_E_MEMORY, "samples", "out of memory");
}

tn_dataset *dataset_open(const record_reader *reader, const char *const *paths, int64_t count, tn_error *err)
{
    reading r = {.reader = reader, .to = calloc(1, sizeof *r.to), .jobs = calloc(BATCH, sizeof *r.jobs)};
    tn_status status = r.to && r.jobs ? TN_OK : tn_fail(err, TN_E_MEMORY, "samples", "out of memory");
    for (int64_t i = 0; i < count && status == TN_OK; i++)
        status = read_file(&r, paths[i], err);
    if (status == TN_OK && r.to->samples.count == 0)
        status = tn_fail(err, TN_E_INPUT, count > 0 ? paths[0] : "paths", "there is no sample to learn from");
    if (status == TN_OK)
        status = take_digest(r.to, err);
    for (int i = 0; r.jobs && i < BATCH; i++)
        samples_free(&r.jobs[i].made);
    free(r.jobs);
    if (status != TN_OK) {
        tn_dataset_close(r.to);
        return NULL;
    }
    r.to->max_length = reader->options.max_length;
    return r.to;
}

/* ---- of a model -------------------------------------------------------------------------------------- */

static tn_status check_arguments(const tn_model *model, const char *const *paths, int64_t count,
                                 const tn_dataset_options *options, tn_dataset_options *o, tn_error *err)
{
    *o = (tn_dataset_options){.size = sizeof *o};
    tn_status status = options ? structs_take(o, sizeof *o, options, "tn_dataset_options", err) : TN_OK;
    if (status != TN_OK)
        return status;
    if (!model || !paths)
        return structs_missing(model ? "paths" : "model", err);
    if (count < 1)
        return tn_fail(err, TN_E_USAGE, "count", "is %lld; give at least one file", (long long)count);
    for (int64_t i = 0; i < count; i++)
        if (!paths[i])
            return structs_missing("paths", err);
    o->max_length = o->max_length ? o->max_length : USUAL_LENGTH;
    if (o->max_length < 2 || o->max_length > INT32_MAX)
        return tn_fail(err, TN_E_USAGE, "max_length", "is %lld; from 2 on a token can be predicted",
                       (long long)o->max_length);
    if (o->last_turn && !o->one_sample)
        return tn_fail(err, TN_E_USAGE, "last_turn", "belongs to one_sample; set both");
    if (o->train_on_prompt && o->last_turn)
        return tn_fail(err, TN_E_USAGE, "train_on_prompt", "does not go with last_turn; set one of them");
    if (!o->join)
        o->join = "";
    return TN_OK;
}

tn_dataset *tn_dataset_open(const tn_model *model, const char *const *paths, int64_t count,
                            const tn_dataset_options *options, tn_error *err)
{
    tn_error own = TN_ERROR_INIT;
    tn_dataset_options o;
    tn_model_info info = {.size = sizeof info};
    reader r = {0};
    err = err ? err : &own;
    if (check_arguments(model, paths, count, options, &o, err) != TN_OK || tn_model_get_info(model, &info) != TN_OK)
        return NULL;
    tn_dataset *made = NULL;
    if (!info.folder)
        tn_fail(err, TN_E_USAGE, "model", "has no folder, and so no tokenizer; open one that has");
    else if (reader_open(&r, info.folder, info.eos_count > 0 ? info.eos[0] : -1, err) == TN_OK) {
        r.by.options = o;
        r.by.vocab = info.vocab;
        made = dataset_open(&r.by, paths, count, err);
    }
    reader_close(&r);
    return made;
}

void tn_dataset_close(tn_dataset *d)
{
    if (!d)
        return;
    samples_free(&d->samples);
    free(d);
}

int64_t tn_dataset_count(const tn_dataset *d)
{
    return d ? (int64_t)d->samples.count : 0;
}

tn_status tn_dataset_get_info(const tn_dataset *d, tn_dataset_info *info)
{
    if (!d || !info)
        return TN_E_USAGE;
    const samples *s = &d->samples;
    tn_dataset_info have;
    memset(&have, 0, sizeof have); /* also between its members */
    have.samples = (int64_t)s->count;
    have.tokens = (int64_t)s->tokens;
    have.labels = s->labelled;
    have.cut = s->cut;
    have.dropped = s->dropped;
    have.skipped = d->skipped;
    return structs_give(info, &have, sizeof have, "tn_dataset_info", NULL);
}

tn_status tn_dataset_sample(const tn_dataset *d, int64_t index, tn_sample *sample, tn_error *err)
{
    if (!d || !sample)
        return structs_missing(d ? "sample" : "dataset", err);
    if (index < 0 || index >= tn_dataset_count(d))
        return tn_fail(err, TN_E_USAGE, "index", "is %lld, and there are %lld samples", (long long)index,
                       (long long)tn_dataset_count(d));
    const samples *s = &d->samples;
    size_t begin = index ? s->ends[index - 1] : 0;
    tn_sample have;
    memset(&have, 0, sizeof have);
    have.ids = s->ids + begin;
    have.labels = s->labels + begin;
    have.length = (int64_t)(s->ends[index] - begin);
    return structs_give(sample, &have, sizeof have, "tn_sample", err);
}

int64_t dataset_max_length(const tn_dataset *d)
{
    return d->max_length;
}

const char *tn_dataset_digest(const tn_dataset *d)
{
    return d ? d->digest : NULL;
}
