/* tenon inspect --parallel: the model is opened as each rank would, one after the other in this process. */
#include "inspect_ranks.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 4096, THOUSAND = 1000, CALLS = 2 };

static const int64_t call_tokens[CALLS] = {1, 512};

typedef struct holding {
    int64_t cut, whole, copied;
    size_t cache;       /* for a thousand positions                                                 */
    tn_model_info info; /* what of the first layer is the rank's                                    */
} holding;

/* With --network. */
typedef struct forecasts {
    network net;
    tn_machine machine;
    tn_forecast *of[CALLS]; /* [ranks]                                                             */
    network_call call[CALLS];
} forecasts;

/* The other ranks say what this one says. */
static tn_status echo(void *self, void *all, const int64_t *bytes, tn_error *err)
{
    const tn_group *group = self;
    size_t own = 0, at = 0;
    (void)err;
    for (int32_t r = 0; r < group->rank; r++)
        own += (size_t)bytes[r];
    for (int32_t r = 0; r < group->ranks; at += (size_t)bytes[r++])
        if (bytes[r] == bytes[group->rank])
            memmove((char *)all + at, (char *)all + own, (size_t)bytes[r]);
    return TN_OK;
}

static tn_status say(void *self, void *data, int64_t bytes, bool idle, tn_error *err)
{
    (void)self, (void)data, (void)bytes, (void)idle, (void)err;
    return TN_OK;
}

static tn_status pass(void *self, int32_t from, int32_t to, void *data, int64_t bytes, tn_error *err)
{
    (void)self, (void)from, (void)to, (void)data, (void)bytes, (void)err;
    return TN_OK;
}

static tn_status forecast_rank(const workspace *w, int32_t rank, const forecasts *f, tn_error *err)
{
    const tn_session_options long_one = {.size = sizeof long_one, .context = THOUSAND, .chunk = call_tokens[CALLS - 1]};
    tn_session *session = tn_session_new(w->model, &long_one, err);
    tn_status status = session ? TN_OK : err->code;
    for (int i = 0; i < CALLS && status == TN_OK; i++) {
        f->of[i][rank].size = sizeof(tn_forecast);
        status = tn_session_forecast(session, call_tokens[i], &f->of[i][rank], err);
    }
    tn_session_free(session);
    return status;
}

/* f NULL: no forecast is wanted. */
static tn_status open_as(workspace *w, int32_t rank, int32_t ranks, holding *h, const forecasts *f, tn_error *err)
{
    const options *o = w->options;
    tn_group group = {
        .size = sizeof group, .rank = rank, .ranks = ranks, .self = &group, .gather = echo, .tell = say, .pass = pass};
    const tn_model_options how = {.size = sizeof how,
                                  .dtype = o->text[OPT_DTYPE],
                                  .threads = (int32_t)option_integer(o, OPT_THREADS, 0),
                                  .dequantise = option_given(o, OPT_DEQUANTISE),
                                  .parallel = o->text[OPT_RANKS],
                                  .group = &group};
    const tn_session_options short_one = {.size = sizeof short_one, .context = THOUSAND, .chunk = 1};
    w->info.size = sizeof w->info;
    if (!(w->model = tn_model_open(o->argument[0], &how, err)) || tn_model_get_info(w->model, &w->info) != TN_OK)
        return err->code;
    tn_session *session = tn_session_new(w->model, &short_one, err);
    if (!session)
        return err->code;
    *h = (holding){w->info.cut_bytes, w->info.whole_bytes, w->info.converted_bytes, tn_session_cache_bytes(session),
                   w->info};
    tn_session_free(session);
    tn_status status = f ? forecast_rank(w, rank, f, err) : TN_OK;
    tn_model_close(w->model);
    w->model = NULL;
    return status;
}

static tn_status print_json(const holding *list, int32_t ranks, const forecasts *f, tn_error *err)
{
    json_t *all = json_array();
    for (int32_t r = 0; r < ranks; r++)
        json_array_append_new(
            all, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "rank", (json_int_t)r, "cut_bytes",
                           (json_int_t)list[r].cut, "whole_bytes", (json_int_t)list[r].whole, "copied_bytes",
                           (json_int_t)list[r].copied, "cache_bytes_per_1000", (json_int_t)list[r].cache, "heads",
                           (json_int_t)list[r].info.own_heads, "kv_heads", (json_int_t)list[r].info.own_kv_heads,
                           "inner", (json_int_t)list[r].info.own_inner, "experts", (json_int_t)list[r].info.own_experts,
                           "vocab", (json_int_t)list[r].info.own_vocab));
    json_t *root = json_pack("{s:o}", "ranks", all);
    if (f)
        json_object_set_new(root, "calls", network_json(f->call, CALLS));
    return json_print(root, false, err);
}

static tn_status print_table(const holding *list, int32_t ranks, tn_error *err)
{
    char text[32];
    double sum = 0, most = 0;
    table t;
    table_start(&t, 10, 0x3ff);
    table_cell(&t, "RANK");
    table_cell(&t, "HEADS");
    table_cell(&t, "OF KEYS");
    table_cell(&t, "INNER");
    table_cell(&t, "EXPERTS");
    table_cell(&t, "VOCAB");
    table_cell(&t, "PARTS");
    table_cell(&t, "WHOLE");
    table_cell(&t, "OF THESE COPIED");
    table_cell(&t, "KV CACHE PER %d", THOUSAND);
    for (int32_t r = 0; r < ranks; r++) {
        double own = (double)(list[r].cut + list[r].whole);
        sum += own;
        most = own > most ? own : most;
        table_cell(&t, "%d", (int)r);
        table_cell(&t, "%lld", (long long)list[r].info.own_heads);
        table_cell(&t, "%lld", (long long)list[r].info.own_kv_heads);
        table_cell(&t, "%lld", (long long)list[r].info.own_inner);
        table_cell(&t, "%lld", (long long)list[r].info.own_experts);
        table_cell(&t, "%lld", (long long)list[r].info.own_vocab);
        table_cell(&t, "%s", bytes_text((double)list[r].cut, text));
        table_cell(&t, "%s", bytes_text((double)list[r].whole, text));
        table_cell(&t, "%s", bytes_text((double)list[r].copied, text));
        table_cell(&t, "%s", bytes_text((double)list[r].cache, text));
    }
    tn_status status = table_print(&t, err);
    if (status == TN_OK)
        printf("weights of the fullest rank: %s, %.2f of the mean\n", bytes_text(most, text), most * ranks / sum);
    return status;
}

static tn_status begin_forecasts(forecasts *f, const char *text, long ranks, tn_error *err)
{
    tn_status status = network_read(text, &f->net, err);
    for (int i = 0; i < CALLS && status == TN_OK; i++)
        if (!(f->of[i] = calloc((size_t)ranks, sizeof *f->of[i])))
            status = tn_fail(err, TN_E_MEMORY, "inspect", "out of memory");
    return status;
}

/* Of what all ranks said; on this machine. */
static tn_status end_forecasts(forecasts *f, const workspace *w, int32_t ranks, int32_t each, tn_error *err)
{
    f->machine.size = sizeof f->machine;
    tn_status status = tn_measure_machine(&f->machine, err);
    for (int i = 0; i < CALLS && status == TN_OK; i++)
        f->call[i] = network_call_of(&f->net, f->of[i], ranks, each, call_tokens[i], w->info.dtype, &f->machine);
    return status;
}

tn_status inspect_ranks(const options *o, tn_error *err)
{
    workspace w = {.options = o};
    forecasts forecasts = {0}, *f = option_given(o, OPT_NETWORK) ? &forecasts : NULL;
    const char *format = option_text(o, OPT_FORMAT, "text");
    int64_t each, ranks = tn_parallel_ranks(o->text[OPT_RANKS], &each);
    bool json = strcmp(format, "json") == 0;
    if (ranks < 1 || ranks > MOST)
        return tn_fail(err, TN_E_USAGE, "--parallel",
                       "say over how many ranks, as tensor=4 or pipeline=2,tensor=4; at most %d", MOST);
    if (!json && strcmp(format, "text") != 0)
        return tn_fail(err, TN_E_USAGE, "--parallel", "goes with --format text or json");
    holding *list = calloc((size_t)ranks, sizeof *list);
    tn_status status = list ? TN_OK : tn_fail(err, TN_E_MEMORY, "inspect", "out of memory");
    if (status == TN_OK && f)
        status = begin_forecasts(f, o->text[OPT_NETWORK], ranks, err);
    for (int32_t r = 0; r < ranks && status == TN_OK; r++)
        status = open_as(&w, r, (int32_t)ranks, &list[r], f, err);
    if (status == TN_OK && f)
        status = end_forecasts(f, &w, (int32_t)ranks, (int32_t)each, err);
    if (status == TN_OK)
        status = json ? print_json(list, (int32_t)ranks, f, err) : print_table(list, (int32_t)ranks, err);
    if (status == TN_OK && f && !json)
        status = network_print(f->call, CALLS, err);
    workspace_close(&w);
    for (int i = 0; i < CALLS; i++)
        free(forecasts.of[i]);
    free(list);
    return status;
}
