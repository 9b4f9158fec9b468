/* tenon bench: two choices of kernels side by side, in one process and in turns, so that what disturbs the machine
 * disturbs both. */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define USUAL_DECODE 64
#define USUAL_CONTEXT 128
#define USUAL_REPEAT 3
#define MAX_CASES 17
/* A case that takes less is measured several times in each turn. */
#define TURN_SECONDS 0.05
#define TURN_SAMPLES 16

/* One line of the table: a prompt of this many tokens, or so many steps of one token behind a context. */
typedef struct bench_case {
    bool decode;
    int64_t tokens, context, samples; /* samples: measurements of one turn                      */
} bench_case;

typedef struct bench_side {
    const char *spec;
    double *seconds; /* [cases, repeat * TURN_SAMPLES], the first repeat * samples of each      */
    int64_t packed_bytes;
    char summary[512];
} bench_side;

typedef struct bench {
    workspace w;
    bench_case cases[MAX_CASES];
    size_t case_count;
    int64_t repeat, positions; /* positions that the longest case needs                         */
    int64_t *ids;              /* [positions]                                                   */
    float *logits;             /* [vocab]                                                       */
    bench_side side[2];
    size_t cache_bytes, arena_bytes;
    int64_t done, total; /* for the progress bar                                                */
} bench;

/* ---- what to measure ------------------------------------------------------------------------------ */

static tn_status add_case(bench *b, bench_case c, bool asked, tn_error *err)
{
    int64_t most = workspace_positions(&b->w), needed = c.tokens + c.context;
    if (most > 0 && needed > most && asked)
        return tn_fail(err, TN_E_INPUT, "bench",
                       "%lld positions are needed, and the model is made for %lld; ask for fewer with --prompt, "
                       "--decode and --context",
                       (long long)needed, (long long)most);
    if (most > 0 && needed > most)
        return TN_OK; /* a usual case that this model cannot have */
    b->cases[b->case_count++] = c;
    b->positions = needed > b->positions ? needed : b->positions;
    return TN_OK;
}

static tn_status choose_cases(bench *b, const options *o, tn_error *err)
{
    int64_t *prompts = NULL;
    size_t count = 0;
    tn_status status = parse_ids("--prompt", option_text(o, OPT_PROMPT, "128,512"), &prompts, &count, err);
    if (status == TN_OK && (count == 0 || count >= MAX_CASES))
        status = tn_fail(err, TN_E_USAGE, "--prompt", "%zu lengths given; give 1 to %d", count, MAX_CASES - 1);
    for (size_t i = 0; i < count && status == TN_OK; i++) {
        if (prompts[i] < 1 || prompts[i] > 1000000000)
            status = tn_fail(err, TN_E_USAGE, "--prompt", "a length of %lld is out of range; give 1 to 1000000000",
                             (long long)prompts[i]);
        else
            status = add_case(b, (bench_case){false, prompts[i], 0, 1}, option_given(o, OPT_PROMPT), err);
    }
    int64_t decode = option_integer(o, OPT_DECODE, USUAL_DECODE);
    int64_t first = option_given(o, OPT_PROMPT) && status == TN_OK ? prompts[0] : USUAL_CONTEXT;
    bool asked = option_given(o, OPT_DECODE) || option_given(o, OPT_CONTEXT);
    if (status == TN_OK && decode > 0)
        status = add_case(b, (bench_case){true, decode, option_integer(o, OPT_CONTEXT, first), 1}, asked, err);
    free(prompts);
    if (status == TN_OK && b->case_count == 0)
        status = tn_fail(err, TN_E_INPUT, "bench",
                         "the model has %lld positions, fewer than any usual case; give "
                         "--prompt, --decode and --context",
                         (long long)b->w.info.max_positions);
    return status;
}

/* The same tokens on every run: a linear congruential generator, whose upper bits are good enough here. */
static void random_ids(int64_t *ids, int64_t count, int64_t vocab)
{
    uint64_t state = 1;
    for (int64_t i = 0; i < count; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        ids[i] = (int64_t)((state >> 33) % (uint64_t)vocab);
    }
}

static tn_status prepare(bench *b, const options *o, tn_error *err)
{
    tn_status status = choose_cases(b, o, err);
    if (status)
        return status;
    b->repeat = option_integer(o, OPT_REPEAT, USUAL_REPEAT);
    b->total = 2 * b->repeat * (int64_t)b->case_count;
    b->side[0].spec = tn_config_kernels(b->w.config);
    b->side[1].spec = option_text(o, OPT_AGAINST, "none");
    b->ids = malloc((size_t)b->positions * sizeof *b->ids);
    b->logits = malloc((size_t)b->w.info.vocab * sizeof *b->logits);
    for (int s = 0; s < 2; s++)
        b->side[s].seconds = calloc(b->case_count * (size_t)b->repeat * TURN_SAMPLES, sizeof(double));
    if (!b->ids || !b->logits || !b->side[0].seconds || !b->side[1].seconds)
        return tn_fail(err, TN_E_MEMORY, "bench", "out of memory; ask for shorter prompts");
    random_ids(b->ids, b->positions, b->w.info.vocab);
    return TN_OK;
}

/* ---- measuring ------------------------------------------------------------------------------------ */

static tn_status feed(const bench *b, tn_session *session, int64_t at, int64_t tokens, tn_error *err)
{
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = tokens, .ids = b->ids + at};
    tn_outputs outputs = {.size = sizeof outputs, .last_logits = b->logits};
    return tn_session_run(session, &batch, &outputs, err);
}

static tn_status measure_case(const bench *b, tn_session *session, const bench_case *c, double *seconds, tn_error *err)
{
    tn_session_reset(session);
    tn_status status = c->context ? feed(b, session, 0, c->context, err) : TN_OK;
    double started = seconds_now();
    if (status == TN_OK && !c->decode)
        status = feed(b, session, 0, c->tokens, err);
    for (int64_t i = 0; c->decode && i < c->tokens && status == TN_OK; i++)
        status = feed(b, session, c->context + i, 1, err);
    *seconds = seconds_now() - started;
    return status;
}

static double *times_of(const bench *b, const bench_side *side, size_t c)
{
    return side->seconds + (int64_t)c * b->repeat * TURN_SAMPLES;
}

/* A first pass that is not measured fills caches and tables; the very first shows how long each case takes. */
static tn_status warm_up(bench *b, tn_session *session, bool all, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t c = 0; c < (all ? b->case_count : 1) && status == TN_OK; c++) {
        double seconds;
        status = measure_case(b, session, &b->cases[c], &seconds, err);
        if (all && seconds < TURN_SECONDS)
            b->cases[c].samples =
                seconds * TURN_SAMPLES < TURN_SECONDS ? TURN_SAMPLES : (int64_t)(TURN_SECONDS / seconds) + 1;
    }
    return status;
}

/* One turn of one side: kernels are applied anew. */
static tn_status measure_side(bench *b, bench_side *side, int64_t round, tn_error *err)
{
    tn_report *report = NULL;
    tn_session_options options = {.size = sizeof options, .rows = 1, .context = b->positions};
    tn_status status = tn_apply_kernels(b->w.model, b->w.config, side == b->side ? NULL : side->spec, &report, err);
    if (status)
        return status;
    if (round == 0)
        report_notes(b->w.options, report);
    snprintf(side->summary, sizeof side->summary, "%s", report->summary);
    tn_report_free(report);
    tn_model_get_info(b->w.model, &b->w.info);
    side->packed_bytes = b->w.info.packed_bytes;
    tn_session *session = tn_session_new(b->w.model, &options, err);
    if (!session)
        return err->code;
    b->cache_bytes = tn_session_cache_bytes(session);
    b->arena_bytes = tn_session_arena_bytes(session);
    status = warm_up(b, session, round == 0 && side == b->side, err);
    for (size_t c = 0; c < b->case_count && status == TN_OK; c++) {
        double *times = times_of(b, side, c) + round * b->cases[c].samples;
        progress_update(&b->w.progress, side->spec, b->done++, b->total);
        for (int64_t i = 0; i < b->cases[c].samples && status == TN_OK; i++)
            status = measure_case(b, session, &b->cases[c], &times[i], err);
    }
    tn_session_free(session);
    return status;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int64_t samples_of(const bench *b, size_t c)
{
    return b->repeat * b->cases[c].samples;
}

/* Sorts every case's times: the best comes first, the median in the middle. */
static void sort_times(bench *b)
{
    for (int s = 0; s < 2; s++)
        for (size_t c = 0; c < b->case_count; c++)
            qsort(times_of(b, &b->side[s], c), (size_t)samples_of(b, c), sizeof(double), by_size);
}

static double median(const bench *b, int side, size_t c)
{
    const double *t = times_of(b, &b->side[side], c);
    int64_t n = samples_of(b, c);
    return (t[(n - 1) / 2] + t[n / 2]) / 2;
}

static double per_second(const bench *b, size_t c, double seconds)
{
    return seconds > 0 ? (double)b->cases[c].tokens / seconds : 0;
}

static double rate(const bench *b, int side, size_t c)
{
    return per_second(b, c, median(b, side, c));
}

/* The middle half of the measurements: what an odd one out does not move. Of few, all. */
static double quartile(const bench *b, int side, size_t c, bool upper)
{
    int64_t n = samples_of(b, c), at = (n - 1) / 4;
    return times_of(b, &b->side[side], c)[upper ? n - 1 - at : at];
}

/* Could the same measurements have come from one and the same side? Fewer than three have no spread to tell by. */
static bool overlaps(const bench *b, size_t c)
{
    return samples_of(b, c) < 3 ||
           (quartile(b, 0, c, false) <= quartile(b, 1, c, true) && quartile(b, 1, c, false) <= quartile(b, 0, c, true));
}

static double peak_bytes(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (double)usage.ru_maxrss * 1024 : 0;
}

/* ---- printing -------------------------------------------------------------------------------------- */

static tn_status print_memory(const bench *b, double peak, tn_error *err)
{
    const tn_model_info *info = &b->w.info;
    const char *const names[] = {"peak, resident", "weights, mapped", "weights, converted", "KV cache", "arena"};
    const double values[] = {peak, (double)info->weight_bytes, (double)info->converted_bytes, (double)b->cache_bytes,
                             (double)b->arena_bytes};
    char text[32];
    table t;
    table_start(&t, 2, 2);
    for (size_t i = 0; i < 5; i++) {
        table_cell(&t, "%s", names[i]);
        table_cell(&t, "%s", bytes_text(values[i], text));
    }
    for (int s = 0; s < 2; s++) {
        table_cell(&t, "packed by %s", b->side[s].spec);
        table_cell(&t, "%s", bytes_text((double)b->side[s].packed_bytes, text));
    }
    printf("\nmemory:\n");
    return table_print(&t, err);
}

/* One of the machine's rates on one thread and, where there are more, on all. */
static void machine_cell(table *t, const tn_machine *m, const char *name, const double *per_second, const char *unit)
{
    if (per_second[1] <= 0)
        return;
    table_cell(t, "%s", name);
    table_cell(t, "%.1f", per_second[0] * 1e-9);
    if (m->threads[1] > 1)
        table_cell(t, "%.1f", per_second[1] * 1e-9);
    table_cell(t, "%s", unit);
}

static tn_status print_machine(const tn_machine *m, tn_error *err)
{
    bool several = m->threads[1] > 1;
    char cache[32], memory[32];
    table t;
    printf("machine: %s, %d thread%s, last cache %s\n", m->cpu, (int)m->threads[1], several ? "s" : "",
           bytes_text((double)m->cache_bytes, cache));
    table_start(&t, several ? 4 : 3, several ? 0x6 : 0x2);
    table_cell(&t, "CEILING");
    table_cell(&t, "1 THREAD");
    if (several)
        table_cell(&t, "%d THREADS", (int)m->threads[1]);
    table_cell(&t, "UNIT");
    machine_cell(&t, m, "memory, read", m->read, "GB/s");
    machine_cell(&t, m, "memory, copy", m->copy, "GB/s");
    machine_cell(&t, m, "f32 multiply-add", m->f32, "GFLOP/s");
    machine_cell(&t, m, "bf16 dot products", m->bf16, "GFLOP/s");
    machine_cell(&t, m, "f16 multiply-add, f16 sums", m->f16, "GFLOP/s");
    machine_cell(&t, m, "bf16 tiles (AMX)", m->amx_bf16, "GFLOP/s");
    tn_status status = table_print(&t, err);
    printf("memory is read from %s, outside of every cache\n\n", bytes_text((double)m->memory_bytes, memory));
    return status;
}

/* Says where the figures mean nothing: to whoever reads the object that goes elsewhere, too. */
static void warn_of_overlap(const bench *b)
{
    size_t unclear = 0;
    for (size_t c = 0; c < b->case_count; c++)
        unclear += overlaps(b, c);
    if (unclear)
        note(b->w.options,
             WARNING "bench: the spreads of the two sides overlap in %zu of %zu cases, or there are too few "
                     "measurements: such a difference may be chance; raise --repeat (%lld)",
             unclear, b->case_count, (long long)b->repeat);
}

static tn_status print_table(const bench *b, const tn_machine *m, double peak, tn_error *err)
{
    const tn_model_info *info = &b->w.info;
    char seconds[32];
    tn_status status = print_machine(m, err);
    if (status)
        return status;
    printf("model: %s (%s), computes in %s on %s, loaded in %s\n", info->folder, info->class_name,
           tn_dtype_name(info->dtype), info->device, seconds_text(info->load_seconds, seconds));
    for (int s = 0; s < 2; s++)
        printf("%s: %s\n", b->side[s].spec, b->side[s].summary);
    table t;
    table_start(&t, 8, 0x7E);
    table_cell(&t, "PHASE");
    table_cell(&t, "TOKENS");
    table_cell(&t, "CONTEXT");
    for (int s = 0; s < 2; s++) {
        table_cell(&t, "%s, TOKENS/S", b->side[s].spec);
        table_cell(&t, "SPREAD");
    }
    table_cell(&t, "SPEED-UP");
    for (size_t c = 0; c < b->case_count; c++) {
        table_cell(&t, "%s", b->cases[c].decode ? "decode" : "prompt");
        table_cell(&t, "%lld", (long long)b->cases[c].tokens);
        table_cell(&t, "%lld", (long long)b->cases[c].context);
        for (int s = 0; s < 2; s++) {
            table_cell(&t, "%.1f", rate(b, s, c));
            table_cell(&t, "%.1f-%.1f", per_second(b, c, quartile(b, s, c, true)),
                       per_second(b, c, quartile(b, s, c, false)));
        }
        table_cell(&t, "%.2fx%s", rate(b, 1, c) > 0 ? rate(b, 0, c) / rate(b, 1, c) : 0, overlaps(b, c) ? " ?" : "");
    }
    printf("\n");
    status = table_print(&t, err);
    printf("medians; SPREAD is the middle half of the measurements; ? where those of the two sides overlap\n");
    return status ? status : print_memory(b, peak, err);
}

static json_t *json_results(const bench *b)
{
    json_t *list = json_array();
    for (size_t c = 0; c < b->case_count; c++)
        for (int s = 0; s < 2; s++) {
            const double *t = times_of(b, &b->side[s], c);
            json_array_append_new(
                list,
                json_pack("{s:s, s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:I}", "kernels", b->side[s].spec,
                          "phase", b->cases[c].decode ? "decode" : "prompt", "tokens", (json_int_t)b->cases[c].tokens,
                          "context", (json_int_t)b->cases[c].context, "tokens_per_second", json_number(rate(b, s, c)),
                          "median_seconds", json_number(median(b, s, c)), "best_seconds", json_number(t[0]),
                          "worst_seconds", json_number(t[samples_of(b, c) - 1]), "lower_quartile_seconds",
                          json_number(quartile(b, s, c, false)), "upper_quartile_seconds",
                          json_number(quartile(b, s, c, true)), "overlap", (int)overlaps(b, c), "samples",
                          (json_int_t)samples_of(b, c)));
        }
    return list;
}

/* GB/s and GFLOP/s, on one thread and on all; 0: not on this machine. */
static json_t *json_machine(const tn_machine *m)
{
    const struct {
        const char *name;
        const double *per_second;
    } rates[] = {{"memory_read_gb_per_second", m->read},
                 {"memory_copy_gb_per_second", m->copy},
                 {"f32_fma_gflops", m->f32},
                 {"bf16_dot_gflops", m->bf16},
                 {"f16_fma_gflops", m->f16},
                 {"bf16_amx_gflops", m->amx_bf16}};
    json_t *root = json_pack("{s:s, s:i, s:I, s:I}", "cpu", m->cpu, "threads", (int)m->threads[1], "cache_bytes",
                             (json_int_t)m->cache_bytes, "memory_bytes", (json_int_t)m->memory_bytes);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s_one_thread", rates[i].name);
        json_object_set_new(root, rates[i].name, json_number(rates[i].per_second[1] * 1e-9));
        json_object_set_new(root, name, json_number(rates[i].per_second[0] * 1e-9));
    }
    return root;
}

static tn_status print_json(const bench *b, const tn_machine *m, double peak, tn_error *err)
{
    const tn_model_info *info = &b->w.info;
    json_t *machine = json_machine(m);
    json_t *model = json_pack("{s:s, s:s, s:s, s:s, s:I, s:o}", "folder", info->folder, "class", info->class_name,
                              "dtype", tn_dtype_name(info->dtype), "device", info->device, "parameters",
                              (json_int_t)info->parameters, "load_seconds", json_number(info->load_seconds));
    json_t *memory =
        json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I}", "peak_bytes", json_real(peak), "weight_bytes",
                  (json_int_t)info->weight_bytes, "converted_bytes", (json_int_t)info->converted_bytes, "cache_bytes",
                  (json_int_t)b->cache_bytes, "arena_bytes", (json_int_t)b->arena_bytes, "packed_bytes",
                  (json_int_t)b->side[0].packed_bytes, "packed_bytes_against", (json_int_t)b->side[1].packed_bytes);
    json_t *kernels = json_pack("[{s:s, s:s}, {s:s, s:s}]", "spec", b->side[0].spec, "summary", b->side[0].summary,
                                "spec", b->side[1].spec, "summary", b->side[1].summary);
    return json_print(json_pack("{s:o, s:o, s:o, s:o, s:o}", "machine", machine, "model", model, "kernels", kernels,
                                "results", json_results(b), "memory", memory),
                      false, err);
}

/* ---- the command ----------------------------------------------------------------------------------- */

static tn_status run_bench(const options *o, tn_error *err)
{
    bench b = {0};
    tn_machine machine = {.size = sizeof machine};
    tn_status status = workspace_model(&b.w, o, o->argument[0], err);
    if (status == TN_OK)
        status = prepare(&b, o, err);
    progress_start(&b.w.progress, o);
    for (int64_t round = 0; round < b.repeat && status == TN_OK; round++)
        for (int s = 0; s < 2 && status == TN_OK; s++)
            status = measure_side(&b, &b.side[s], round, err);
    progress_clear(&b.w.progress);
    if (status == TN_OK) {
        double peak = peak_bytes(); /* before the machine's own measurement takes memory */
        sort_times(&b);
        status = tn_measure_machine(&machine, err);
        warn_of_overlap(&b);
        if (status == TN_OK && option_given(o, OPT_JSON))
            status = print_json(&b, &machine, peak, err);
        else if (status == TN_OK)
            status = print_table(&b, &machine, peak, err);
    }
    free(b.ids);
    free(b.logits);
    free(b.side[0].seconds);
    free(b.side[1].seconds);
    workspace_close(&b.w);
    return status;
}

static const option_spec own_options[] = {
    {OPT_KERNELS, "kernels", "SPEC", 0, OPTION_TEXT, 0, 0, SPEC_HELP "; default auto"},
    {OPT_AGAINST, "against", "SPEC", 0, OPTION_TEXT, 0, 0, "what to compare with; default none"},
    {OPT_PROMPT, "prompt", "N,...", 0, OPTION_TEXT, 0, 0, "lengths of prompts; default 128,512"},
    {OPT_DECODE, "decode", "N", 0, OPTION_INTEGER, 0, 1e9, "tokens decoded one by one; default 64; 0: none"},
    {OPT_CONTEXT, "context", "N", 0, OPTION_INTEGER, 0, 1e9, "positions filled before decoding; default: first prompt"},
    {OPT_REPEAT, "repeat", "N", 0, OPTION_INTEGER, 1, 1000, "turns of each side; default 3"},
    {OPT_JSON, "json", NULL, 0, OPTION_FLAG, 0, 0, "an object instead of a table"},
};

const command command_bench = {
    .name = "bench",
    .arguments = "MODEL [--kernels SPEC] [--against SPEC] [--prompt N,...] [--decode N] [--json]",
    .summary =
        "Measures two choices of kernels side by side, in turns, on random tokens. Shows the machine's limits, too.",
    .options = own_options,
    .option_count = sizeof own_options / sizeof *own_options,
    .min_arguments = 1,
    .max_arguments = 1,
    .missing = "no model given",
    .notes =
        "\"prompt\" computes all tokens at once, \"decode\" one after the other behind --context tokens. Figures are\n"
        "medians, with the middle half of the measurements beside them. A \"?\" stands where those of the two sides\n"
        "overlap: such a difference may be chance.",
    .example = "  tenon bench models/demo --prompt 128 --decode 64\n"
               "  tenon bench models/demo --kernels=npu_fused_moe --against=none --json",
    .run = run_bench,
};
