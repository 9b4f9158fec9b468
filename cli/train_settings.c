/* What tenon train is asked to do. */
#include "train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *train_number(double value, char buffer[32])
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(buffer, 32, "%.*g", digits, value);
        if (strtod(buffer, NULL) == value)
            break;
    }
    return buffer;
}

/* ---- what a run that goes on must have as well ---------------------------------------------------- */

static void note_text(train_settings *s, const char *name, const char *text)
{
    json_object_set_new(s->record, name, json_string(text));
}

static void note_number(train_settings *s, const char *name, double value)
{
    char text[32];
    note_text(s, name, train_number(value, text));
}

static void note_flag(train_settings *s, const char *name, bool given)
{
    note_text(s, name, given ? "yes" : "no");
}

static void note_all(train_settings *s)
{
    const options *o = s->o;
    note_flag(s, "full", s->full);
    note_number(s, "lr", s->rate);
    note_text(s, "schedule", option_text(o, OPT_SCHEDULE, "cosine"));
    note_number(s, "warmup", s->warmup);
    note_number(s, "epochs", s->epochs);
    note_number(s, "steps", (double)s->steps);
    note_number(s, "batch", (double)s->batch);
    note_number(s, "accumulate", (double)s->accumulate);
    note_number(s, "length", (double)s->length);
    note_number(s, "clip", s->clip);
    note_number(s, "decay", s->decay);
    note_number(s, "seed", (double)s->seed);
    note_flag(s, "shuffle", s->shuffle);
    note_flag(s, "pack", s->pack);
    note_text(s, "dtype", option_text(o, OPT_DTYPE, "auto"));
    note_text(s, "kernels", option_text(o, OPT_KERNELS, "as configured"));
    note_text(s, "device", option_text(o, OPT_DEVICE, "as configured"));
}

/* ---- reading -------------------------------------------------------------------------------------- */

static tn_status wrong(tn_error *err, const char *option, const char *why)
{
    return tn_fail(err, TN_E_USAGE, "train", "%s: %s", option, why);
}

static tn_status check(const train_settings *s, tn_error *err)
{
    const options *o = s->o;
    const char *shuffle = option_text(o, OPT_SHUFFLE, "");
    if (!s->out)
        return wrong(err, "--out", "is needed: the folder that the result goes to");
    if (!s->full)
        return wrong(err, "--full", "is needed: all weights are what can be trained");
    if (*shuffle && strcmp(shuffle, "yes") != 0 && strcmp(shuffle, "no") != 0)
        return tn_fail(err, TN_E_USAGE, "train", "--shuffle: unknown value '%s'; choose yes or no", shuffle);
    if (s->warmup >= 1 && s->warmup != floor(s->warmup))
        return wrong(err, "--warmup", "give a whole number of steps, or a part of all of them below 1");
    if (option_given(o, OPT_STEPS) && option_given(o, OPT_EPOCHS))
        return wrong(err, "--steps", "does not go with --epochs: each says how long to train; leave one of them out");
    if (s->epochs == 0)
        return wrong(err, "--epochs", "0 trains nothing; give more");
    if (option_given(o, OPT_LAST_TURN) && !option_given(o, OPT_ONE_SAMPLE))
        return wrong(err, "--last-turn", "goes with --one-sample alone");
    return TN_OK;
}

tn_status train_settings_read(train_settings *s, const options *o, tn_error *err)
{
    static const char *const schedules[] = {
        [TN_SCHEDULE_CONSTANT] = "constant", [TN_SCHEDULE_LINEAR] = "linear", [TN_SCHEDULE_COSINE] = "cosine"};
    *s = (train_settings){.o = o,
                          .schedule = TN_SCHEDULE_COSINE,
                          .full = option_given(o, OPT_FULL),
                          .warmup = option_real(o, OPT_WARMUP, 0.1),
                          .clip = option_real(o, OPT_CLIP, 1),
                          .decay = option_real(o, OPT_DECAY, 0),
                          .epochs = option_real(o, OPT_EPOCHS, 3),
                          .steps = option_integer(o, OPT_STEPS, 0),
                          .batch = option_integer(o, OPT_BATCH_ROWS, 1),
                          .accumulate = option_integer(o, OPT_ACCUMULATE, 8),
                          .length = option_integer(o, OPT_LENGTH, 2048),
                          .save_every = option_integer(o, OPT_SAVE_EVERY, 100),
                          .seed = (uint64_t)option_integer(o, OPT_SEED, 0),
                          .shuffle = strcmp(option_text(o, OPT_SHUFFLE, ""), "no") != 0,
                          .pack = option_given(o, OPT_PACK),
                          .out = o->text[OPT_OUT],
                          .record = json_object()};
    s->rate = option_real(o, OPT_LR, s->full ? 1e-5 : 1e-4);
    for (int i = TN_SCHEDULE_CONSTANT; i <= TN_SCHEDULE_COSINE; i++)
        if (strcmp(option_text(o, OPT_SCHEDULE, ""), schedules[i]) == 0)
            s->schedule = (tn_schedule)i;
    tn_status status = check(s, err);
    note_all(s);
    if (status == TN_OK && json_lost())
        status = tn_fail(err, TN_E_MEMORY, "train", "out of memory; close other programs");
    return status;
}

void train_settings_free(train_settings *s)
{
    json_decref(s->record);
    s->record = NULL;
}
