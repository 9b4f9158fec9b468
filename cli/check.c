/* tenon check: the kernels of one plugin against the plain implementation, without a model. */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

typedef struct report {
    const options *o;
    json_t *rows; /* NULL: text                                                                    */
    int64_t passed, failed, declined;
} report;

static const char *result_name(tn_check_result result)
{
    return result == TN_CHECK_PASSED ? "passed" : result == TN_CHECK_FAILED ? "FAILED" : "not tried";
}

/* ---- text ----------------------------------------------------------------------------------------------------- */

static void print_covered(const tn_check_row *r)
{
    printf("%lld site%s, 0 to %lld tokens, %d to %d threads%s", (long long)r->sites, r->sites == 1 ? "" : "s",
           (long long)r->max_tokens, (int)r->min_threads, (int)r->max_threads, r->gradients ? ", gradients" : "");
    if (r->declined)
        printf(", %lld declined", (long long)r->declined);
}

static void print_impl(const report *p, const tn_check_row *r)
{
    printf("%s %s", r->kernel, tn_op_name(r->op));
    if (r->impl > 0)
        printf(" (%d)", (int)r->impl + 1);
    if (r->dtype != TN_DTYPE_NONE)
        printf(" %s", tn_dtype_name(r->dtype));
    printf(": ");
    if (r->result == TN_CHECK_DECLINED) {
        printf("not tried: %s\n", r->reason);
        return;
    }
    print_covered(r);
    if (r->result == TN_CHECK_PASSED) {
        printf(": passed, worst %.2g of the tolerance", r->worst);
        if (r->worst > 0)
            printf(" (%lld tokens, %s)", (long long)r->worst_tokens, r->worst_shape);
        if (r->apart > 0)
            printf("\n    at %lld of them some rows or heads alone have other bits than among all: not for --parallel "
                   "tensor",
                   (long long)r->apart);
        printf("\n");
    } else {
        printf(": FAILED at %lld of them\n    %s\n    at %s\n    again: tenon check %s --site %lld",
               (long long)r->failed, r->reason, r->shape, p->o->argument[0], (long long)r->site);
        if (option_given(p->o, OPT_QUICK))
            printf(" --quick");
        if (option_given(p->o, OPT_SEED))
            printf(" --seed %lld", (long long)option_integer(p->o, OPT_SEED, 0));
        if (option_given(p->o, OPT_THREADS))
            printf(" --threads %lld", (long long)option_integer(p->o, OPT_THREADS, 0));
        printf("\n");
    }
}

/* Calls of one token take microseconds. */
static const char *short_text(double seconds, char buffer[32])
{
    if (seconds >= 1e-3)
        return seconds_text(seconds, buffer);
    snprintf(buffer, 32, "%.2f us", seconds * 1e6);
    return buffer;
}

static void print_time(const tn_check_row *r)
{
    char eager[32], kernel[32];
    if (r->result != TN_CHECK_PASSED) {
        printf("    %s, %lld tokens: not timed: %s\n", r->shape, (long long)r->max_tokens, r->reason);
        return;
    }
    printf("    %s, %lld token%s, %d thread%s: eager %s, kernel %s, %.2fx, %.1f GFLOP/s, %.1f GB/s", r->shape,
           (long long)r->max_tokens, r->max_tokens == 1 ? "" : "s", (int)r->max_threads, r->max_threads == 1 ? "" : "s",
           short_text(r->eager_seconds, eager), short_text(r->kernel_seconds, kernel),
           r->eager_seconds / r->kernel_seconds, r->operations / r->kernel_seconds * 1e-9,
           r->bytes / r->kernel_seconds * 1e-9);
    if (r->ceiling > 0)
        printf(", %.0f %% of the ceiling", 100 * r->ceiling);
    printf("\n");
}

static void print_site(const tn_check_row *r)
{
    printf("  %4lld %s: %s%s%s\n", (long long)r->site, r->shape, result_name(r->result), r->reason[0] ? ": " : "",
           r->reason);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

static json_t *json_row(const tn_check_row *r)
{
    static const char *const kinds[] = {"site", "implementation", "time"};
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:i, s:s, s:b, s:s}", "kind", kinds[r->kind], "result",
                          r->result == TN_CHECK_FAILED ? "failed" : result_name(r->result), "kernel", r->kernel, "op",
                          tn_op_name(r->op), "implementation", (int)r->impl + 1, "dtype", tn_dtype_name(r->dtype),
                          "gradients", (int)r->gradients, "reason", r->reason);
    if (!o)
        return NULL;
    json_object_set_new(o, "site", json_integer((json_int_t)r->site));
    json_object_set_new(o, "shape", json_string(r->shape));
    json_object_set_new(o, "tokens", json_integer((json_int_t)r->max_tokens));
    json_object_set_new(o, "threads", json_integer(r->max_threads));
    if (r->kind == TN_CHECK_TIME) {
        json_object_set_new(o, "eager_seconds", json_number(r->eager_seconds));
        json_object_set_new(o, "kernel_seconds", json_number(r->kernel_seconds));
        json_object_set_new(o, "operations", json_number(r->operations));
        json_object_set_new(o, "bytes", json_number(r->bytes));
        json_object_set_new(o, "ceiling", r->ceiling > 0 ? json_number(r->ceiling) : json_null());
        return o;
    }
    json_object_set_new(o, "sites", json_integer((json_int_t)r->sites));
    json_object_set_new(o, "failed", json_integer((json_int_t)r->failed));
    json_object_set_new(o, "declined", json_integer((json_int_t)r->declined));
    json_object_set_new(o, "apart", json_integer((json_int_t)r->apart));
    json_object_set_new(o, "worst", json_number(r->worst));
    json_object_set_new(o, "worst_shape", json_string(r->worst_shape));
    json_object_set_new(o, "worst_tokens", json_integer((json_int_t)r->worst_tokens));
    return o;
}

/* ---- the command ----------------------------------------------------------------------------------------------- */

static int on_row(void *ctx, const tn_check_row *r)
{
    report *p = ctx;
    if (r->kind == TN_CHECK_IMPL) {
        p->passed += r->result == TN_CHECK_PASSED;
        p->failed += r->result == TN_CHECK_FAILED;
        p->declined += r->result == TN_CHECK_DECLINED;
    }
    if (p->rows)
        return json_array_append_new(p->rows, json_row(r));
    if (r->kind == TN_CHECK_SITE)
        print_site(r);
    else if (r->kind == TN_CHECK_TIME)
        print_time(r);
    else
        print_impl(p, r);
    fflush(stdout); /* each takes seconds                                                          */
    return 0;
}

static tn_status print_end(report *p, tn_error *err)
{
    if (p->rows)
        return json_print(json_pack("{s:s, s:I, s:I, s:I, s:o}", "file", p->o->argument[0], "passed",
                                    (json_int_t)p->passed, "failed", (json_int_t)p->failed, "not_tried",
                                    (json_int_t)p->declined, "rows", p->rows),
                          false, err);
    printf("%lld passed, %lld failed", (long long)p->passed, (long long)p->failed);
    if (p->declined)
        printf(", %lld not tried", (long long)p->declined);
    printf("\n");
    return write_flush(err);
}

static tn_status print_replay(const options *o, const tn_replay *r, tn_error *err)
{
    if (option_given(o, OPT_JSON))
        return json_print(json_pack("{s:s, s:s, s:s, s:s, s:I, s:b, s:o, s:s, s:o, s:s, s:i, s:i, s:i, s:i, s:i, s:i}",
                                    "kernel", r->kernel, "plugin", r->plugin, "op", tn_op_name(r->op), "site", r->site,
                                    "tokens", (json_int_t)r->tokens, "passed", (int)r->passed, "worst_then",
                                    json_number(r->worst_then), "then", r->then, "worst_now", json_number(r->worst_now),
                                    "now", r->now, "threads", (int)r->threads, "calls_alone", (int)r->calls_alone,
                                    "wrong_alone", (int)r->wrong_alone, "calls_together", (int)r->calls_together,
                                    "wrong_together", (int)r->wrong_together, "other_bits", (int)r->other_bits),
                          false, err);
    printf("%s %s at %s, %lld token%s, %s\n", r->kernel, tn_op_name(r->op), r->site, (long long)r->tokens,
           r->tokens == 1 ? "" : "s", r->plugin);
    printf("  then: %.3g of the tolerance (%s)\n", r->worst_then, r->then);
    printf("  now:  %.3g of the tolerance%s%s%s: %s\n", r->worst_now, r->now[0] ? " (" : "", r->now,
           r->now[0] ? ")" : "", r->passed ? "right" : "WRONG");
    printf("        %s\n", r->threads_text);
    return write_flush(err);
}

static tn_status run_replay(const options *o, tn_error *err)
{
    tn_replay r = {.size = sizeof r};
    tn_error failure = TN_ERROR_INIT;
    workspace w = {0};
    tn_status verdict = TN_OK, status = TN_OK;
    if (o->argument_count == 0)
        verdict = workspace_config(&w, o, &failure);
    if (verdict == TN_OK)
        verdict = tn_check_replay(o->argument[0], o->text[OPT_REPLAY], &r, &failure);
    workspace_close(&w);
    if (verdict == TN_OK || verdict == TN_E_VERIFY)
        status = print_replay(o, &r, err);
    return status == TN_OK && verdict != TN_OK ? tn_fail(err, verdict, failure.where, "%s", failure.message) : status;
}

static tn_status run_check(const options *o, tn_error *err)
{
    if (option_given(o, OPT_REPLAY))
        return run_replay(o, err);
    if (o->argument_count == 0)
        return tn_fail(err, TN_E_USAGE, "check", "no plugin given; usage: tenon check %s", o->command->arguments);
    tn_check_options check = {.size = sizeof check,
                              .op = o->text[OPT_OP],
                              .threads = (int32_t)option_integer(o, OPT_THREADS, 0),
                              .seed = (uint64_t)option_integer(o, OPT_SEED, 0),
                              .site = option_integer(o, OPT_SITE, 0),
                              .quick = option_given(o, OPT_QUICK),
                              .bench = option_given(o, OPT_BENCH),
                              .each_site = option_given(o, OPT_VERBOSE)};
    if (access(o->argument[0], F_OK))
        return tn_fail(err, TN_E_KERNEL, o->argument[0], "no such file: %s; give the path of a plugin, my_kernels.so",
                       strerror(errno));
    check_threads(o, 0);
    note_unfiltered(o);
    report p = {.o = o, .rows = option_given(o, OPT_JSON) ? json_array() : NULL};
    tn_error failure = TN_ERROR_INIT;
    tn_status verdict = tn_check_plugin(o->argument[0], &check, on_row, &p, &failure);
    tn_status status = TN_OK;
    if (verdict == TN_OK || verdict == TN_E_VERIFY)
        status = print_end(&p, err);
    else
        json_decref(p.rows);
    return status == TN_OK && verdict != TN_OK ? tn_fail(err, verdict, failure.where, "%s", failure.message) : status;
}

static const option_spec own_options[] = {
    {OPT_OP, "op", "OP", 0, OPTION_TEXT, 0, 0, "only this operation: RMS_NORM, ROPE, MLP, ..."},
    {OPT_BENCH, "bench", NULL, 0, OPTION_FLAG, 0, 0, "then time them, against eager and the machine's ceilings"},
    {OPT_QUICK, "quick", NULL, 0, OPTION_FLAG, 0, 0, "fewer and smaller sites"},
    {OPT_SITE, "site", "N", 0, OPTION_INTEGER, 1, 1e9, "only the made-up site of this number"},
    {OPT_SEED, "seed", "S", 0, OPTION_INTEGER, 0, 9007199254740992.0, "other numbers in weights and inputs"},
    {OPT_REPLAY, "replay", "CALL", 0, OPTION_TEXT, 0, 0, "make the call again that --shadow wrote to this file"},
    {OPT_JSON, "json", NULL, 0, OPTION_FLAG, 0, 0, "an object instead of lines"},
};

const command command_check = {
    .name = "check",
    .arguments = "FILE.so [--op OP] [--bench] [--quick] [--site N] [--seed S] [--replay CALL] [--json]",
    .summary = "Tries every kernel of a plugin against the plain implementation, without a model.",
    .options = own_options,
    .option_count = sizeof own_options / sizeof *own_options,
    .min_arguments = 0,
    .max_arguments = 1,
    .missing = "no plugin given",
    .notes =
        "FILE may be anywhere: it is loaded because you name it, and checking it runs its code, in child processes\n"
        "with time limits. Sites are made up from what each implementation says it takes. Each is tried with 0 to 600\n"
        "tokens, rows apart, in place, between unreadable pages, with several numbers of threads (the same bits are\n"
        "expected), inputs of all magnitudes, and for gradients. --verbose adds a line per site. The exit status is 5\n"
        "when a kernel fails, 3 when FILE is no usable plugin. --replay makes one call again, on one thread and 20\n"
        "times on those that it had, with the kernel of FILE or, without FILE, of the usual plugins; the status is 5\n"
        "when it is still wrong.",
    .example = "  tenon check ./my_kernels.so\n  tenon check build/plugins/npu_rope.so --op ROPE --bench",
    .run = run_check,
};
