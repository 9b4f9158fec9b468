/* The data of a training: samples in rows, rows in the order of an epoch, some of them as a batch. */
#include "train.h"

#include <stdlib.h>

static tn_status out_of_memory(tn_error *err)
{
    return tn_fail(err, TN_E_MEMORY, "train", "out of memory for the data; take fewer");
}

static tn_status put_in_rows(train_rows *r, bool pack, tn_error *err)
{
    int64_t samples = tn_dataset_count(r->data);
    r->sample = calloc((size_t)samples + 1, sizeof *r->sample);
    r->first = calloc((size_t)samples + 1, sizeof *r->first);
    r->order = calloc((size_t)samples + 1, sizeof *r->order);
    if (!r->sample || !r->first || !r->order)
        return out_of_memory(err);
    r->count = pack ? tn_dataset_pack(r->data, 0, r->sample, r->first, err) : samples;
    for (int64_t i = 0; i <= samples && !pack; i++)
        r->first[i] = r->sample[i] = i;
    r->epoch = -1;
    return r->count < 0 ? err->code : TN_OK;
}

static tn_sample sample_of(const train_rows *r, int64_t at)
{
    tn_sample sample = {.size = sizeof sample};
    tn_dataset_sample(r->data, r->sample[at], &sample, NULL); /* there is one of each number                 */
    return sample;
}

static tn_status make_room(train_rows *r, int64_t batch, tn_error *err)
{
    int64_t texts = 1;
    for (int64_t i = 0; i < r->count; i++) {
        int64_t tokens = 0;
        for (int64_t k = r->first[i]; k < r->first[i + 1]; k++)
            tokens += sample_of(r, k).length;
        r->longest = tokens > r->longest ? tokens : r->longest;
        texts = r->first[i + 1] - r->first[i] > texts ? r->first[i + 1] - r->first[i] : texts;
    }
    batch = batch < r->count ? batch : r->count;
    r->batch.ids = calloc((size_t)(batch * r->longest), sizeof *r->batch.ids);
    r->batch.labels = calloc((size_t)(batch * r->longest), sizeof *r->batch.labels);
    r->batch.lengths = calloc((size_t)(batch * texts), sizeof *r->batch.lengths);
    return r->batch.ids && r->batch.labels && r->batch.lengths ? TN_OK : out_of_memory(err);
}

tn_status train_rows_open(train_rows *r, const tn_model *model, const char *const *paths, int64_t count,
                          const train_settings *s, tn_error *err)
{
    const options *o = s->o;
    tn_dataset_options given = {.size = sizeof given,
                                .max_length = s->length,
                                .one_sample = option_given(o, OPT_ONE_SAMPLE),
                                .last_turn = option_given(o, OPT_LAST_TURN),
                                .train_on_prompt = option_given(o, OPT_TRAIN_ON_PROMPT),
                                .skip_bad = option_given(o, OPT_SKIP_BAD),
                                .join = option_text(o, OPT_JOIN, NULL)};
    r->data = tn_dataset_open(model, paths, count, &given, err);
    tn_status status = r->data ? put_in_rows(r, s->pack, err) : err->code;
    return status == TN_OK ? make_room(r, s->batch, err) : status;
}

void train_rows_close(train_rows *r)
{
    tn_dataset_close(r->data);
    free(r->sample);
    free(r->first);
    free(r->order);
    free(r->batch.ids);
    free(r->batch.labels);
    free(r->batch.lengths);
    *r = (train_rows){0};
}

void train_rows_turn(train_rows *r, const train_settings *s, int64_t epoch)
{
    if (r->epoch == epoch)
        return;
    if (s->shuffle)
        tn_dataset_order(r->count, s->seed, epoch, r->order);
    for (int64_t i = 0; i < r->count && !s->shuffle; i++)
        r->order[i] = i;
    r->epoch = epoch;
}

int64_t train_rows_labels(const train_rows *r, int64_t begin, int64_t end)
{
    int64_t labels = 0;
    for (int64_t i = begin; i < end; i++)
        for (int64_t k = r->first[r->order[i]]; k < r->first[r->order[i] + 1]; k++) {
            tn_sample sample = sample_of(r, k);
            for (int64_t at = 1; at < sample.length; at++) /* nothing predicts the first                         */
                labels += sample.labels[at] != TN_NO_LABEL;
        }
    return labels;
}

const train_batch *train_rows_take(train_rows *r, int64_t begin, int64_t end)
{
    train_batch *b = &r->batch;
    b->texts = b->tokens = 0;
    for (int64_t i = begin; i < end; i++)
        for (int64_t k = r->first[r->order[i]]; k < r->first[r->order[i] + 1]; k++) {
            tn_sample sample = sample_of(r, k);
            for (int64_t at = 0; at < sample.length; at++) {
                b->ids[b->tokens] = sample.ids[at];
                b->labels[b->tokens++] = sample.labels[at];
            }
            b->lengths[b->texts++] = sample.length;
        }
    return b;
}
