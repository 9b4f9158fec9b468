/* Pieces of work for test_memory: sequences of an engine. */
#include "memory_pieces.h"

/* A sequence of an engine. */
typedef struct served {
    uint64_t *sum;
    tn_status status;
    tn_error error;
    int ends;
} served;

static int on_served(void *ctx, int64_t row, int64_t id)
{
    served *s = ctx;
    (void)row;
    piece_add(s->sum, &id, sizeof id);
    return TN_NEXT_TOKEN;
}

static void on_end(void *ctx, const tn_engine_result *result)
{
    served *s = ctx;
    s->ends++;
    s->status = result->status;
    s->error = result->error;
}

/* One after the other, the second behind what it has in common with the first, and a third beside a fourth. */
static tn_status serve_texts(tn_engine *e, served *s, tn_error *err)
{
    int64_t prompt[20];
    tn_status status = TN_OK;
    for (int64_t i = 0; i < 20; i++)
        prompt[i] = (i * 7 + 3) % 50;
    for (int i = 0; i < 4 && status == TN_OK; i++) {
        tn_generate_options o = {.size = sizeof o, .max_tokens = 3, .temperature = 1, .ignore_eos = true};
        o.repetition_penalty = 1.1;
        o.on_row_token = on_served;
        o.ctx = &s[i];
        tn_engine_request r = {
            .size = sizeof r, .prompt = prompt, .prompt_count = 20 - i, .options = &o, .on_end = on_end};
        status = tn_engine_add(e, &r, NULL, err);
        for (bool more = i != 2; more && status == TN_OK;)
            status = tn_engine_step(e, &more, err);
    }
    return status;
}

tn_status piece_serve(const char *path, uint64_t *sum, tn_error *err)
{
    uint64_t sums[4] = {0};
    served s[4] = {{.sum = &sums[0]}, {.sum = &sums[1]}, {.sum = &sums[2]}, {.sum = &sums[3]}};
    tn_model *m = tn_model_open(path, NULL, err);
    tn_engine_options eo = {.size = sizeof eo, .sequences = 2, .context = 32, .budget = 8};
    tn_engine *e = m ? tn_engine_new(m, &eo, err) : NULL;
    tn_status status = e ? serve_texts(e, s, err) : err->code;
    tn_engine_free(e);
    tn_model_close(m);
    for (int i = 0; i < 4 && status == TN_OK; i++) {
        if (s[i].ends != 1 || s[i].status != TN_OK)
            return tn_fail(err, s[i].ends == 1 ? s[i].status : TN_E_INTERNAL, s[i].error.where, "%s",
                           s[i].error.message);
        piece_add(sum, &sums[i], sizeof sums[i]);
    }
    return status;
}
