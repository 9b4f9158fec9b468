/* tenon inspect: the tree of a model, what would take each site, and why the others would not. */
#include "cli.h"
#include "inspect_ranks.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Positions that --memory assumes without --context. */
#define USUAL_CONTEXT 4096

/* Positions that the cache's growth is told for. */
#define THOUSAND 1000

/* ---- memory ----------------------------------------------------------------------------------- */

typedef struct memory_use {
    int64_t context;
    size_t cache, arena, cache_per_thousand;
    tn_packed **packed; /* owned */
    size_t packed_count;
} memory_use;

static tn_status measure_session(tn_model *model, int64_t context, size_t *cache, size_t *arena, tn_error *err)
{
    tn_session_options options = {.size = sizeof options, .rows = 1, .context = context};
    tn_session *session = tn_session_new(model, &options, err);
    if (!session)
        return err->code;
    *cache = tn_session_cache_bytes(session);
    *arena = tn_session_arena_bytes(session);
    tn_session_free(session);
    return TN_OK;
}

/* Applies the kernels and opens a session, so that the figures are those of a real run. */
static tn_status measure_memory(workspace *w, memory_use *use, tn_error *err)
{
    int64_t most = workspace_positions(w);
    use->context = option_integer(w->options, OPT_CONTEXT, most > 0 && most < USUAL_CONTEXT ? most : USUAL_CONTEXT);
    tn_status status = tn_apply_kernels(w->model, w->config, NULL, NULL, err);
    if (status == TN_OK)
        status = tn_model_get_info(w->model, &w->info); /* what kernels packed */
    if (status)
        return status;
    status = measure_session(w->model, THOUSAND, &use->cache_per_thousand, &use->arena, err);
    if (status == TN_OK)
        status = measure_session(w->model, use->context, &use->cache, &use->arena, err);
    return status == TN_OK ? tn_model_packed(w->model, &use->packed, &use->packed_count, err) : status;
}

static tn_status print_memory(const workspace *w, const memory_use *use, tn_error *err)
{
    const tn_model_info *info = &w->info;
    char text[32];
    table t;
    table_start(&t, 2, 2);
    table_cell(&t, "weights, mapped");
    table_cell(&t, "%s", bytes_text((double)info->weight_bytes, text));
    table_cell(&t, "weights, re-laid");
    table_cell(&t, "%s", bytes_text((double)info->relaid_bytes, text));
    table_cell(&t, "weights, converted to %s", tn_dtype_name(info->dtype));
    table_cell(&t, "%s", bytes_text((double)info->converted_bytes, text));
    table_cell(&t, "weights, packed by kernels");
    table_cell(&t, "%s", bytes_text((double)info->packed_bytes, text));
    for (size_t i = 0; i < use->packed_count; i++) {
        const tn_packed *p = use->packed[i];
        table_cell(&t, "  %s, %lld sites, %lld copies", p->kernel, (long long)p->sites, (long long)p->copies);
        table_cell(&t, "%s", bytes_text((double)p->bytes, text));
    }
    table_cell(&t, "KV cache, %lld positions", (long long)use->context);
    table_cell(&t, "%s", bytes_text((double)use->cache, text));
    table_cell(&t, "KV cache per %d positions", THOUSAND);
    table_cell(&t, "%s", bytes_text((double)use->cache_per_thousand, text));
    table_cell(&t, "activations and scratch");
    table_cell(&t, "%s", bytes_text((double)use->arena, text));
    printf("\nmemory:\n");
    return table_print(&t, err);
}

static json_t *json_packed(const memory_use *use)
{
    json_t *list = json_array();
    for (size_t i = 0; i < use->packed_count; i++) {
        const tn_packed *p = use->packed[i];
        json_array_append_new(list,
                              json_pack("{s:s, s:I, s:I, s:I}", "kernel", p->kernel, "sites", (json_int_t)p->sites,
                                        "copies", (json_int_t)p->copies, "bytes", (json_int_t)p->bytes));
    }
    return list;
}

static tn_status print_json(const workspace *w, const char *text, const memory_use *use, tn_error *err)
{
    json_error_t where;
    json_t *root = json_loads(text, 0, &where);
    if (!root && !json_lost())
        return tn_fail(err, TN_E_INTERNAL, "inspect", "the library's JSON is wrong: %s; report this", where.text);
    if (use)
        json_object_set_new(
            root, "memory",
            json_pack("{s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:I}", "weight_bytes", (json_int_t)w->info.weight_bytes,
                      "relaid_bytes", (json_int_t)w->info.relaid_bytes, "converted_bytes",
                      (json_int_t)w->info.converted_bytes, "packed_bytes", (json_int_t)w->info.packed_bytes, "packed",
                      json_packed(use), "context", (json_int_t)use->context, "cache_bytes", (json_int_t)use->cache,
                      "cache_bytes_per_1000", (json_int_t)use->cache_per_thousand, "arena_bytes",
                      (json_int_t)use->arena));
    return json_print(root, false, err);
}

/* ---- drawing ------------------------------------------------------------------------------------ */

static tn_status start_dot(int input[2], pid_t *pid, tn_error *err)
{
    char *arguments[] = {"dot", "-Tsvg", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
    posix_spawn_file_actions_addclose(&actions, input[0]);
    posix_spawn_file_actions_addclose(&actions, input[1]);
    int failed = posix_spawnp(pid, "dot", &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed == ENOENT)
        return tn_fail(err, TN_E_USAGE, "inspect",
                       "--format svg needs Graphviz, and its program dot is not installed; install graphviz or use "
                       "--format dot");
    if (failed)
        return tn_fail(err, TN_E_INTERNAL, "dot", "cannot start: %s; use --format dot", strerror(failed));
    return TN_OK;
}

/* Hands the graph to dot, which writes to our stdout itself. */
static tn_status print_svg(const char *graph, tn_error *err)
{
    int input[2];
    pid_t pid;
    int ended = 0;
    tn_status status = write_flush(err);
    if (status)
        return status;
    if (pipe(input))
        return tn_fail(err, TN_E_INTERNAL, "dot", "no pipe: %s; use --format dot", strerror(errno));
    status = start_dot(input, &pid, err);
    close(input[0]);
    if (status == TN_OK) {
        /* dot may end early, when its own reader did; what counts is its exit status. */
        void (*before)(int) = signal(SIGPIPE, SIG_IGN);
        size_t left = strlen(graph);
        for (ssize_t wrote = 0; left > 0 && wrote >= 0; graph += wrote, left -= (size_t)wrote) {
            wrote = write(input[1], graph, left);
            if (wrote < 0)
                break;
        }
        close(input[1]);
        signal(SIGPIPE, before);
        while (waitpid(pid, &ended, 0) < 0 && errno == EINTR)
            continue;
        if (ended != 0 && !(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGPIPE))
            status = tn_fail(err, TN_E_INTERNAL, "dot", "Graphviz failed; use --format dot and look at the graph");
        return status;
    }
    close(input[1]);
    return status;
}

/* ---- the command -------------------------------------------------------------------------------- */

static tn_status print_model(workspace *w, const tn_report *report, const char *format, tn_error *err)
{
    const options *o = w->options;
    bool json = strcmp(format, "json") == 0, text = strcmp(format, "text") == 0;
    memory_use use = {0}, *memory = option_given(o, OPT_MEMORY) ? &use : NULL;
    if (memory && !json && !text)
        return tn_fail(err, TN_E_USAGE, "inspect", "--memory goes with --format text or json; leave out one of them");
    char *description = tn_model_describe(w->model, report,
                                          text   ? TN_GRAPH_TEXT
                                          : json ? TN_GRAPH_JSON
                                                 : TN_GRAPH_DOT,
                                          option_given(o, OPT_EXPLAIN), err);
    if (!description)
        return err->code;
    tn_status status = memory ? measure_memory(w, memory, err) : TN_OK;
    if (status == TN_OK && json)
        status = print_json(w, description, memory, err);
    else if (status == TN_OK && strcmp(format, "svg") == 0)
        status = print_svg(description, err);
    else if (status == TN_OK)
        status = write_clean(description, strlen(description), err);
    if (status == TN_OK && text && memory)
        status = print_memory(w, memory, err);
    free(use.packed);
    free(description);
    return status;
}

static tn_status run_inspect(const options *o, tn_error *err)
{
    workspace w = {0};
    tn_report *report = NULL;
    if (option_given(o, OPT_RANKS))
        return inspect_ranks(o, err);
    if (option_given(o, OPT_NETWORK))
        return tn_fail(err, TN_E_USAGE, "--network", "goes with --parallel");
    tn_status status = workspace_model(&w, o, o->argument[0], err);
    if (status == TN_OK) {
        report = tn_model_plan(w.model, w.config, NULL, err);
        report_notes(o, report);
        status = report ? print_model(&w, report, option_text(o, OPT_FORMAT, "text"), err) : err->code;
    }
    tn_report_free(report);
    workspace_close(&w);
    return status;
}

static const option_spec own_options[] = {
    {OPT_KERNELS, "kernels", "SPEC", 0, OPTION_TEXT, 0, 0, SPEC_HELP},
    ADAPTER_OPTION,
    {OPT_EXPLAIN, "explain", NULL, 0, OPTION_FLAG, 0, 0, "why each kernel does not take each site"},
    {OPT_FORMAT, "format", "text|json|dot|svg", 0, OPTION_CHOICE, 0, 0, "how to print; svg needs Graphviz"},
    {OPT_MEMORY, "memory", NULL, 0, OPTION_FLAG, 0, 0, "and the memory that a run takes; applies the kernels"},
    {OPT_CONTEXT, "context", "N", 'c', OPTION_INTEGER, 1, 1e9, "positions that --memory assumes"},
    {OPT_RANKS, "parallel", "KIND=N", 0, OPTION_TEXT, 0, 0,
     "what each of N ranks would hold: tensor, sums, experts, pipeline"},
    {OPT_NETWORK, "network", "US,GB/S", 0, OPTION_TEXT, 0, 0,
     "and the least time they take, at US microseconds a message and GB/S each way"},
    {OPT_TRAINING, "training", NULL, 0, OPTION_FLAG, 0, 0, "as for training: only kernels with gradients"},
};

const command command_inspect = {
    .name = "inspect",
    .arguments = "MODEL [--kernels SPEC] [--explain] [--format text|json|dot|svg]",
    .summary =
        "Prints the model as a tree of modules, with the kernel that would take each site. The model is not run.",
    .options = own_options,
    .option_count = sizeof own_options / sizeof *own_options,
    .min_arguments = 1,
    .max_arguments = 1,
    .missing = "no model given",
    .example = "  tenon inspect models/demo --explain\n  tenon inspect models/demo --format svg > demo.svg",
    .run = run_inspect,
};
