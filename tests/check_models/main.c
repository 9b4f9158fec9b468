/* check_models DIR [--plugins DIR] [--kernels SPEC,...] [--skip-unsupported] [--verbose]
 *
 * Runs every case below DIR (folders with config.json, the weights and expected.safetensors, in the format of the
 * golden data) with no kernels and with all of them, in f32 and bf16, and prints a line per case, dtype and SPEC: f32
 * max |logits - expected| <= 1e-4, and <= 1e-4 of the largest logit; hidden states alike bf16  rms(logits - truth)
 * <= 1.5 rms(transformers' bf16 - truth) greedy the 16 tokens are the same, in f32 Positions that attention_mask
 * excludes are not compared. */
#include <tenon/tenon.h>

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int passed, failed, skipped;

typedef struct options {
    const char *plugins, *specs[8];
    int spec_count;
    bool skip_unsupported;
    tn_config *config;
} options;

/* One case: what to feed and what must come out. */
typedef struct golden {
    const char *name, *folder;
    tn_safetensors *expected;
    tn_tensor ids, mask, positions, logits, bf16, truth, greedy;
    bool has_mask, has_positions, has_bf16, has_truth, has_greedy;
} golden;

static void report(const golden *g, const char *what, const char *spec, bool ok, const char *detail)
{
    printf("%-4s %-22s %-6s %-5s %s\n", ok ? "ok" : "FAIL", g->name, what, spec, detail);
    ok ? passed++ : failed++;
}

static bool fail_case(const golden *g, const char *what, const char *spec, const tn_error *err)
{
    char text[1200];
    snprintf(text, sizeof text, "%s: %s", err->where, err->message);
    report(g, what, spec, false, text);
    return false;
}

static bool masked(const golden *g, int64_t i)
{
    return g->has_mask && ((const int64_t *)g->mask.data)[i] == 0;
}

/* Results of one model run, [B,T,V] and (f32 only) the hidden states. */
typedef struct run_results {
    float *logits, **hidden;
    int64_t layers, width;
} run_results;

static void free_results(run_results *r)
{
    for (int64_t i = 0; r->hidden && i <= r->layers; i++)
        free(r->hidden[i]);
    free(r->hidden);
    free(r->logits);
    *r = (run_results){0};
}

static bool run_case(const golden *g, tn_model *model, run_results *r, tn_error *err)
{
    tn_model_info info = {.size = sizeof info};
    tn_model_get_info(model, &info);
    int64_t rows = g->ids.shape[0], tokens = g->ids.shape[1];
    r->layers = info.layers;
    r->width = info.hidden;
    r->logits = malloc((size_t)(rows * tokens * info.vocab) * sizeof(float));
    r->hidden = calloc((size_t)info.layers + 1, sizeof *r->hidden);
    for (int64_t i = 0; i <= info.layers; i++)
        r->hidden[i] = malloc((size_t)(rows * tokens * info.hidden) * sizeof(float));
    tn_session_options so = {.size = sizeof so, .rows = rows, .context = tokens};
    tn_session *session = tn_session_new(model, &so, err);
    tn_batch batch = {.size = sizeof batch, .rows = rows, .tokens = tokens, .ids = g->ids.data};
    batch.mask = g->has_mask ? g->mask.data : NULL;
    batch.positions = g->has_positions ? g->positions.data : NULL;
    tn_outputs out = {.size = sizeof out, .logits = r->logits, .hidden = r->hidden};
    bool ok = session && tn_session_run(session, &batch, &out, err) == TN_OK;
    tn_session_free(session);
    return ok;
}

/* Largest |a - b| and largest |b| over the positions that count. */
static void distance(const golden *g, const float *a, const float *b, int64_t width, double *error, double *largest)
{
    int64_t positions = g->ids.shape[0] * g->ids.shape[1];
    *error = *largest = 0;
    for (int64_t i = 0; i < positions; i++)
        for (int64_t j = 0; j < width && !masked(g, i); j++) {
            double d = fabs((double)a[i * width + j] - b[i * width + j]), m = fabs((double)b[i * width + j]);
            *error = d <= *error ? *error : d; /* a NaN stays */
            *largest = m > *largest ? m : *largest;
        }
}

static double rms_distance(const golden *g, const float *a, const float *b, int64_t width)
{
    int64_t positions = g->ids.shape[0] * g->ids.shape[1], n = 0;
    double sum = 0;
    for (int64_t i = 0; i < positions; i++)
        for (int64_t j = 0; j < width && !masked(g, i); j++, n++) {
            double d = (double)a[i * width + j] - b[i * width + j];
            sum += d * d;
        }
    return n ? sqrt(sum / (double)n) : 0;
}

static void check_f32(const golden *g, const run_results *r, const char *spec)
{
    char text[256];
    double error, largest;
    distance(g, r->logits, g->logits.data, g->logits.shape[2], &error, &largest);
    double bound = 1e-4 * (largest < 1 ? largest : 1);
    snprintf(text, sizeof text, "max error %.2e, bound %.2e (largest logit %.3g)", error, bound, largest);
    report(g, "f32", spec, error <= bound, text);
    double worst = 0;
    int64_t found = 0;
    for (int64_t i = 0; i <= r->layers; i++) {
        char name[32];
        tn_tensor hidden;
        snprintf(name, sizeof name, "hidden.%lld", (long long)i);
        if (!tn_safetensors_get(g->expected, name, &hidden) || hidden.ndim != 3)
            continue;
        distance(g, r->hidden[i], hidden.data, r->width, &error, &largest);
        double relative = error / (largest < 1 ? 1 : largest);
        worst = relative <= worst ? worst : relative;
        found++;
    }
    snprintf(text, sizeof text, "max error %.2e of %lld states, bound 1e-04", worst, (long long)found);
    report(g, "hidden", spec, worst <= 1e-4 && found == r->layers + 1, text);
}

static void check_bf16(const golden *g, const run_results *r, const char *spec)
{
    char text[256];
    const float *truth = g->has_truth ? g->truth.data : g->logits.data;
    double ours = rms_distance(g, r->logits, truth, g->logits.shape[2]);
    double theirs = rms_distance(g, g->bf16.data, truth, g->logits.shape[2]);
    snprintf(text, sizeof text, "rms error %.3e, bound %.3e (%.2f times transformers')", ours, 1.5 * theirs,
             theirs > 0 ? ours / theirs : 0);
    report(g, "bf16", spec, ours <= 1.5 * theirs, text);
}

static void check_greedy(const golden *g, tn_model *model, const char *spec)
{
    tn_error err = TN_ERROR_INIT;
    int64_t count = g->greedy.shape[0], tokens = g->ids.shape[1], out[256];
    if (count > 256)
        count = 256;
    tn_session_options so = {.size = sizeof so, .context = tokens + count};
    tn_session *session = tn_session_new(model, &so, &err);
    tn_generate_options go = {.size = sizeof go, .max_tokens = count, .ignore_eos = true};
    tn_generate_result result = {.size = sizeof result};
    if (!session || tn_generate(session, g->ids.data, tokens, &go, out, &result, &err) != TN_OK) {
        fail_case(g, "greedy", spec, &err);
    } else {
        int64_t same = 0;
        while (same < result.count && out[same] == ((const int64_t *)g->greedy.data)[same])
            same++;
        char text[64];
        snprintf(text, sizeof text, "%lld of %lld tokens", (long long)same, (long long)count);
        report(g, "greedy", spec, same == count, text);
    }
    tn_session_free(session);
}

static void check_spec(const golden *g, tn_model *model, const options *o, const char *spec, tn_dtype dtype)
{
    tn_error err = TN_ERROR_INIT;
    const char *what = dtype == TN_F32 ? "f32" : "bf16";
    run_results r = {0};
    if (tn_apply_kernels(model, o->config, spec, NULL, &err) != TN_OK || !run_case(g, model, &r, &err))
        fail_case(g, what, spec, &err);
    else if (dtype == TN_F32)
        check_f32(g, &r, spec);
    else
        check_bf16(g, &r, spec);
    if (dtype == TN_F32 && g->has_greedy && r.logits)
        check_greedy(g, model, spec);
    free_results(&r);
}

static void check_dtype(const golden *g, const options *o, tn_dtype dtype)
{
    tn_error err = TN_ERROR_INIT;
    tn_model_options mo = {.size = sizeof mo, .dtype = tn_dtype_name(dtype)};
    tn_model *model = tn_model_open(g->folder, &mo, &err);
    tn_model_info info = {.size = sizeof info};
    if (!model) {
        if (o->skip_unsupported && strstr(err.message, "model_type")) {
            printf("SKIP %-22s %s\n", g->name, err.message);
            skipped++;
        } else {
            fail_case(g, tn_dtype_name(dtype), "-", &err);
        }
        return;
    }
    tn_model_get_info(model, &info);
    if (g->logits.shape[2] != info.vocab)
        report(g, tn_dtype_name(dtype), "-", false, "expected logits have another vocabulary");
    else
        for (int i = 0; i < o->spec_count; i++)
            check_spec(g, model, o, o->specs[i], dtype);
    tn_model_close(model);
}

static bool get(const golden *g, const char *name, tn_dtype dtype, int ndim, tn_tensor *t)
{
    return tn_safetensors_get(g->expected, name, t) && t->dtype == dtype && t->ndim == ndim;
}

static void check_folder(const char *folder, const char *name, const options *o)
{
    char path[4096];
    tn_error err = TN_ERROR_INIT;
    golden g = {.name = name, .folder = folder};
    snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    g.expected = tn_safetensors_open(path, &err);
    if (!g.expected || !get(&g, "input_ids", TN_I64, 2, &g.ids) || !get(&g, "logits", TN_F32, 3, &g.logits)) {
        tn_fail(&err, TN_E_INPUT, path, "has no input_ids [B,T] or logits [B,T,V]");
        fail_case(&g, "-", "-", &err);
        tn_safetensors_close(g.expected);
        return;
    }
    g.has_mask = get(&g, "attention_mask", TN_I64, 2, &g.mask);
    g.has_positions = get(&g, "position_ids", TN_I64, 2, &g.positions);
    g.has_bf16 = get(&g, "logits_bf16", TN_F32, 3, &g.bf16);
    g.has_truth = get(&g, "logits_bf16_truth", TN_F32, 3, &g.truth);
    g.has_greedy = get(&g, "greedy", TN_I64, 1, &g.greedy) && g.ids.shape[0] == 1;
    int before = skipped;
    check_dtype(&g, o, TN_F32);
    if (g.has_bf16 && skipped == before)
        check_dtype(&g, o, TN_BF16);
    tn_safetensors_close(g.expected);
}

static bool is_file(const char *folder, const char *name)
{
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static void walk(const char *folder, const char *name, const options *o, int depth)
{
    if (is_file(folder, "config.json") && is_file(folder, "expected.safetensors")) {
        check_folder(folder, name, o);
        return;
    }
    struct dirent **list = NULL;
    int count = depth > 0 ? scandir(folder, &list, NULL, alphasort) : 0;
    for (int i = 0; i < count; i++) {
        char path[4096];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", folder, list[i]->d_name);
        if (list[i]->d_name[0] != '.' && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
            walk(path, list[i]->d_name, o, depth - 1);
        free(list[i]);
    }
    free(list);
}

static int usage(void)
{
    fputs("usage: check_models DIR [--plugins DIR] [--kernels SPEC]... [--skip-unsupported]\n", stderr);
    return 2;
}

int main(int argc, char **argv)
{
    options o = {0};
    const char *folder = NULL;
    char plugins[4096], absolute[4096];
    tn_error err = TN_ERROR_INIT;
    snprintf(plugins, sizeof plugins, "%s", argv[0]);
    char *slash = strrchr(plugins, '/');
    snprintf(slash ? slash : plugins, 32, "%s", slash ? "/../plugins" : "build/plugins");
    o.plugins = plugins;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--plugins") && i + 1 < argc)
            o.plugins = argv[++i];
        else if (!strcmp(argv[i], "--kernels") && i + 1 < argc && o.spec_count < 8)
            o.specs[o.spec_count++] = argv[++i];
        else if (!strcmp(argv[i], "--skip-unsupported"))
            o.skip_unsupported = true;
        else if (argv[i][0] == '-' || folder)
            return usage();
        else
            folder = argv[i];
    }
    if (!folder)
        return usage();
    if (o.spec_count == 0) {
        o.specs[o.spec_count++] = "none";
        o.specs[o.spec_count++] = "auto";
    }
    o.config = tn_config_new();
    if (!realpath(o.plugins, absolute) || tn_config_set_plugins(o.config, absolute, &err) != TN_OK ||
        tn_scan(o.config, &err) != TN_OK) {
        fprintf(stderr, "check_models: %s: %s\n", err.where[0] ? err.where : o.plugins,
                err.message[0] ? err.message : "no such folder of plugins");
        return 3;
    }
    walk(folder, folder, &o, 3);
    tn_config_free(o.config);
    if (passed + failed + skipped == 0) {
        fprintf(stderr, "check_models: %s: no case found (a folder with config.json and expected.safetensors)\n",
                folder);
        failed++;
    }
    printf("%d passed, %d failed", passed, failed);
    printf(skipped ? ", %d skipped\n" : "\n", skipped);
    return failed ? 1 : 0;
}
