/* npu_count NAME LAYERS FEW MORE [PLUGINS]
 *
 * What an Ascend device would be asked to do: FEW and MORE are one model with few layers and with some more, opened on
 * the simulator, which LD_LIBRARY_PATH has to lead to. Prints a table: per layer, for what is beside layers, and of
 * LAYERS of them, in decode and of a prompt; without kernels and with all of them. Nothing is timed. */
#include <dlfcn.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tenon/tenon.h>

#include "../ascend_sim/sim.h"

enum {
    PROMPT = 512,
    WARM = 4,
    DECODED = 8,
    CONTEXT = 1024,
    OPERATORS = 128,
    FIGURES = sizeof(sim_figures) / sizeof(int64_t)
};

/* The members of sim_figures as numbers, and how often each operator came; of one call. */
typedef struct counts {
    double of[FIGURES], launched[OPERATORS];
} counts;

static const char *operator_name[OPERATORS];

typedef struct measured {
    counts prompt, decode; /* decode: of one token                                                         */
    double weights, cache; /* bytes that a token has to read: those of its experts alone; at its position   */
    int64_t layers;
} measured;

static void die(const char *what, const tn_error *err)
{
    fprintf(stderr, "npu_count: %s: %s%s%s\n", what, err ? err->where : "", err && err->where[0] ? ": " : "",
            err ? err->message : "");
    exit(1);
}

static counts look(void)
{
    void *library = dlopen("libascendcl.so", RTLD_LAZY | RTLD_NOLOAD);
    void *found[2] = {library ? dlsym(library, "sim_figures_so_far") : NULL,
                      library ? dlsym(library, "sim_launched") : NULL};
    __typeof__(&sim_figures_so_far) figures;
    __typeof__(&sim_launched) launched;
    sim_figures now;
    counts c = {0};
    memcpy(&figures, &found[0], sizeof figures);
    memcpy(&launched, &found[1], sizeof launched);
    if (!found[0] || !found[1])
        die("what is loaded as libascendcl.so is not the simulator; set LD_LIBRARY_PATH", NULL);
    figures(&now);
    for (size_t i = 0; i < FIGURES; i++)
        c.of[i] = (double)((const int64_t *)(const void *)&now)[i];
    int64_t count;
    for (int i = 0; i < OPERATORS && (operator_name[i] = launched(i, &count)); i++)
        c.launched[i] = (double)count;
    return c;
}

static counts since(const counts *before, int calls)
{
    counts c = look();
    for (size_t i = 0; i < FIGURES; i++)
        c.of[i] = (c.of[i] - before->of[i]) / calls;
    for (size_t i = 0; i < OPERATORS; i++)
        c.launched[i] = (c.launched[i] - before->launched[i]) / calls;
    return c;
}

/* ---- what a token cannot do without ---------------------------------------------------------------------------- */

static double number(const json_t *config, const char *key)
{
    return json_number_value(json_object_get(config, key));
}

/* bf16: all weights but a row's worth of the table of embeddings where that is not the head too, and but the experts
 * that a token does not choose. */
static void find_least(const char *folder, measured *m)
{
    char path[4200];
    struct stat s;
    json_error_t error;
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *config = json_load_file(path, 0, &error);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (!config || stat(path, &s) != 0)
        die(path, NULL);
    double experts = number(config, "num_experts"), chosen = number(config, "num_experts_per_tok");
    double hidden = number(config, "hidden_size"), inter = number(config, "moe_intermediate_size");
    bool tied = json_is_true(json_object_get(config, "tie_word_embeddings"));
    m->layers = (int64_t)number(config, "num_hidden_layers");
    m->weights = (double)s.st_size - (tied ? 0 : 2 * hidden * number(config, "vocab_size")) -
                 (double)m->layers * (experts - chosen) * 3 * hidden * inter * 2;
    m->cache = (double)m->layers * 2 * number(config, "num_key_value_heads") * number(config, "head_dim") * 2 *
               (PROMPT + WARM + DECODED / 2);
    json_decref(config);
}

/* ---- runs ------------------------------------------------------------------------------------------------------- */

static void run(tn_session *session, int64_t tokens, float *logits)
{
    int64_t ids[PROMPT];
    tn_error err = TN_ERROR_INIT;
    for (int64_t i = 0; i < tokens; i++)
        ids[i] = 5 + (tn_session_length(session) + i) * 37 % 1999;
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = tokens, .ids = ids};
    tn_outputs out = {.size = sizeof out, .last_logits = logits};
    if (tn_session_run(session, &batch, &out, &err) != TN_OK)
        die("run", &err);
}

static measured measure(const char *folder, const tn_config *config, const char *kernels)
{
    measured m = {.layers = 0};
    tn_error err = TN_ERROR_INIT;
    tn_model_options options = {.size = sizeof options, .device = "npu"};
    tn_model *model = tn_model_open(folder, &options, &err);
    if (!model)
        die(folder, &err);
    if (tn_apply_kernels(model, config, kernels, NULL, &err) != TN_OK)
        die(kernels, &err);
    tn_session_options so = {.size = sizeof so, .context = CONTEXT, .chunk = PROMPT};
    tn_session *session = tn_session_new(model, &so, &err);
    tn_model_info info = {.size = sizeof info};
    float *logits = tn_model_get_info(model, &info) == TN_OK ? malloc((size_t)info.vocab * sizeof *logits) : NULL;
    if (!session || !logits)
        die("session", &err);
    counts before = look();
    run(session, PROMPT, logits);
    m.prompt = since(&before, 1);
    for (int i = 0; i < WARM; i++)
        run(session, 1, logits);
    before = look();
    for (int i = 0; i < DECODED; i++)
        run(session, 1, logits);
    m.decode = since(&before, DECODED);
    find_least(folder, &m);
    free(logits);
    tn_session_free(session);
    tn_model_close(model);
    return m;
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

static double at(const counts *c, size_t member)
{
    return c->of[member / sizeof(int64_t)];
}

static void line(const char *what, size_t member, const counts *few, const counts *more, int64_t steps, int64_t first,
                 int64_t layers, double unit)
{
    double layer = (at(more, member) - at(few, member)) / (double)steps / unit;
    double rest = at(few, member) / unit - (double)first * layer;
    printf("| %s | %.*f | %.*f | %.*f |\n", what, unit > 1 ? 2 : 1, layer, unit > 1 ? 2 : 1, rest, unit > 1 ? 1 : 0,
           rest + (double)layers * layer);
}

static void operators(const counts *few, const counts *more, int64_t steps)
{
    fputs("\nOperators of a layer:", stdout);
    for (int i = 0; i < OPERATORS; i++) {
        double count = (more->launched[i] - few->launched[i]) / (double)steps;
        if (count > 0)
            printf(" %s %g", operator_name[i] + (strncmp(operator_name[i], "aclnn", 5) == 0 ? 5 : 0), count);
    }
    puts(".");
}

static void table(const char *name, const char *kernels, const char *call, const counts *few, const counts *more,
                  int64_t steps, int64_t first, int64_t layers)
{
    static const struct {
        const char *what;
        size_t member;
        double unit;
    } lines[] = {{"launches", offsetof(sim_figures, launches), 1},
                 {"operators in graphs, which are one launch", offsetof(sim_figures, replayed), 1},
                 {"uploads", offsetof(sim_figures, uploads), 1},
                 {"KB uploaded", offsetof(sim_figures, uploaded_bytes), 1e3},
                 {"downloads", offsetof(sim_figures, downloads), 1},
                 {"KB downloaded", offsetof(sim_figures, downloaded_bytes), 1e3},
                 {"synchronisations", offsetof(sim_figures, synchronisations), 1},
                 {"executors made", offsetof(sim_figures, executors), 1},
                 {"descriptors made", offsetof(sim_figures, descriptors), 1},
                 {"MB moved by operators", offsetof(sim_figures, moved_bytes), 1e6}};
    printf("\n%s, --kernels=%s, %s\n\n| | a layer | beside layers | %" PRId64 " layers |\n|---|---|---|---|\n", name,
           kernels, call, layers);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        line(lines[i].what, lines[i].member, few, more, steps, first, layers, lines[i].unit);
}

static void report(const char *name, int64_t layers, const char *const folders[2], const tn_config *config,
                   const char *kernels)
{
    char call[64];
    measured few = measure(folders[0], config, kernels), more = measure(folders[1], config, kernels);
    int64_t steps = more.layers - few.layers;
    if (steps <= 0)
        die("MORE has no more layers than FEW", NULL);
    snprintf(call, sizeof call, "a token in decode behind %d others", PROMPT + WARM);
    table(name, kernels, call, &few.decode, &more.decode, steps, few.layers, layers);
    double moved =
        at(&more.decode, offsetof(sim_figures, moved_bytes)) - at(&few.decode, offsetof(sim_figures, moved_bytes));
    double weights = more.weights - few.weights, cache = more.cache - few.cache;
    printf("| times the weights and the cache of a layer | %.2f | | |\n", moved / (weights + cache));
    operators(&few.decode, &more.decode, steps);
    snprintf(call, sizeof call, "a prompt of %d tokens", PROMPT);
    table(name, kernels, call, &few.prompt, &more.prompt, steps, few.layers, layers);
    operators(&few.prompt, &more.prompt, steps);
}

int main(int argc, char **argv)
{
    tn_error err = TN_ERROR_INIT;
    char *folder = argc > 5 ? argv[5] : "build/plugins", *plugins = NULL;
    if (argc < 5 || strtoll(argv[2], NULL, 10) <= 0) {
        fputs("usage: npu_count NAME LAYERS FEW MORE [PLUGINS]\n", stderr);
        return 2;
    }
    tn_config *config = tn_config_new();
    plugins = realpath(folder, NULL);
    if (!config || !plugins || tn_config_set_plugins(config, plugins, &err) != TN_OK ||
        tn_config_set_measure(config, false, &err) != TN_OK || tn_scan(config, &err) != TN_OK)
        die(folder, &err);
    report(argv[1], strtoll(argv[2], NULL, 10), (const char *const[]){argv[3], argv[4]}, config, "none");
    report(argv[1], strtoll(argv[2], NULL, 10), (const char *const[]){argv[3], argv[4]}, config, "auto");
    tn_config_free(config);
    free(plugins);
    return 0;
}
