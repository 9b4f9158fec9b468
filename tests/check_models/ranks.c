/* A model cut over ranks: the bits of one process that has all of it, with the same kernels; where what ranks give is
 * added up (sums), the numbers that are expected of one process, and the same bits again when ranks are late. */
#include "check.h"
#include "local_group.h"

#include <tenon/parallel.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ANSWER = 12, LINE = 400 };

/* What a line begins with where the model is refused by right. */
static const char SKIPPED[] = "skipped: ";

/* Logits of a whole batch, of its tokens in calls of three, and of some that are chosen one by one. */
typedef struct outcome {
    run_results whole, some;
    float *answer;            /* [ANSWER,vocab]                                                              */
    int64_t chosen[ANSWER];   /* tokens behind the prompt                                                    */
    const local_group *group; /* NULL: one process                                                */
    int64_t each;             /* ranks of a stage                                                 */
    int64_t unforeseen;       /* calls that crossed, and in which other bytes crossed, than were foretold */
} outcome;

/* In how many passes count ranks of a stage have what all of them have: halves have theirs, then each rank of one what
 * a rank of the other has. */
static int64_t passes_of_gather(int64_t count)
{
    int64_t half = count / 2;
    return count < 2 ? 0 : passes_of_gather(half) + passes_of_gather(count - half) + 2 * half + count % 2;
}

/* One call of a session, and what it was to take, which is told of text. */
static bool run_foretold(tn_session *s, const tn_batch *batch, float *logits, outcome *o, tn_error *err)
{
    const tn_outputs out = {.size = sizeof out, .last_logits = logits};
    tn_forecast f = {.size = sizeof f};
    int64_t calls[2] = {0}, bytes[2] = {0}, each = o->each;
    if (batch->images || batch->videos || batch->sounds)
        return tn_session_run(s, batch, &out, err) == TN_OK;
    if (o->group && tn_session_forecast(s, batch->tokens, &f, err) != TN_OK)
        return false;
    if (o->group)
        local_group_count(o->group, &calls[0], &bytes[0]);
    if (tn_session_run(s, batch, &out, err) != TN_OK)
        return false;
    if (o->group)
        local_group_count(o->group, &calls[1], &bytes[1]);
    int64_t foretold = f.gathers + each * f.passes + passes_of_gather(each) * f.stage_gathers;
    int64_t foretold_bytes = f.gathered_bytes + each * f.passed_bytes + (each - 1) * f.stage_gathered_bytes;
    o->unforeseen += calls[1] - calls[0] != foretold || bytes[1] - bytes[0] != foretold_bytes;
    return true;
}

/* as: whose tokens are fed; NULL: those that are chosen. */
static bool choose_some(const golden *g, tn_model *model, const outcome *as, outcome *o, tn_error *err)
{
    tn_model_info info = {.size = sizeof info};
    tn_model_get_info(model, &info);
    const tn_session_options options = {.size = sizeof options,
                                        .context = info.max_positions < 256 ? info.max_positions : 256};
    tn_session *s = tn_session_new(model, &options, err);
    int64_t vocab = o->whole.vocab, most = options.context - ANSWER, tokens = g->ids.shape[1], id = 0;
    tokens = tokens < most ? tokens : most;
    o->answer = calloc((size_t)(ANSWER * vocab), sizeof *o->answer);
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = tokens, .ids = g->ids.data};
    media media = {0};
    bool ok = s && o->answer;
    if (tokens == g->ids.shape[1])
        media_fill(g, RUN_MADE, 0, tokens, &media, &batch);
    for (int i = 0; i < ANSWER && ok; i++) {
        float *logits = o->answer + i * vocab;
        if (i == ANSWER / 2) /* back and on again                                                      */
            tn_session_rewind(s, tn_session_length(s) - 2, NULL);
        ok = run_foretold(s, &batch, logits, o, err);
        id = 0;
        for (int64_t v = 1; v < vocab && ok; v++)
            id = logits[v] > logits[id] ? v : id;
        o->chosen[i] = id = as ? as->chosen[i] : id;
        batch = (tn_batch){.size = sizeof batch, .rows = 1, .tokens = 1, .ids = &id};
    }
    media_free(&media);
    tn_session_free(s);
    return ok;
}

static bool look(const golden *g, tn_model *model, const outcome *as, outcome *o, tn_error *err)
{
    golden with = *g;
    return run_allocate(g, model, false, &o->whole) && run_case(g, model, 0, run_main_mode(g), &o->whole, err) &&
           run_allocate(g, model, false, &o->some) &&
           run_case(media_remember(&with, &o->whole), model, 3, RUN_GIVEN, &o->some, err) &&
           choose_some(g, model, as, o, err);
}

static void forget(outcome *o)
{
    run_free(&o->whole);
    run_free(&o->some);
    free(o->answer);
}

/* What all processes of one check are told. */
typedef struct asked {
    tn_dtype dtype;
    const char *spec, *parallel;
    int64_t stages, each; /* of ranks                                                                       */
} asked;

static tn_model *open_one(const golden *g, const asked *a, const tn_group *end, const tn_config *config, tn_error *err)
{
    const tn_model_options options = {.size = sizeof options,
                                      .dtype = tn_dtype_name(a->dtype),
                                      .threads = 1,
                                      .parallel = end ? a->parallel : NULL,
                                      .group = end};
    tn_model *m = tn_model_open(g->model, &options, err);
    bool applies = !end || end->rank == 0;
    if (m && (!applies || tn_apply_kernels(m, config, a->spec, NULL, err) == TN_OK))
        return m;
    tn_model_close(m);
    return NULL;
}

static int64_t differing(const float *a, const float *b, int64_t count)
{
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++)
        n += memcmp(&a[i], &b[i], sizeof *a) != 0;
    return n;
}

static bool adds_up(const char *parallel)
{
    return strstr(parallel, "sums") || strstr(parallel, "experts");
}

/* Has the model, by its own account, fewer layers than there are stages, or some that must stay together, or gates that
 * are cut off by all of a row? */
static bool may_refuse(const golden *g, const asked *a, const tn_model *m)
{
    char path[sizeof g->model + sizeof "/config.json"];
    tn_model_info info = {.size = sizeof info};
    snprintf(path, sizeof path, "%s/config.json", g->model);
    json_t *config = json_load_file(path, 0, NULL), *own = json_object_get(config, "text_config");
    const json_t *text = own ? own : config;
    bool joined = json_integer_value(json_object_get(text, "num_kv_shared_layers")) > 0;
    bool sparse = json_object_get(text, "activation_sparsity_pattern") && adds_up(a->parallel);
    json_decref(config);
    return tn_model_get_info(m, &info) == TN_OK && (info.layers < a->stages || joined || sparse);
}

static bool is_refusal(const tn_error *err)
{
    return err->code == TN_E_USAGE &&
           (strstr(err->message, "pipeline takes at most") || strstr(err->message, "activation_sparsity_pattern"));
}

/* How many logits of b are not those of a, in words; "": none. */
static void compare_bits(const golden *g, const outcome *a, const outcome *b, char *line)
{
    int64_t logits = g->ids.shape[0] * g->ids.shape[1] * a->whole.vocab;
    int64_t whole = differing(a->whole.logits, b->whole.logits, logits);
    int64_t some = differing(a->some.logits, b->some.logits, logits);
    int64_t answer = differing(a->answer, b->answer, ANSWER * a->whole.vocab);
    line[0] = '\0';
    if (whole + some + answer > 0)
        snprintf(line, LINE, "of %lld logits %lld differ at once, %lld in calls of three; %lld of those of an answer",
                 (long long)logits, (long long)whole, (long long)some, (long long)answer);
}

/* In f32: those of the file; calls of three and answers as of one process. */
static bool right_f32(const golden *g, const outcome *alone, const outcome *o, char *line)
{
    char whole[128], some[128];
    double error = 0, largest = 0;
    bool ok = compare_logits(g, o->whole.logits, g->logits.data, 0, whole);
    ok = compare_logits(g, o->some.logits, alone->some.logits, 0, some) && ok;
    for (int64_t i = 0; i < ANSWER * o->whole.vocab; i++) {
        double e = fabs((double)o->answer[i] - alone->answer[i]), m = fabs((double)alone->answer[i]);
        error = e <= error ? error : e;
        largest = m > largest ? m : largest;
    }
    snprintf(line, LINE, "%s; in calls of three %s; of an answer %.2e", whole, some, error);
    return ok && error <= g->bound * (largest < 1 ? largest : 1);
}

/* In bf16, where the file has what transformers gives: as far from the truth as that; calls of three, too, where they
 * are to give what one pass does. */
static bool right_bf16(const golden *g, const near_tokens *n, bool rounds, const outcome *o, char *line)
{
    char whole[192] = "the case has no truth", some[192] = "not judged";
    bool ok = !g->bf16.data || rounding_is_right(g, &o->whole, n, rounds, whole);
    bool steady = g->ids.shape[1] <= g->steady_until;
    ok = (!g->bf16.data || !steady || rounding_is_right(g, &o->some, n, rounds, some)) && ok;
    snprintf(line, LINE, "%s; in calls of three: %s", whole, some);
    return ok;
}

/* Rank 0 of ranks that add up: what it says of them, and whether that is right. */
static bool judge_sums(const golden *g, const asked *a, local_group *group, tn_model *all, const outcome *alone,
                       const near_tokens *n, outcome *o, char *line, tn_error *err)
{
    outcome late = {.group = group, .each = a->each};
    bool rounds = g->act.data && strcmp(a->spec, "none") != 0;
    local_group_shake(group, 1);
    bool ok = look(g, all, alone, &late, err);
    local_group_shake(group, 0);
    if (!ok)
        return false;
    compare_bits(g, o, &late, line);
    ok = !line[0] && (a->dtype == TN_F32 ? right_f32(g, alone, o, line) : right_bf16(g, n, rounds, o, line));
    o->unforeseen += late.unforeseen;
    forget(&late);
    return ok;
}

/* Rank 0, which computes alone first. Leaves in line what is to be said. */
static bool compare(const golden *g, const asked *a, local_group *group, const tn_config *config, char *line)
{
    tn_error err = TN_ERROR_INIT;
    outcome alone = {0}, together = {.group = group, .each = a->each};
    near_tokens near = {0};
    const tn_group end = local_group_end(group, 0);
    bool sums = adds_up(a->parallel);
    tn_model *one = open_one(g, a, NULL, config, &err), *all = NULL;
    bool ok = one && look(g, one, NULL, &alone, &err), few = ok && may_refuse(g, a, one);
    ok = ok && (!sums || a->dtype != TN_BF16 || !g->bf16.data || near_find(g, one, run_main_mode(g), &near, &err));
    tn_model_close(one);
    if (ok && (all = open_one(g, a, &end, config, &err)) != NULL)
        ok = look(g, all, &alone, &together, &err);
    bool right = ok && all;
    if (right && sums)
        right = judge_sums(g, a, group, all, &alone, &near, &together, line, &err);
    else if (right)
        compare_bits(g, &alone, &together, line);
    right = right && (sums || !line[0]);
    tn_model_close(all);
    if (!ok || !all || err.code) {
        snprintf(line, LINE, "%s%.100s: %.270s", few && is_refusal(&err) ? SKIPPED : "", err.where, err.message);
        right = false;
    } else if (right && together.unforeseen > 0) {
        snprintf(line, LINE, "%lld of %d calls crossed otherwise than was foretold", (long long)together.unforeseen,
                 ANSWER);
        right = false;
    } else if (right && !sums) {
        snprintf(line, LINE, "the bits of one");
    }
    near_free(&near);
    forget(&alone);
    forget(&together);
    return right;
}

static int follow(const golden *g, const asked *a, local_group *group, int32_t rank, tn_config *config, char *line)
{
    tn_error err = TN_ERROR_INIT;
    const tn_group end = local_group_end(group, rank);
    tn_model *m = open_one(g, a, &end, config, &err);
    tn_status status = m ? tn_follow(m, config, &err) : err.code;
    if (status != TN_OK)
        snprintf(line, LINE, "rank %d: %.100s: %.270s", (int)rank, err.where, err.message);
    tn_model_close(m);
    return status != TN_OK;
}

void check_ranks(const golden *g, tn_dtype dtype, tn_config *config, const char *spec, const char *parallel)
{
    enum { MOST = 16 };
    int64_t each, ranks = tn_parallel_ranks(parallel, &each);
    const asked a = {dtype, spec, parallel, each ? ranks / each : 0, each};
    char what[48];
    local_group *group = local_group_new((int32_t)ranks);
    char(*line)[LINE] = mmap(NULL, MOST * sizeof *line, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child[MOST];
    int64_t calls = 0, bytes = 0;
    bool bad = !group || line == MAP_FAILED || ranks < 1 || ranks > MOST;
    snprintf(what, sizeof what, "%s %s", tn_dtype_name(dtype), parallel);
    fflush(NULL);
    for (int32_t r = 0; r < ranks && !bad; r++)
        if ((child[r] = fork()) == 0)
            _exit(r == 0 ? !compare(g, &a, group, config, line[0]) : follow(g, &a, group, r, config, line[r]));
    const char *said = bad ? "no memory" : "";
    for (int32_t r = 0; r < ranks && !bad; r++) {
        int status = 0;
        waitpid(child[r], &status, 0);
        said = !*said && status ? (line[r][0] ? line[r] : "a rank ended by a signal") : said;
    }
    if (group)
        local_group_count(group, &calls, &bytes);
    char fine[LINE + 64];
    snprintf(fine, sizeof fine, "%s; %lld gathers, %lld KB", bad ? "" : line[0], (long long)calls,
             (long long)(bytes >> 10));
    if (!strncmp(said, SKIPPED, sizeof SKIPPED - 1)) {
        printf("SKIP %-22s %s %-5s %s\n", g->name, what, spec, said + sizeof SKIPPED - 1);
        check_tally.skipped++;
    } else {
        check_report(g, what, spec, !*said, *said ? said : fine);
    }
    if (line != MAP_FAILED)
        munmap(line, MOST * sizeof *line);
}
