/* generation_config.json: which tokens end a text, and how the authors of a checkpoint draw tokens. */
#include "open/generation.h"

#include "base/file.h"
#include "base/gguf.h"
#include "base/notices.h"
#include "base/structs.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What transformers takes where do_sample is true and the file names no top_k. */
enum { USUAL_TOP_K = 50 };

static tn_status read_eos(const config_file *file, tn_model *m, tn_error *err)
{
    tn_status status = TN_OK;
    config_reader root = config_root(file, &status, err), c = root;
    /* A model with towers has it where its text model is described. */
    if (!config_has(&c, "eos_token_id") && config_has(&c, "thinker_config"))
        c = config_child(&c, "thinker_config");
    if (!config_has(&c, "eos_token_id") && config_has(&c, "text_config"))
        c = config_child(&c, "text_config");
    int64_t count = config_list(&c, "eos_token_id");
    if (count < 0)
        return status;
    int64_t *eos = calloc((size_t)count + 1, sizeof *eos);
    if (!eos)
        return tn_fail(err, TN_E_MEMORY, "eos_token_id", "out of memory");
    for (int64_t i = 0; i < count && status == TN_OK; i++)
        eos[i] = config_list_i64(&c, "eos_token_id", i);
    free(m->eos);
    m->eos = eos;
    m->eos_count = count;
    return status;
}

/* A number of the file that must lie between least and most. */
static double read_number(const config_reader *c, const char *key, double fallback, double least, double most)
{
    double value = config_f64(c, key, fallback);
    if (!(value >= least && value <= most))
        config_fail(c, key, "is %g, it must lie between %g and %g", value, least, most);
    return value;
}

static tn_status read_sampling(const config_file *file, tn_sampling *s, tn_error *err)
{
    tn_status status = TN_OK;
    config_reader c = config_root(file, &status, err);
    bool draws = config_bool(&c, "do_sample", false);
    double temperature = read_number(&c, "temperature", 1, 0, FLT_MAX);
    s->temperature = draws ? temperature : 0;
    s->top_k = config_i64(&c, "top_k", draws ? USUAL_TOP_K : 0, 0, INT32_MAX);
    s->top_p = read_number(&c, "top_p", 1, 0, 1);
    if (s->top_p == 0) /* there it leaves the likeliest token, here it would mean all */
        s->top_p = DBL_MIN;
    s->min_p = read_number(&c, "min_p", 0, 0, 1);
    s->repetition_penalty = read_number(&c, "repetition_penalty", 1, FLT_MIN, FLT_MAX);
    return status;
}

/* Texts that end an answer: one, or a list. */
static tn_status read_stops(const config_file *file, tn_model *m, tn_error *err)
{
    tn_status status = TN_OK;
    config_reader c = config_root(file, &status, err);
    int64_t count = config_list(&c, "stop_strings");
    if (count <= 0)
        return status;
    m->stop_strings = calloc((size_t)count, sizeof *m->stop_strings);
    if (!m->stop_strings)
        return tn_fail(err, TN_E_MEMORY, "stop_strings", "out of memory");
    m->sampling.stop_strings = (const char *const *)m->stop_strings;
    for (int64_t i = 0; i < count; i++) {
        const char *text = config_list_str(&c, "stop_strings", i);
        if (!text[0]) /* as after another error, which stays */
            config_fail(&c, "stop_strings", "has an empty text, which would end everything");
        if (status != TN_OK)
            return status;
        if (!(m->stop_strings[i] = strdup(text)))
            return tn_fail(err, TN_E_MEMORY, "stop_strings", "out of memory");
        m->sampling.stop_count++;
    }
    return TN_OK;
}

/* What a file may ask for besides, which nothing here does. nothing: the number that asks for nothing. Left out are
 * keys that leave the text as it is, and limits, which whoever generates gives. */
static const struct undone {
    const char *key;
    double nothing;
    bool of_drawing; /* without do_sample it has no effect anywhere                                     */
} undone[] = {
    {"num_beams", 1, false},
    {"num_beam_groups", 1, false},
    {"constraints", NAN, false},
    {"force_words_ids", NAN, false},
    {"penalty_alpha", 0, false},
    {"dola_layers", NAN, false},
    {"guidance_scale", 1, false},
    {"sequence_bias", NAN, false},
    {"encoder_repetition_penalty", 1, false},
    {"no_repeat_ngram_size", 0, false},
    {"encoder_no_repeat_ngram_size", 0, false},
    {"bad_words_ids", NAN, false},
    {"min_length", 0, false},
    {"min_new_tokens", 0, false},
    {"forced_bos_token_id", NAN, false},
    {"forced_eos_token_id", NAN, false},
    {"exponential_decay_length_penalty", NAN, false},
    {"suppress_tokens", NAN, false},
    {"begin_suppress_tokens", NAN, false},
    {"watermarking_config", NAN, false},
    {"token_healing", NAN, false},
    {"top_h", 1, true},
    {"typical_p", 1, true},
    {"epsilon_cutoff", 0, true},
    {"eta_cutoff", 0, true},
};

static void tell_undone(const config_file *file, const char *path)
{
    tn_status status = TN_OK;
    config_reader c = config_root(file, &status, NULL);
    bool draws = config_bool(&c, "do_sample", false);
    for (size_t i = 0; i < sizeof undone / sizeof *undone; i++) {
        char value[64];
        if ((draws || !undone[i].of_drawing) && config_says(&c, undone[i].key, undone[i].nothing, value, sizeof value))
            notices_add(
                "%s: key '%s' is %s, which has no effect here: texts may differ from those that its authors mean", path,
                undone[i].key, value);
    }
}

static tn_status read_file(tn_model *m, const char *path, tn_error *err)
{
    config_file *file = config_open(path, err);
    if (!file)
        return err && err->code != TN_OK ? err->code : TN_E_INPUT;
    tn_status status = read_eos(file, m, err);
    if (status == TN_OK)
        status = read_sampling(file, &m->sampling, err);
    if (status == TN_OK)
        status = read_stops(file, m, err);
    if (status == TN_OK)
        tell_undone(file, path);
    config_close(file);
    return status;
}

tn_status generation_read(tn_model *m, tn_error *err)
{
    struct stat st;
    m->sampling = (tn_sampling){.size = sizeof m->sampling, .top_p = 1, .repetition_penalty = 1};
    tn_status status = read_eos(m->config, m, err);
    if (status != TN_OK || m->borrowed || gguf_is_named(m->folder))
        return status;
    char *path = file_join(m->folder, "generation_config.json");
    if (!path)
        return tn_fail(err, TN_E_MEMORY, m->folder, "out of memory");
    /* It wins over config.json, as in transformers. Missing is one thing, a link whose file is gone another. */
    if (stat(path, &st) == 0)
        status = read_file(m, path, err);
    else if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode))
        status = tn_fail(err, TN_E_INPUT, path,
                         "is a link that leads nowhere (%s); fetch the file that it names, or remove the link",
                         strerror(errno));
    else if (errno != ENOENT)
        status = tn_fail(err, TN_E_INPUT, path, "cannot be opened: %s; check its permissions", strerror(errno));
    free(path);
    return status;
}

void generation_free(tn_model *m)
{
    for (size_t i = 0; i < m->sampling.stop_count; i++)
        free(m->stop_strings[i]);
    free(m->stop_strings);
}

tn_status tn_model_sampling(const tn_model *model, tn_sampling *sampling, tn_error *err)
{
    if (!model)
        return structs_missing("model", err);
    return structs_give(sampling, &model->sampling, sizeof model->sampling, "tn_sampling", err);
}
