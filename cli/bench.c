/* tenon bench: two choices of kernels side by side, in one process and in turns, so that what disturbs the machine
 * disturbs both. */
#include "bench.h"

#include "profile.h"
#include "ranks.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define USUAL_DECODE 64
#define USUAL_CONTEXT 128
#define USUAL_REPEAT 3

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

static tn_status measure_case(const bench *b, tn_session *session, const bench_case *c, double *seconds, tn_error *err)
{
    tn_status status = bench_begin_case(b, session, c, err);
    double started = seconds_now();
    if (status == TN_OK)
        status = bench_run_case(b, session, c, err);
    *seconds = seconds_now() - started;
    return status;
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
    /* The side without kernels promises nothing, and is what the other is compared with all the same. */
    if (option_given(b->w.options, OPT_SAME_BITS))
        tn_config_set_same_bits(b->w.config, strcmp(side->spec, "none") != 0, err);
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
        double *times = bench_times(b, side, c) + round * b->cases[c].samples;
        progress_update(&b->w.progress, side->spec, b->done++, b->total);
        for (int64_t i = 0; i < b->cases[c].samples && status == TN_OK; i++)
            status = measure_case(b, session, &b->cases[c], &times[i], err);
    }
    if (status == TN_OK && b->profile && side == b->side && round + 1 == b->repeat)
        status = profile_measure(b->profile, b, session, err);
    tn_session_free(session);
    return status;
}

/* ---- the command ----------------------------------------------------------------------------------- */

static double peak_bytes(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (double)usage.ru_maxrss * 1024 : 0;
}

static tn_status measure_all(bench *b, tn_error *err)
{
    tn_status status = TN_OK;
    progress_start(&b->w.progress, b->w.options);
    for (int64_t round = 0; round < b->repeat && status == TN_OK; round++)
        for (int s = 0; s < 2 && status == TN_OK; s++)
            status = measure_side(b, &b->side[s], round, err);
    progress_clear(&b->w.progress);
    return status;
}

static tn_status run_bench(const options *o, tn_error *err)
{
    bench b = {0};
    profile p = {0};
    tn_machine machine = {.size = sizeof machine};
    tn_status status = profile_open(&p, o, err);
    b.profile = profile_wanted(&p) ? &p : NULL;
    if (status == TN_OK)
        status = workspace_model(&b.w, o, o->argument[0], err);
    if (status == TN_OK)
        status = prepare(&b, o, err);
    if (status == TN_OK)
        status = measure_all(&b, err);
    double peak = peak_bytes(); /* before the machine's own measurement takes memory */
    if (status == TN_OK)
        status = tn_measure_machine(&machine, err);
    if (status == TN_OK)
        status = bench_print(&b, &machine, peak, err);
    if (status == TN_OK)
        status = profile_write(&p, &b, &machine, err);
    profile_close(&p);
    free(b.ids);
    free(b.logits);
    free(b.side[0].seconds);
    free(b.side[1].seconds);
    workspace_close(&b.w);
    return status;
}

static const option_spec own_options[] = {
    {OPT_KERNELS, "kernels", "SPEC", 0, OPTION_TEXT, 0, 0, SPEC_HELP "; default auto"},
    ADAPTER_OPTION,
    LOCK_OPTION,
    PARALLEL_OPTIONS,
    {OPT_AGAINST, "against", "SPEC", 0, OPTION_TEXT, 0, 0, "what to compare with; default none"},
    {OPT_PROMPT, "prompt", "N,...", 'p', OPTION_TEXT, 0, 0, "lengths of prompts; default 128,512"},
    {OPT_DECODE, "decode", "N", 0, OPTION_INTEGER, 0, 1e9, "tokens decoded one by one; default 64; 0: none"},
    {OPT_CONTEXT, "context", "N", 'c', OPTION_INTEGER, 0, 1e9,
     "positions filled before decoding; default: first prompt"},
    {OPT_REPEAT, "repeat", "N", 0, OPTION_INTEGER, 1, 1000, "turns of each side; default 3"},
    {OPT_PROFILE, "profile", "modules", 0, OPTION_OPTIONAL, 0, 0,
     "where the time of SPEC goes, by operation and kernel; =modules: and by module"},
    {OPT_TRACE, "trace", "FILE", 0, OPTION_TEXT, 0, 0, "write every call as trace events, for ui.perfetto.dev"},
    {OPT_PLOT, "plot", "FILE", 0, OPTION_TEXT, 0, 0, "draw the roofline with every kernel on it, as SVG (gnuplot)"},
    {OPT_JSON, "json", NULL, 0, OPTION_FLAG, 0, 0, "an object instead of a table"},
};

const command command_bench = {
    .name = "bench",
    .arguments = "MODEL [--kernels SPEC] [--against SPEC] [--prompt N,...] [--decode N] [--profile] [--json]",
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
        "overlap: such a difference may be chance.\n\n"
        "--profile, --trace and --plot look at further runs of each case, with the kernels of SPEC.",
    .example = "  tenon bench models/demo --prompt 128 --decode 64\n"
               "  tenon bench models/demo --kernels=npu_fused_moe --against=none --json\n"
               "  tenon bench models/demo --profile --trace trace.json --plot roofline.svg",
    .run = run_bench,
};
