/* check_models DIR [--config FILE] [--plugins DIR] [--device NAME] [--kernels SPEC]... [--without CASE] [--hidden]
 *              [--skip-unsupported] [--batch] [--exact] [--emulate] [--parallel KIND[=N]]
 *
 * Runs every case below DIR (folders with config.json and weights, or a .gguf, and expected.safetensors, in the format
 * of the golden data) with no kernels and with all of them, in f32 and bf16, and prints a line per case, dtype and
 * SPEC:
 *   f32      max |logits - expected| <= 1e-4, and <= 1e-4 of the largest logit; 5e-4 with gated delta nets
 *   hidden   hidden states alike (--hidden)
 *   image, sound, deepN, axes
 *            what towers make of pictures and sound, the positions that follow from them
 *   given, made
 *            logits from features and positions of the file; from positions that the model counts
 *   steps    the prompt token by token, and in calls of three: logits as of one pass, within the same bound
 *   greedy   the 16 tokens are the same, in f32
 *   bf16     rms(logits - truth) <= 1.5 rms(transformers' bf16 - truth); where the case is quantised and kernels are
 *            used, which may round activations, the rms of what rounding does is added to it as squares, unless
 *            --exact leaves these kernels out; where experts are picked, by tokens (rounding.c)
 *   tokens   of quantised cases the same, token by token
 *   names    every tensor of the checkpoint is a parameter of the model
 *   side     vectors of texts, with the padding on either side, within 1e-5; states behind the final norm
 *   batch    with --batch, and then nothing else: the same bits in any call (tn_compare_calls), in all three types
 *   f32=N    with --parallel tensor=N, pipeline=N or pipeline=N,tensor=M, and then nothing else: the bits of one
 *            process that has all of the model, with the same kernels but those of whole MLPs and mixtures; f32 and
 *            bf16. With sums=N the numbers of the case as above, and the same bits when ranks are late
 * --parallel KIND[=N] of ranks that mpirun started: all as above but hidden and names, rank 0 prints.
 * --emulate takes the plugins of build/emulated, whose tile instructions are C, where the processor has all but tiles.
 * With --device quantised weights are copied as values. Positions that attention_mask excludes are not compared. Models
 * that a plugin's device declines are skipped, with its reason. */
#include "check.h"

#include "device/cpu_flags.h"
#include "launched.h"

#include <tenon/parallel.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

tally check_tally;

enum { FOLDERS = 8 };

typedef struct options {
    const char *folders[FOLDERS], *settings, *plugins, *device, *without; /* settings: a file like conf/kernels.json */
    int folder_count;
    const char *specs[8];
    int spec_count;
    bool hidden, skip_unsupported, batch, exact, emulate;
    const char *parallel;  /* kind=N, or kind                                                        */
    bool launched;         /* by mpirun                                                              */
    const tn_group *group; /* the launcher's                                                          */
    tn_config *config;
} options;

void check_report(const golden *g, const char *what, const char *spec, bool ok, const char *detail)
{
    printf("%-4s %-22s %-6s %-5s %s\n", ok ? "ok" : "FAIL", g->name, what, spec, detail);
    fflush(stdout);
    ok ? check_tally.passed++ : check_tally.failed++;
}

void check_fail(const golden *g, const char *what, const char *spec, const tn_error *err)
{
    char text[1200];
    snprintf(text, sizeof text, "%s: %s", err->where, err->message);
    check_report(g, what, spec, false, text);
    if (!strcmp(err->where, "mpi")) /* no rank answers any more                                        */
        exit(1);
}

/* The other way, where there is one: positions that the model counts; features and positions of the file. */
static void check_other_mode(const golden *g, tn_model *model, const char *spec)
{
    tn_error err = TN_ERROR_INIT;
    run_results r = {0};
    run_mode other = run_main_mode(g) == RUN_MADE ? RUN_GIVEN : RUN_MADE;
    if (!g->positions.data)
        return;
    const char *what = other == RUN_MADE ? "made" : "given";
    if (run_allocate(g, model, false, &r) && run_case(g, model, 0, other, &r, &err))
        check_f32(g, &r, what, spec);
    else
        check_fail(g, what, spec, &err);
    run_free(&r);
}

static void check_tokens(const golden *g, tn_model *model, const near_tokens *n, const char *spec, bool rounds)
{
    tn_error err = TN_ERROR_INIT;
    run_results r = {0};
    if (run_allocate(g, model, false, &r) && run_case(g, model, 1, run_main_mode(g), &r, &err))
        check_bf16(g, &r, n, "tokens", spec, rounds);
    else
        check_fail(g, "tokens", spec, &err);
    run_free(&r);
}

static void check_results(const golden *g, tn_model *model, const options *o, const near_tokens *n, const char *spec,
                          tn_dtype dtype, const run_results *r)
{
    if (dtype == TN_BF16) {
        bool rounds = g->act.data && !o->exact && strcmp(spec, "none") != 0;
        check_bf16(g, r, n, "bf16", spec, rounds);
        if (g->act.data)
            check_tokens(g, model, n, spec, rounds);
        return;
    }
    check_f32(g, r, "f32", spec);
    check_media(g, r, spec);
    if (o->hidden)
        check_hidden(g, r, spec);
    check_other_mode(g, model, spec);
    check_steps(g, model, r, spec);
    if (g->greedy.data && g->ids.shape[0] == 1)
        check_greedy(g, model, spec);
}

static void check_spec(const golden *g, tn_model *model, const options *o, const near_tokens *n, const char *spec,
                       tn_dtype dtype)
{
    tn_error err = TN_ERROR_INIT;
    run_results r = {0};
    bool hidden = o->hidden && dtype == TN_F32;
    golden with = *g;
    if (g->embedding.data && tn_apply_kernels(model, o->config, spec, NULL, &err) == TN_OK)
        check_embedding(g, model, dtype, spec);
    else if (err.code == TN_OK && tn_apply_kernels(model, o->config, spec, NULL, &err) == TN_OK &&
             run_allocate(g, model, hidden, &r) && run_case(g, model, 0, run_main_mode(g), &r, &err))
        check_results(media_remember(&with, &r), model, o, n, spec, dtype, &r);
    else
        check_fail(g, tn_dtype_name(dtype), spec, &err);
    run_free(&r);
}

/* The other ranks are refused likewise. */
static bool is_refused(const options *o, const tn_error *err)
{
    return (o->skip_unsupported && strstr(err->message, "model_type")) ||
           (o->device && strstr(err->message, "does not perform")) ||
           (o->group && err->code == TN_E_USAGE &&
            (strstr(err->message, "takes at most") || strstr(err->message, "activation_sparsity_pattern")));
}

/* What a rank but 0 does of a case. */
static void follow(tn_model *model, const options *o, tn_error *err)
{
    if (model)
        tn_follow(model, o->config, err);
    if (model ? err->code != TN_OK : !strcmp(err->where, "mpi")) {
        fprintf(stderr, "check_models: rank %d: %s: %s\n", (int)o->group->rank, err->where, err->message);
        exit(3);
    }
}

/* Of a whole model, also where ranks have parts of the other one. */
static bool find_near(const golden *g, tn_model *model, const options *o, near_tokens *n, tn_error *err)
{
    const tn_model_options mo = {.size = sizeof mo, .dtype = "bf16"};
    tn_model *one = o->group ? tn_model_open(g->model, &mo, err) : model;
    bool found = one && near_find(g, one, run_main_mode(g), n, err);
    if (one != model)
        tn_model_close(one);
    return found;
}

static void check_dtype(const golden *g, const options *o, tn_dtype dtype)
{
    tn_error err = TN_ERROR_INIT;
    const tn_model_options mo = {.size = sizeof mo,
                                 .dtype = tn_dtype_name(dtype),
                                 .device = o->device,
                                 .dequantise = o->device != NULL,
                                 .threads = o->group ? 1 : 0,
                                 .parallel = o->group ? o->parallel : NULL,
                                 .group = o->group};
    tn_model *model = tn_model_open(g->model, &mo, &err);
    tn_model_info info = {.size = sizeof info};
    near_tokens n = {0};
    if (!model && is_refused(o, &err)) {
        printf("SKIP %-22s %s\n", g->name, err.message);
        check_tally.skipped++;
        return;
    }
    if (o->group && o->group->rank > 0) {
        follow(model, o, &err);
        tn_model_close(model);
        return;
    }
    if (!model) {
        check_fail(g, tn_dtype_name(dtype), "-", &err);
        return;
    }
    tn_model_get_info(model, &info);
    if (dtype == TN_F32 && !o->batch && !o->group)
        check_names(g, model);
    if (o->batch)
        check_batch(g, model, dtype, o->config);
    else if (g->logits.data && g->logits.shape[2] != info.vocab)
        check_report(g, tn_dtype_name(dtype), "-", false, "expected logits have another vocabulary");
    else if (dtype == TN_BF16 && g->logits.data && !find_near(g, model, o, &n, &err))
        check_fail(g, "bf16", "-", &err);
    else
        for (int i = 0; i < o->spec_count; i++)
            check_spec(g, model, o, &n, o->specs[i], dtype);
    near_free(&n);
    tn_model_close(model);
}

static void check_folder(const char *folder, const char *name, const options *o)
{
    tn_error err = TN_ERROR_INIT;
    golden g;
    int before = check_tally.skipped;
    bool open = golden_open(&g, folder, name, &err);
    if (open && o->group && !g.logits.data) {
        printf("SKIP %-22s %s\n", g.name, "vectors of texts are not cut over ranks");
        check_tally.skipped++;
    } else if (open && o->parallel && !o->group) {
        for (int i = 0; i < o->spec_count && g.logits.data; i++) {
            check_ranks(&g, TN_F32, o->config, o->specs[i], o->parallel);
            check_ranks(&g, TN_BF16, o->config, o->specs[i], o->parallel);
        }
    } else if (open) {
        check_dtype(&g, o, TN_F32);
        if ((g.bf16.data || g.embedding_bf16.data || o->batch) && check_tally.skipped == before)
            check_dtype(&g, o, TN_BF16);
        if (o->batch && check_tally.skipped == before)
            check_dtype(&g, o, TN_F16);
    } else {
        check_fail(&g, "-", "-", &err);
    }
    golden_close(&g);
}

static void walk(const char *folder, const char *name, const options *o, int depth)
{
    if (o->without && !strcmp(name, o->without))
        return;
    if (golden_is_case(folder)) {
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

/* false: wrong usage. */
static bool parse(int argc, char **argv, options *o)
{
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--plugins") && i + 1 < argc)
            o->plugins = argv[++i];
        else if (!strcmp(argv[i], "--device") && i + 1 < argc)
            o->device = argv[++i];
        else if (!strcmp(argv[i], "--without") && i + 1 < argc)
            o->without = argv[++i];
        else if (!strcmp(argv[i], "--config") && i + 1 < argc)
            o->settings = argv[++i];
        else if (!strcmp(argv[i], "--kernels") && i + 1 < argc && o->spec_count < 8)
            o->specs[o->spec_count++] = argv[++i];
        else if (!strcmp(argv[i], "--hidden"))
            o->hidden = true;
        else if (!strcmp(argv[i], "--skip-unsupported"))
            o->skip_unsupported = true;
        else if (!strcmp(argv[i], "--batch"))
            o->batch = true;
        else if (!strcmp(argv[i], "--exact"))
            o->exact = true;
        else if (!strcmp(argv[i], "--parallel") && i + 1 < argc)
            o->parallel = argv[++i];
        else if (!strcmp(argv[i], "--same")) /* which is all that is compared                              */
            continue;
        else if (!strcmp(argv[i], "--emulate"))
            o->emulate = true;
        else if (argv[i][0] == '-' || o->folder_count == FOLDERS)
            return false;
        else
            o->folders[o->folder_count++] = argv[i];
    }
    o->launched = o->parallel && (getenv("OMPI_COMM_WORLD_SIZE") || !strchr(o->parallel, '='));
    if (o->spec_count == 0) {
        o->specs[o->spec_count++] = "none";
        o->specs[o->spec_count++] = o->parallel && !o->launched && strstr(o->parallel, "tensor")
                                        ? "auto,-npu_fused_swiglu,-npu_fused_moe,-cpu_quantised"
                                        : "auto";
    }
    return o->folder_count > 0;
}

/* The last folder of a path, for names of cases. */
static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

int main(int argc, char **argv)
{
    options o = {0};
    char plugins[4096], absolute[4096];
    tn_error err = TN_ERROR_INIT;
    snprintf(plugins, sizeof plugins, "%s", argv[0]);
    char *slash = strrchr(plugins, '/');
    snprintf(slash ? slash : plugins, 32, "%s", slash ? "/../plugins" : "build/plugins");
    o.plugins = plugins;
    bool good = parse(argc, argv, &o);
    if (o.emulate && o.plugins == plugins)
        snprintf(slash ? slash : plugins, 32, "%s", slash ? "/../emulated/plugins" : "build/emulated/plugins");
    if (!good) {
        fputs(
            "usage: check_models DIR... [--config FILE] [--plugins DIR] [--device NAME] [--kernels SPEC]... [--without "
            "CASE] [--hidden] [--skip-unsupported] [--batch] [--exact] [--emulate] [--parallel KIND[=N]]\n",
            stderr);
        return 2;
    }
    if (o.emulate && !(tn_cpu_flags() & TN_CPU_AVX512_BF16)) {
        printf("SKIPPED amx-emulated: AVX-512 with BF16 is not on this machine, or not in TENON_CPU\n"
               "0 passed, 0 failed, 1 skipped\n");
        return 0;
    }
    cpu_flags_emulate(o.emulate ? TN_CPU_AMX_BF16 : 0);
    o.config = o.settings ? tn_config_load(o.settings, &err) : tn_config_new();
    if (!o.config || !realpath(o.plugins, absolute) || tn_config_set_plugins(o.config, absolute, &err) != TN_OK ||
        tn_config_set_same_bits(o.config, o.batch, &err) != TN_OK ||
        tn_config_set_exact(o.config, o.exact, &err) != TN_OK ||
        (o.parallel && tn_config_set_measure(o.config, false, &err) != TN_OK) || tn_scan(o.config, &err) != TN_OK) {
        fprintf(stderr, "check_models: %s: %s\n", err.where[0] ? err.where : o.plugins,
                err.message[0] ? err.message : "no such folder of plugins");
        return 3;
    }
    if (o.launched && !(o.group = launched_open(&err))) {
        fprintf(stderr, "check_models: %s: %s\n", err.where, err.message);
        return 3;
    }
    if (o.launched && o.group->rank > 0 && !freopen("/dev/null", "w", stdout))
        return 3;
    const tally *t = &check_tally;
    for (int i = 0; i < o.folder_count; i++) {
        int before = t->passed + t->failed + t->skipped;
        walk(o.folders[i], last_part(o.folders[i]), &o, 3);
        if (t->passed + t->failed + t->skipped > before || (o.launched && o.group->rank > 0))
            continue;
        fprintf(stderr,
                "check_models: %s: no case found (a folder with expected.safetensors and config.json or a .gguf)\n",
                o.folders[i]);
        check_tally.failed++;
    }
    tn_config_free(o.config);
    launched_close();
    printf("%d passed, %d failed", t->passed, t->failed);
    printf(t->skipped ? ", %d skipped\n" : "\n", t->skipped);
    return t->failed ? 1 : 0;
}
