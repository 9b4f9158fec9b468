/* check_engine DIR... [--kernels SPEC]... [--plugins DIR] [--only NAME]
 *
 * For every checkpoint that a DIR is, or that lies in it (folders with config.json and weights) that continues texts:
 * 16 sequences, greedy and drawn, each with logits of every token, in f32 and bf16, alone    by tn_generate in a
 * session of its own, and by an engine that has nothing else to do: the same among    all of them together in an engine
 * of 16 places hit      again, behind what these left in the cache preempt  in an engine whose cache holds a few of
 * them at a time few      in an engine with two places and a budget of 5 tokens Bit for bit where the model's kernels
 * promise the same bits in any call (TN_SAME_BITS); elsewhere (--kernels none) as long as the tokens are the same
 * logits are within 5e-4 of the largest, and how many texts stayed alike is told. Models that are no such texts are
 * skipped, with the reason. */
#include <tenon/tenon.h>

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { TEXTS = 16, TOKENS = 12, MOST_PROMPT = 700, SPECS = 4 };

typedef struct tally {
    int passed, failed, skipped;
} tally;

typedef struct options {
    const char *folders[16], *specs[SPECS], *only;
    int folder_count, spec_count;
    tn_config *config;
    bool bits; /* of the model at hand: they are promised                                                             */
} options;

/* A sequence, and what came of it. */
typedef struct written {
    int64_t prompt[MOST_PROMPT], prompt_count, vocab;
    tn_generate_options options;
    int64_t tokens[TOKENS], count, cached;
    float *logits; /* [TOKENS, vocab]                                                              */
    int ends;
    tn_status status;
    char why[1040];
} written;

static int64_t lengths[TEXTS] = {1, 2, 7, 31, 64, 90, 130, 5, 257, 33, 17, 300, 3, 48, 70, 600};

/* ---- texts ---------------------------------------------------------------------------------------- */

static uint64_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static int see_logits(void *ctx, int64_t row, int64_t step, float *logits, int64_t vocab)
{
    written *w = ctx;
    (void)row;
    memcpy(w->logits + step * vocab, logits, (size_t)vocab * sizeof *logits);
    return TN_NEXT_TOKEN;
}

static int see_token(void *ctx, int64_t row, int64_t id)
{
    written *w = ctx;
    (void)row;
    w->tokens[w->count++] = id;
    return TN_NEXT_TOKEN;
}

static void see_end(void *ctx, const tn_engine_result *result)
{
    written *w = ctx;
    w->ends++;
    w->status = result->status;
    w->cached = result->cached;
    snprintf(w->why, sizeof w->why, "%s: %s", result->error.where, result->error.message);
}

/* Every fourth begins as the one before it does; half of them are greedy. */
static bool make_texts(written *w, const tn_model_info *info, int64_t context)
{
    uint64_t state = 7;
    for (int i = 0; i < TEXTS; i++) {
        int64_t most = context - TOKENS - 1, n = lengths[i] < most ? lengths[i] : most;
        w[i].prompt_count = n > 0 ? n : 1;
        w[i].vocab = info->vocab;
        for (int64_t t = 0; t < w[i].prompt_count; t++)
            w[i].prompt[t] = (int64_t)(draw(&state) % (uint64_t)(info->vocab / 2));
        for (int64_t t = 0; i % 4 == 3 && t < w[i].prompt_count && t < w[i - 1].prompt_count; t++)
            w[i].prompt[t] = w[i - 1].prompt[t];
        w[i].options = (tn_generate_options){.size = sizeof w[i].options,
                                             .max_tokens = TOKENS,
                                             .temperature = i % 2 ? 1 : 0,
                                             .seed = (uint64_t)i + 1,
                                             .ignore_eos = true,
                                             .on_logits = see_logits,
                                             .on_row_token = see_token,
                                             .ctx = &w[i]};
        w[i].logits = calloc((size_t)(TOKENS * info->vocab), sizeof(float));
        if (!w[i].logits)
            return false;
    }
    return true;
}

static void clear_texts(written *w)
{
    for (int i = 0; i < TEXTS; i++) {
        w[i].count = w[i].cached = w[i].ends = 0;
        w[i].status = TN_OK;
        w[i].why[0] = '\0';
    }
}

static void free_texts(written *w)
{
    for (int i = 0; w && i < TEXTS; i++)
        free(w[i].logits);
    free(w);
}

/* ---- ways ----------------------------------------------------------------------------------------- */

static tn_status by_session(tn_model *model, written *w, int64_t context, tn_error *err)
{
    tn_session_options so = {.size = sizeof so, .context = context};
    tn_session *s = tn_session_new(model, &so, err);
    tn_status status = s ? TN_OK : err->code;
    int64_t out[TOKENS];
    for (int i = 0; i < TEXTS && status == TN_OK; i++) {
        tn_session_reset(s);
        status = tn_generate(s, w[i].prompt, w[i].prompt_count, &w[i].options, out, NULL, err);
    }
    tn_session_free(s);
    return status;
}

static tn_status add(tn_engine *e, written *w, tn_error *err)
{
    const tn_engine_request r = {.size = sizeof r,
                                 .prompt = w->prompt,
                                 .prompt_count = w->prompt_count,
                                 .options = &w->options,
                                 .on_end = see_end};
    return tn_engine_add(e, &r, NULL, err);
}

static tn_status finish(tn_engine *e, tn_error *err)
{
    tn_status status = TN_OK;
    for (bool more = true; more && status == TN_OK;)
        status = tn_engine_step(e, &more, err);
    return status;
}

/* Some join after steps, so that pieces of prompts meet tokens of answers. */
static tn_status together(tn_engine *e, written *w, bool one_by_one, tn_error *err)
{
    tn_status status = TN_OK;
    bool more = false;
    for (int i = 0; i < TEXTS && status == TN_OK; i++) {
        status = add(e, &w[i], err);
        if (status == TN_OK && one_by_one)
            status = finish(e, err);
        else if (status == TN_OK && i % 3 == 2)
            status = tn_engine_step(e, &more, err);
    }
    return status == TN_OK ? finish(e, err) : status;
}

/* ---- judging -------------------------------------------------------------------------------------- */

static double largest(const float *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

/* How a text differs from the one alone; "" if it does not. alike: it has the same tokens. */
static void compare(const options *o, const written *a, const written *b, bool *alike, char *why, size_t size)
{
    *why = '\0';
    *alike = a->count == b->count && memcmp(a->tokens, b->tokens, (size_t)a->count * sizeof *a->tokens) == 0;
    if (b->status != TN_OK || b->ends != 1) {
        snprintf(why, size, "ended %d times, %s", b->ends, b->why);
        return;
    }
    if (b->count != TOKENS) {
        snprintf(why, size, "%lld tokens", (long long)b->count);
        return;
    }
    for (int64_t t = 0; t < TOKENS && !*why; t++) {
        const float *x = a->logits + t * a->vocab, *y = b->logits + t * a->vocab;
        if (memcmp(x, y, (size_t)a->vocab * sizeof *x) == 0 && a->tokens[t] == b->tokens[t])
            continue;
        double most = 0, bound = 5e-4 * largest(x, a->vocab);
        for (int64_t i = 0; i < a->vocab; i++)
            most = fabs((double)x[i] - y[i]) > most ? fabs((double)x[i] - y[i]) : most;
        if (o->bits || most > bound)
            snprintf(why, size, "logits of token %lld differ by %.2g of %.3g", (long long)t, most,
                     largest(x, a->vocab));
        if (a->tokens[t] != b->tokens[t])
            break;
    }
}

static void judge(tally *total, const options *o, const char *label, const char *way, const written *alone,
                  const written *now)
{
    int same = 0, bad = 0;
    int64_t cached = 0;
    char why[1100] = "", first[1200] = "";
    for (int i = 0; i < TEXTS; i++) {
        bool alike;
        compare(o, &alone[i], &now[i], &alike, why, sizeof why);
        same += alike;
        cached += now[i].cached;
        if (*why && bad++ == 0)
            snprintf(first, sizeof first, "text %d: %s", i, why);
    }
    if (bad == 0)
        snprintf(first, sizeof first, "%d of %d texts alike%s, %lld tokens cached", same, TEXTS,
                 o->bits ? ", bit for bit" : "", (long long)cached);
    printf("%-4s %-44s %-8s %s\n", bad == 0 ? "ok" : "FAIL", label, way, first);
    fflush(stdout);
    bad == 0 ? total->passed++ : total->failed++;
}

static void fail(tally *total, const char *label, const char *way, const tn_error *err)
{
    printf("FAIL %-44s %-8s %s: %s\n", label, way, err->where, err->message);
    total->failed++;
}

static void skip(tally *total, const char *label, const char *why)
{
    printf("SKIP %-44s %s\n", label, why);
    total->skipped++;
}

/* ---- a model -------------------------------------------------------------------------------------- */

/* Two long texts and a little. */
static size_t small_cache(tn_model *model, int64_t context, tn_error *err)
{
    tn_session_options so = {.size = sizeof so, .context = context, .whole_cache = true};
    tn_session *s = tn_session_new(model, &so, err);
    size_t bytes = s ? tn_session_cache_held(s) : 0;
    tn_session_free(s);
    return bytes * 2 + bytes / 2;
}

typedef struct way {
    const char *name;
    tn_engine_options options;
    bool one_by_one, twice, small;
} way;

static void check_way(tally *total, const options *o, tn_model *model, const char *label, const way *how,
                      int64_t context, const written *alone, written *now)
{
    tn_error err = TN_ERROR_INIT;
    tn_engine_options eo = how->options;
    eo.size = sizeof eo;
    eo.context = context;
    if (how->small)
        eo.cache_bytes = small_cache(model, context, &err);
    tn_engine *e = tn_engine_new(model, &eo, &err);
    tn_status status = e ? TN_OK : err.code;
    for (int round = 0; round < 1 + how->twice && status == TN_OK; round++) {
        clear_texts(now);
        status = together(e, now, how->one_by_one, &err);
    }
    tn_engine_free(e);
    if (status != TN_OK)
        fail(total, label, how->name, &err);
    else
        judge(total, o, label, how->name, alone, now);
}

static void check_texts(tally *total, const options *o, tn_model *model, const char *label)
{
    static const way ways[] = {{.name = "alone", .one_by_one = true},
                               {.name = "among"},
                               {.name = "hit", .twice = true},
                               {.name = "preempt", .small = true},
                               {.name = "few", .options = {.sequences = 2, .budget = 5}}};
    tn_error err = TN_ERROR_INIT;
    tn_model_info info = {.size = sizeof info};
    tn_model_get_info(model, &info);
    int64_t context = info.max_positions > 0 && info.max_positions < 640 ? info.max_positions : 640;
    written *alone = calloc(TEXTS, sizeof *alone), *now = calloc(TEXTS, sizeof *now);
    tn_engine_options eo = {.size = sizeof eo, .context = context};
    tn_engine *e = tn_engine_new(model, &eo, &err);
    tn_engine_free(e);
    if (!e) {
        skip(total, label, err.message);
    } else if (!alone || !now || !make_texts(alone, &info, context) || !make_texts(now, &info, context)) {
        printf("FAIL %-44s out of memory\n", label);
        total->failed++;
    } else if (by_session(model, alone, context, &err) != TN_OK) {
        fail(total, label, "session", &err);
    } else {
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
            check_way(total, o, model, label, &ways[i], context, alone, now);
    }
    free_texts(alone);
    free_texts(now);
}

/* Kernels that promise the same bits, where the model's sites have such; without, what is asked for. */
static tn_status apply(options *o, tn_model *model, const char *spec, tn_error *err)
{
    o->bits = strcmp(spec, "none") != 0;
    tn_status status = tn_config_set_same_bits(o->config, o->bits, err);
    if (status == TN_OK)
        status = tn_apply_kernels(model, o->config, spec, NULL, err);
    if (status == TN_E_KERNEL && o->bits && strstr(err->message, "no kernel that promises")) {
        o->bits = false;
        tn_error_clear(err);
        tn_config_set_same_bits(o->config, false, err);
        status = tn_apply_kernels(model, o->config, spec, NULL, err);
    }
    return status;
}

static void check_folder(tally *total, options *o, const char *folder, const char *name)
{
    static const char *const dtypes[] = {"f32", "bf16"};
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < o->spec_count; i++) {
            char label[400];
            tn_error err = TN_ERROR_INIT;
            tn_model_options mo = {.size = sizeof mo, .dtype = dtypes[d]};
            snprintf(label, sizeof label, "%s, %s, %s", name, dtypes[d], o->specs[i]);
            /* Without a promise sums of bf16 differ as rounding has it: f32 shows what is wrong. */
            if (d == 1 && strcmp(o->specs[i], "none") == 0)
                continue;
            tn_model *model = tn_model_open(folder, &mo, &err);
            if (!model || apply(o, model, o->specs[i], &err) != TN_OK)
                fail(total, label, "open", &err);
            else if (d == 1 && !o->bits)
                skip(total, label, "no kernels promise the same bits here");
            else
                check_texts(total, o, model, label);
            tn_model_close(model);
        }
}

static int is_folder(const struct dirent *d)
{
    return d->d_name[0] != '.';
}

static bool is_checkpoint(const char *folder)
{
    char file[4200];
    struct stat st;
    snprintf(file, sizeof file, "%s/config.json", folder);
    return stat(file, &st) == 0;
}

static void check_all(tally *total, options *o, const char *folder)
{
    const char *slash = strrchr(folder, '/');
    if (is_checkpoint(folder)) {
        check_folder(total, o, folder, slash ? slash + 1 : folder);
        return;
    }
    struct dirent **names = NULL;
    int count = scandir(folder, &names, is_folder, alphasort);
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
        if (is_checkpoint(path) && (!o->only || strcmp(o->only, names[i]->d_name) == 0))
            check_folder(total, o, path, names[i]->d_name);
        free(names[i]);
    }
    free(names);
    if (count < 0) {
        printf("FAIL %s cannot be read\n", folder);
        total->failed++;
    }
}

int main(int argc, char **argv)
{
    options o = {0};
    tn_error err = TN_ERROR_INIT;
    tally total = {0};
    const char *plugins = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--kernels") == 0 && i + 1 < argc && o.spec_count < SPECS)
            o.specs[o.spec_count++] = argv[++i];
        else if (strcmp(argv[i], "--plugins") == 0 && i + 1 < argc)
            plugins = argv[++i];
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            o.only = argv[++i];
        else if (argv[i][0] != '-' && o.folder_count < 16)
            o.folders[o.folder_count++] = argv[i];
        else
            o.folder_count = -1000;
    }
    if (o.folder_count < 1) {
        fprintf(stderr, "usage: check_engine DIR... [--kernels SPEC]... [--plugins DIR] [--only NAME]\n");
        return 2;
    }
    if (o.spec_count == 0) {
        o.specs[o.spec_count++] = "none";
        o.specs[o.spec_count++] = "auto";
    }
    char beside[4200];
    const char *slash = strrchr(argv[0], '/');
    snprintf(beside, sizeof beside, "%.*s/../plugins", slash ? (int)(slash - argv[0]) : 1, slash ? argv[0] : ".");
    o.config = tn_config_new();
    if (!o.config || tn_config_set_plugins(o.config, plugins ? plugins : beside, &err) != TN_OK ||
        tn_config_set_measure(o.config, false, &err) != TN_OK || tn_scan(o.config, &err) != TN_OK) {
        fprintf(stderr, "check_engine: %s: %s\n", err.where, err.message);
        return 3;
    }
    for (int i = 0; i < o.folder_count; i++)
        check_all(&total, &o, o.folders[i]);
    tn_config_free(o.config);
    for (size_t i = 0; i < tn_notice_count(); i++)
        printf("note: %s\n", tn_notice_get(i));
    printf("%d skipped\n%d passed, %d failed\n", total.skipped, total.passed, total.failed);
    return total.failed > 0;
}
