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

static void note_lora(train_settings *s)
{
    bool fresh = !s->full && !option_given(s->o, OPT_ADAPTER);
    char text[640], alpha[32], dropout[32];
    snprintf(text, sizeof text, "r=%lld,alpha=%s,dropout=%s%s,seed=%llu,targets=%s", (long long)s->lora.rank,
             train_number(s->lora.alpha, alpha), train_number(s->lora.dropout, dropout),
             s->lora.rslora ? ",rslora" : "", (unsigned long long)s->lora.seed, s->lora.targets);
    note_text(s, "lora", fresh ? text : "no");
}

static void note_all(train_settings *s)
{
    const options *o = s->o;
    note_flag(s, "full", s->full);
    note_lora(s);
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
    note_number(s, "router-loss", s->router_loss);
    note_number(s, "seed", (double)s->seed);
    note_flag(s, "shuffle", s->shuffle);
    note_flag(s, "pack", s->pack);
    note_text(s, "precision", option_text(o, OPT_PRECISION, "as the weights are"));
    note_text(s, "dtype", option_text(o, OPT_DTYPE, "auto"));
    note_text(s, "kernels", option_text(o, OPT_KERNELS, "as configured"));
    note_text(s, "device", option_text(o, OPT_DEVICE, "as configured"));
}

/* ---- --lora --------------------------------------------------------------------------------------- */

static tn_status lora_fail(const char *item, tn_error *err)
{
    return tn_fail(err, TN_E_USAGE, "train",
                   "--lora: '%s' is none of r=N, alpha=X, dropout=X, rslora, seed=N and targets=all|NAMES|EXPRESSION; "
                   "write them with commas between",
                   item);
}

/* A number that is all of the text, from least on. */
static bool read_number(const char *text, double least, double most, double *to)
{
    char *end;
    *to = strtod(text, &end);
    return end != text && !*end && *to >= least && *to <= most;
}

static bool read_item(train_settings *s, const char *name, const char *value)
{
    double number = 1; /* where there is none */
    bool good = value && read_number(value, 0, 1e15, &number);
    if (strcmp(name, "targets") == 0 && value && *value) {
        s->lora.targets = value;
        return true;
    }
    if (strcmp(name, "rslora") == 0 && !value)
        s->lora.rslora = good = true;
    else if (!good)
        return false;
    else if (strcmp(name, "r") == 0)
        s->lora.rank = (int64_t)number;
    else if (strcmp(name, "alpha") == 0)
        s->lora.alpha = number;
    else if (strcmp(name, "dropout") == 0)
        s->lora.dropout = number;
    else if (strcmp(name, "seed") == 0)
        s->lora.seed = (uint64_t)number;
    else
        return false;
    bool whole = strcmp(name, "r") == 0 || strcmp(name, "seed") == 0;
    return !(whole && number != floor(number)) && !(strcmp(name, "r") == 0 && number < 1) &&
           !(strcmp(name, "dropout") == 0 && number >= 1);
}

/* "r=8,alpha=16,targets=q_proj,v_proj": what has no '=' behind targets, and is no word of ours, belongs to these. */
static tn_status read_lora(train_settings *s, const char *text, tn_error *err)
{
    char *at = s->lora_text = strdup(text);
    if (!at)
        return tn_fail(err, TN_E_MEMORY, "train", "out of memory; close other programs");
    while (at && *at) {
        char *item = at, *end = at + strcspn(at, ",");
        bool of_targets = strncmp(item, "targets=", 8) == 0;
        while (of_targets && *end && end[1 + strcspn(end + 1, ",=")] != '=' &&
               strncmp(end + 1, "rslora", strcspn(end + 1, ",")) != 0)
            end += 1 + strcspn(end + 1, ",");
        at = *end ? end + 1 : NULL;
        *end = '\0';
        char *value = strchr(item, '=');
        char shown[64];
        snprintf(shown, sizeof shown, "%s", item);
        if (value)
            *value++ = '\0';
        if (!read_item(s, item, value))
            return lora_fail(shown, err);
    }
    return TN_OK;
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
    if (option_given(o, OPT_LORA) + option_given(o, OPT_ADAPTER) + s->full > 1)
        return wrong(err, "--lora", "does not go with --adapter or --full; give one of the three");
    if (*shuffle && strcmp(shuffle, "yes") != 0 && strcmp(shuffle, "no") != 0)
        return tn_fail(err, TN_E_USAGE, "train", "--shuffle: unknown value '%s'; choose yes or no", shuffle);
    const char *dtype = option_text(o, OPT_DTYPE, NULL);
    if (s->dtype && dtype && strcmp(dtype, "auto") != 0 && strcmp(dtype, s->dtype) != 0)
        return tn_fail(err, TN_E_USAGE, "train", "--precision: %s computes in %s, not in %s; leave --dtype out",
                       o->text[OPT_PRECISION], s->dtype, dtype);
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
                          .router_loss = option_real(o, OPT_ROUTER_LOSS, 0),
                          .epochs = option_real(o, OPT_EPOCHS, 3),
                          .steps = option_integer(o, OPT_STEPS, 0),
                          .batch = option_integer(o, OPT_BATCH_ROWS, 1),
                          .ranks = 1,
                          .accumulate = option_integer(o, OPT_ACCUMULATE, option_given(o, OPT_PARALLEL) ? 1 : 8),
                          .length = option_integer(o, OPT_LENGTH, 2048),
                          .save_every = option_integer(o, OPT_SAVE_EVERY, 100),
                          .seed = (uint64_t)option_integer(o, OPT_SEED, 0),
                          .shuffle = strcmp(option_text(o, OPT_SHUFFLE, ""), "no") != 0,
                          .pack = option_given(o, OPT_PACK),
                          .out = o->text[OPT_OUT],
                          .lora = {.size = sizeof s->lora, .rank = 8, .targets = "all"},
                          .record = json_object()};
    s->rate = option_real(o, OPT_LR, s->full ? 1e-5 : 1e-4);
    for (int i = TN_SCHEDULE_CONSTANT; i <= TN_SCHEDULE_COSINE; i++)
        if (strcmp(option_text(o, OPT_SCHEDULE, ""), schedules[i]) == 0)
            s->schedule = (tn_schedule)i;
    const char *precision = option_text(o, OPT_PRECISION, NULL);
    bool mixed = precision && strcmp(precision, "mixed") == 0;
    s->dtype = !precision || (mixed && s->full) ? precision : strcmp(precision, "f32") == 0 ? "f32" : "bf16";
    s->precision = precision && strcmp(precision, "bf16") == 0 ? TN_PRECISION_PURE : TN_PRECISION_AUTO;
    const char *keep = option_text(o, OPT_KEEP, "auto");
    s->keep = strcmp(keep, "all") == 0 ? TN_KEEP_ALL : strcmp(keep, "layers") == 0 ? TN_KEEP_LAYERS : TN_KEEP_AUTO;
    tn_status status = check(s, err);
    if (status == TN_OK)
        status = read_lora(s, option_text(o, OPT_LORA, ""), err);
    s->lora.alpha = s->lora.alpha > 0 ? s->lora.alpha : 2 * (double)s->lora.rank;
    note_all(s);
    if (status == TN_OK && json_lost())
        status = tn_fail(err, TN_E_MEMORY, "train", "out of memory; close other programs");
    return status;
}

void train_settings_ranks(train_settings *s, int32_t rank, int32_t ranks)
{
    s->rank = rank;
    s->ranks = ranks;
    s->accumulate *= ranks;
    note_number(s, "accumulate", (double)s->accumulate);
}

void train_settings_free(train_settings *s)
{
    free(s->lora_text);
    json_decref(s->record);
    s->record = NULL;
}
