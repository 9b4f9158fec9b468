/* check_training DIR... [--plugins DIR] [--kernels SPEC]... [--differences] [--formats FILE]
 *
 * Compares losses and gradients with the golden data below DIR: folders with case.json and full.safetensors, as the
 * README beside them describes. Lines for each batch (padded rows; segments packed in one), type and SPEC:
 *   loss      within 1e-5 of it, in f32
 *   gradients of every tensor: the root of the mean square of the difference, and the norm, within 3e-5, in f32 (delta
 *             nets 2e-4; Gemma 3n 1e-4: torch's own f32 is 5e-5 from its f64 there); what is below 1e-6 of the norm of
 *             all stays below 2e-6 of it. In bf16, all tensors together: at most 1.5 times as far from f32 as torch's
 *             of cases with a factor of the routers' loss both batches again, with that
 *   curve     of cases with curves.json: thirty steps of AdamW, losses within 1e-4, norms of gradients within 1e-3,
 *             rates to the last bits; the weights, where they are there, within 1e-3 of what training changed. In bf16,
 *             mixed and pure: the bounds that curves.c says
 *   adapters  of cases that have them, the same of their factors, and logits of merged weights (adapters.c)
 *
 * With --differences the folders are those of models, and nothing but this is done:
 *   slopes    the gradient of every parameter against differences of the loss, in f32 (differences.c)
 *
 * --formats compares the samples of records of every format with those of a file, such as formats.json (formats.c) */
#include "check.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tenon/half.h>

void check_say(options *o, const char *name, const char *what, const char *spec, bool ok, const char *detail)
{
    printf("%-4s %-24s %-6s %-5s %s\n", ok ? "ok" : "FAIL", name, what, spec, detail);
    fflush(stdout);
    ok ? o->passed++ : o->failed++;
}

static void say(options *o, const golden *g, const char *spec, bool ok, const char *detail)
{
    check_say(o, g->name, g->kind, spec, ok, detail);
}

static double number_of(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static bool get(const golden *g, const char *what, const char *name, tn_tensor *t)
{
    char key[NAME];
    snprintf(key, sizeof key, "%s.%s%s", g->kind, what, name);
    return tn_safetensors_get(g->file, key, t);
}

static bool text_of(const golden *g, const char *what, tn_tensor *t)
{
    char key[NAME];
    snprintf(key, sizeof key, "%s.%s", g->batch, what);
    return tn_safetensors_get(g->texts_file, key, t);
}

/* The tokens of rows without what is padding, or of segments, which begin at position 0. */
static bool read_texts(golden *g)
{
    tn_tensor ids, labels, mask = {0}, positions = {0};
    if (!text_of(g, "input_ids", &ids) || !text_of(g, "labels", &labels) ||
        (!text_of(g, "attention_mask", &mask) && !text_of(g, "position_ids", &positions)))
        return false;
    int64_t all = tn_tensor_count(&ids), at = 0;
    g->ids = calloc((size_t)all, sizeof *g->ids);
    g->labels = calloc((size_t)all, sizeof *g->labels);
    g->lengths = calloc((size_t)all, sizeof *g->lengths);
    for (int64_t i = 0; g->ids && g->labels && g->lengths && i < all; i++) {
        g->texts += mask.data ? i % ids.shape[1] == 0 : ((const int64_t *)positions.data)[i] == 0;
        if (mask.data && !((const int64_t *)mask.data)[i])
            continue;
        g->ids[at] = ((const int64_t *)ids.data)[i];
        g->labels[at++] = ((const int64_t *)labels.data)[i];
        g->lengths[g->texts - 1]++;
    }
    return g->ids && g->labels && g->lengths;
}

bool golden_open(golden *g, const char *folder, const char *name, const char *batch, const char *part, const char *kind)
{
    char path[4096 + 32];
    *g = (golden){.name = name, .batch = batch, .kind = kind, .rough = "bf16"};
    snprintf(path, sizeof path, "%s/case.json", folder);
    json_t *root = json_load_file(path, 0, NULL);
    const json_t *figures = json_object_get(json_object_get(root, part), kind);
    const char *model = json_string_value(json_object_get(root, "model"));
    snprintf(g->model, sizeof g->model, "%s/%s", folder, model ? model : "");
    g->loss = number_of(figures, "loss");
    g->items = number_of(figures, "num_items");
    g->norm = number_of(figures, "grad_norm");
    g->router = strstr(kind, ".aux") ? number_of(json_object_get(root, part), "router_aux_loss_coef") : 0;
    g->bound = strstr(name, "qwen3_next") || strstr(name, "qwen3_5") ? 2e-4 : strstr(name, "gemma3n") ? 1e-4 : 3e-5;
    bool there = figures && model;
    json_decref(root);
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, part);
    g->file = tn_safetensors_open(path, NULL);
    snprintf(path, sizeof path, "%s/full.safetensors", folder);
    g->texts_file = tn_safetensors_open(path, NULL);
    return there && g->file && g->texts_file && read_texts(g);
}

void golden_close(golden *g)
{
    tn_safetensors_close(g->file);
    tn_safetensors_close(g->texts_file);
    free(g->ids);
    free(g->labels);
    free(g->lengths);
}

/* Of f32 or bf16, dense. */
static double stored(const tn_tensor *t, int64_t i)
{
    return t->dtype == TN_BF16 ? tn_bf16_to_f32(((const uint16_t *)t->data)[i]) : ((const float *)t->data)[i];
}

static double element(const tn_tensor *t, int64_t flat)
{
    int64_t offset = 0;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        offset += flat % t->shape[i] * t->stride[i];
        flat /= t->shape[i];
    }
    return ((const float *)t->data)[offset];
}

/* Stacks of experts that this type's files have in the older order were written anew in that of the module. */
static tn_tensor as_written(const golden *g, const tn_tensor *t)
{
    tn_tensor turned = *t;
    if (strcmp(g->name, "qwen3_vl_moe") != 0 || t->ndim != 3)
        return turned;
    turned.shape[1] = t->shape[2];
    turned.shape[2] = t->shape[1];
    turned.stride[1] = t->stride[2];
    turned.stride[2] = t->stride[1];
    return turned;
}

/* Of golden values `want`: all elements, or some. Leaves in why what is wrong. */
static bool gradient_is_right(const golden *g, const tn_tensor *gradient, const tn_tensor *want, double norm, char *why,
                              size_t size)
{
    const tn_tensor written = as_written(g, gradient), *got = &written;
    int64_t n = tn_tensor_count(got), count = tn_tensor_count(want);
    double square = 0, difference = 0;
    for (int64_t i = 0; i < n; i++)
        square += element(got, i) * element(got, i);
    for (int64_t i = 0; i < count; i++) {
        double d = element(got, i * n / count) - stored(want, i);
        difference += d * d;
    }
    double mine = sqrt(square), rms = sqrt(difference / (double)count), own = norm / sqrt((double)n);
    if (norm < 1e-6 * g->norm) {
        snprintf(why, size, "norm %.3g, where nothing is expected", mine);
        return mine < 2e-6 * g->norm;
    }
    snprintf(why, size, "differs by %.2g, its norm by %.2g", rms / own, fabs(mine / norm - 1));
    return rms <= g->bound * own && fabs(mine / norm - 1) <= g->bound;
}

/* What the file has of the tensor of that number; NULL: it is none with a gradient of this batch. */
static const char *wanted_gradient(const golden *g, size_t i, tn_tensor *want, double *norm)
{
    const char *full = tn_safetensors_name(g->file, i);
    char sample[64], whole[64];
    tn_tensor value;
    int sample_length = snprintf(sample, sizeof sample, "%s.sample.", g->kind);
    int whole_length = snprintf(whole, sizeof whole, "%s.grad.", g->kind);
    tn_safetensors_get(g->file, full, want);
    *norm = 0;
    if (!strncmp(full, whole, (size_t)whole_length)) {
        for (int64_t k = 0; k < tn_tensor_count(want); k++)
            *norm += stored(want, k) * stored(want, k);
        *norm = sqrt(*norm);
        return full + whole_length;
    }
    if (strncmp(full, sample, (size_t)sample_length) != 0)
        return NULL;
    if (get(g, "norm.", full + sample_length, &value))
        *norm = *(const double *)value.data;
    return full + sample_length;
}

/* How far all tensors together are from those of f32, in units of torch's distance in bf16. */
static double distance_in_bf16(const golden *g, const tn_trainer *trainer)
{
    double ours = 0, theirs = 0;
    for (size_t i = 0; i < tn_safetensors_count(g->file); i++) {
        tn_tensor want, torch, got;
        double norm;
        const char *name = wanted_gradient(g, i, &want, &norm);
        char rough[2][32];
        snprintf(rough[0], sizeof rough[0], "%s.sample.", g->rough);
        snprintf(rough[1], sizeof rough[1], "%s.grad.", g->rough);
        if (!name || (!get(g, rough[0], name, &torch) && !get(g, rough[1], name, &torch)) ||
            tn_tensor_count(&torch) > tn_tensor_count(&want) || tn_trainer_gradient(trainer, name, &got, NULL) != TN_OK)
            continue;
        const tn_tensor written = as_written(g, &got);
        int64_t n = tn_tensor_count(&got), count = tn_tensor_count(&torch), all = tn_tensor_count(&want);
        for (int64_t k = 0; k < count; k++) {
            double exact = stored(&want, k * all / count);
            double a = element(&written, k * n / count) - exact, b = stored(&torch, k) - exact;
            ours += a * a * (double)n / (double)count;
            theirs += b * b * (double)n / (double)count;
        }
    }
    return theirs > 0 ? sqrt(ours / theirs) : INFINITY;
}

/* Of all gradients, where the case does not say it. */
static double whole_norm(const golden *g)
{
    double squares = 0;
    for (size_t i = 0; i < tn_safetensors_count(g->file); i++) {
        tn_tensor want;
        double norm;
        if (wanted_gradient(g, i, &want, &norm))
            squares += norm * norm;
    }
    return sqrt(squares);
}

static void compare(options *o, golden *g, const char *spec, const tn_trainer *trainer)
{
    g->norm = g->norm > 0 ? g->norm : whole_norm(g);
    int64_t right = 0, wrong = 0;
    char why[256], line[NAME + 512] = "";
    for (size_t i = 0; i < tn_safetensors_count(g->file); i++) {
        tn_error err = TN_ERROR_INIT;
        tn_tensor want, got;
        double norm;
        const char *name = wanted_gradient(g, i, &want, &norm);
        if (!name)
            continue;
        bool ok = tn_trainer_gradient(trainer, name, &got, &err) == TN_OK;
        if (!ok)
            snprintf(why, sizeof why, "%.200s", err.message);
        else
            ok = gradient_is_right(g, &got, &want, norm, why, sizeof why);
        if (!ok && wrong++ == 0)
            snprintf(line, sizeof line, "%s %s", name, why);
        if (!ok && getenv("VV"))
            printf("  %s %s\n", name, why);
        right += ok;
    }
    if (wrong == 0)
        snprintf(line, sizeof line, "%lld gradients", (long long)right);
    else
        snprintf(line + strlen(line), sizeof line - strlen(line), "; %lld of %lld are wrong", (long long)wrong,
                 (long long)(right + wrong));
    say(o, g, spec, wrong == 0 && right > 0, line);
}

void check_spec(options *o, golden *g, tn_model *model, const char *spec, bool f32)
{
    tn_error err = TN_ERROR_INIT;
    char line[1200];
    const tn_train_texts texts = {.size = sizeof texts,
                                  .ids = g->ids,
                                  .labels = g->labels,
                                  .lengths = g->lengths,
                                  .count = g->texts,
                                  .divisor = g->items};
    tn_train_loss loss = {.size = sizeof loss};
    const tn_train_options to = {
        .size = sizeof to, .precision = f32 ? TN_PRECISION_AUTO : g->precision, .router_loss = g->router};
    tn_trainer *trainer = NULL;
    if (tn_apply_kernels(model, o->config, spec, NULL, &err) != TN_OK ||
        !(trainer = tn_trainer_open(model, &to, &err)) || tn_trainer_backward(trainer, &texts, &loss, &err) != TN_OK) {
        snprintf(line, sizeof line, "%s: %s", err.where, err.message);
        say(o, g, spec, false, line);
    } else if (f32) {
        snprintf(line, sizeof line, "loss %.7g, expected %.7g", loss.loss, g->loss);
        say(o, g, spec, fabs(loss.loss - g->loss) <= 1e-5 * fabs(g->loss) && (double)loss.counted == g->items, line);
        compare(o, g, spec, trainer);
    } else {
        double distance = distance_in_bf16(g, trainer);
        snprintf(line, sizeof line, "%s: %.2f times as far from f32 as torch", g->rough, distance);
        say(o, g, spec, distance <= 1.5, line);
    }
    tn_trainer_close(trainer);
}

static void check_type(options *o, golden *g, const char *dtype)
{
    tn_error err = TN_ERROR_INIT;
    char line[1200];
    const tn_model_options mo = {.size = sizeof mo, .dtype = dtype, .training = true};
    tn_model *model = tn_model_open(g->model, &mo, &err);
    for (int i = 0; model && i < o->spec_count; i++)
        check_spec(o, g, model, o->specs[i], !strcmp(dtype, "f32"));
    if (!model) {
        snprintf(line, sizeof line, "%s: %s", err.where, err.message);
        say(o, g, "-", false, line);
    }
    tn_model_close(model);
}

/* The batch with the routers' loss, where the case has it; returns the factor. */
static double check_routers(options *o, const char *folder, const char *name, const char *batch, const char *kind)
{
    golden g;
    bool there = golden_open(&g, folder, name, batch, "full", kind);
    if (there)
        check_type(o, &g, "f32");
    golden_close(&g);
    return there ? g.router : 0;
}

/* Has the case torch's gradients in that precision? Those of demo's experts in amp say nothing: one token's choice
 * hangs by a hair, and who takes the other expert, torch in the one case and we in another, is 8 times as far from f32.
 */
static bool has_rough(const golden *g)
{
    char first[64];
    bool has = false, mixture = false;
    snprintf(first, sizeof first, "%s.%s.", g->batch, g->rough);
    for (size_t k = 0; k < tn_safetensors_count(g->file); k++) {
        const char *name = tn_safetensors_name(g->file, k);
        has |= !strncmp(name, first, strlen(first));
        mixture |= strstr(name, ".experts.") != NULL;
    }
    return has && !(mixture && !strcmp(g->rough, "amp"));
}

static void check_case(options *o, const char *folder, const char *name)
{
    static const char *const batches[] = {"padded", "packed"}, *const rough[2][2] = {{"bf16", "bf16"},
                                                                                     {"amp", "mixed"}};
    for (int i = 0; i < 2; i++) {
        golden g;
        bool there = golden_open(&g, folder, name, batches[i], "full", batches[i]);
        if (there)
            check_type(o, &g, "f32");
        else if (i == 0)
            say(o, &g, "-", false, "is no case");
        for (int k = 0; k < 2 && there; k++) {
            g.rough = rough[k][0];
            if (has_rough(&g))
                check_type(o, &g, rough[k][1]);
        }
        double router = check_routers(o, folder, name, batches[i], i == 0 ? "padded.aux" : "packed.aux");
        if (there && i == 1)
            check_curves(o, folder, name, g.model, router);
        golden_close(&g);
    }
    check_adapters(o, folder, name);
}

static void walk(options *o, const char *folder, const char *name, int depth)
{
    char path[4096];
    struct stat st;
    struct dirent **list = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, o->differences ? "config.json" : "case.json");
    if (stat(path, &st) == 0) {
        (o->differences ? check_differences : check_case)(o, folder, name);
        return;
    }
    int count = depth > 0 ? scandir(folder, &list, NULL, alphasort) : 0;
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, list[i]->d_name);
        if (list[i]->d_name[0] != '.' && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
            walk(o, path, list[i]->d_name, depth - 1);
        free(list[i]);
    }
    free(list);
}

int main(int argc, char **argv)
{
    tn_error err = TN_ERROR_INIT;
    char beside[4096]; /* the plugins of the same build */
    options o = {.plugins = beside};
    const char *formats = NULL;
    bool right = true;
    for (int i = 1; i < argc; i++)
        if (argv[i][0] == '-' && i + 1 < argc && !strcmp(argv[i], "--plugins"))
            o.plugins = argv[++i];
        else if (argv[i][0] == '-' && i + 1 < argc && !strcmp(argv[i], "--kernels") && o.spec_count < SPECS)
            o.specs[o.spec_count++] = argv[++i];
        else if (argv[i][0] == '-' && i + 1 < argc && !strcmp(argv[i], "--formats"))
            formats = argv[++i];
        else if (!strcmp(argv[i], "--differences"))
            o.differences = true;
        else
            right &= argv[i][0] != '-';
    if (!right || argc < 2) {
        fprintf(stderr, "usage: check_training DIR... [--plugins DIR] [--kernels SPEC]... [--differences] "
                        "[--formats FILE]\n");
        return 2;
    }
    snprintf(beside, sizeof beside, "%s", argv[0]);
    char *slash = strrchr(beside, '/');
    snprintf(slash ? slash : beside, 32, "%s", slash ? "/../plugins" : "build/plugins");
    if (o.spec_count == 0)
        o.specs[o.spec_count++] = "none";
    o.config = tn_config_new();
    if (!o.config || tn_config_set_plugins(o.config, o.plugins, &err) != TN_OK ||
        tn_config_set_measure(o.config, false, &err) != TN_OK || tn_scan(o.config, &err) != TN_OK) {
        fprintf(stderr, "%s: %s\n", err.where, err.message);
        tn_config_free(o.config);
        return 1;
    }
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--plugins") || !strcmp(argv[i], "--kernels") || !strcmp(argv[i], "--formats"))
            i++;
        else if (argv[i][0] != '-')
            walk(&o, argv[i], strrchr(argv[i], '/') ? strrchr(argv[i], '/') + 1 : argv[i], 2);
    if (formats)
        check_formats(&o, formats);
    tn_config_free(o.config);
    printf("%lld passed, %lld failed\n", (long long)o.passed, (long long)o.failed);
    return o.failed > 0 || o.passed == 0;
}
