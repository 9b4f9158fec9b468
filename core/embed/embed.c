/* Texts as vectors. Each row of a batch runs by itself and without its padding, so that a vector depends on its text
 * alone. */
#include "base/structs.h"
#include "embed/pipeline.h"
#include "open/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tn_embedder {
    tn_model *model;
    pipeline pipeline;
    tn_embedder_info info;
};

static int64_t least_of(int64_t a, int64_t b)
{
    return a == 0 || (b > 0 && b < a) ? b : a;
}

static void fill_info(tn_embedder *e, int64_t most)
{
    const pipeline *p = &e->pipeline;
    const tn_model_info *model = &e->model->info;
    e->info.width = p->width;
    e->info.max_tokens = least_of(least_of(most, p->max_tokens), model->unbounded ? 0 : model->max_positions);
    e->info.include_prompt = p->include_prompt;
    e->info.default_prompt = p->default_prompt;
    e->info.prompt_count = p->prompt_count;
    e->info.prompts = p->prompts;
}

tn_embedder *tn_embedder_open(tn_model *model, const tn_embedder_options *options, tn_error *err)
{
    tn_embedder_options o = {0};
    const uint32_t all = 2 * TN_POOLING_LAST - 1;
    if (!model)
        structs_missing("model", err);
    if (!model || (options && structs_take(&o, sizeof o, options, "tn_embedder_options", err) != TN_OK))
        return NULL;
    if (o.pooling & ~all || o.max_tokens < 0) {
        tn_fail(err, TN_E_USAGE, "tn_embedder_options", "pooling %u of at most %lld tokens cannot be",
                (unsigned)o.pooling, (long long)o.max_tokens);
        return NULL;
    }
    if (model->lock) {
        tn_fail(err, TN_E_USAGE, model->folder, "its lock has no files of folders below; open it without one to embed");
        return NULL;
    }
    tn_error local = TN_ERROR_INIT;
    tn_embedder *e = calloc(1, sizeof *e);
    if (!e) {
        tn_fail(err, TN_E_MEMORY, model->folder, "out of memory");
        return NULL;
    }
    e->model = model;
    tn_status status = pipeline_open(&e->pipeline, model->folder, model->info.hidden, o.pooling, &local);
    if (status != TN_OK) {
        tn_fail(err, status, local.where, "%s", local.message);
        tn_embedder_close(e);
        return NULL;
    }
    fill_info(e, o.max_tokens);
    return e;
}

void tn_embedder_close(tn_embedder *e)
{
    if (!e)
        return;
    pipeline_close(&e->pipeline);
    free(e);
}

tn_status tn_embedder_get_info(const tn_embedder *e, tn_embedder_info *info)
{
    if (!e)
        return TN_E_USAGE;
    return structs_give(info, &e->info, sizeof e->info, "tn_embedder_info", NULL);
}

const char *tn_embedder_prompt(const tn_embedder *e, const char *name, tn_error *err)
{
    if (!e)
        structs_missing("embedder", err);
    return e ? pipeline_prompt(&e->pipeline, name, err) : NULL;
}

/* ---- a batch ------------------------------------------------------------------------------------- */

/* One call's memory: a row without its padding, its states, and what steps need. */
typedef struct embedding {
    tn_embedder *e;
    tn_batch batch;
    int64_t prompt, longest;
    int64_t *ids, *positions;
    float *states, **hidden, *work;
    tn_session *session;
} embedding;

static bool is_real(const tn_batch *b, int64_t at)
{
    return !b->mask || b->mask[at] != 0;
}

/* How many tokens the longest row has. */
static tn_status measure(embedding *m, tn_error *err)
{
    const tn_batch *b = &m->batch;
    for (int64_t row = 0; row < b->rows; row++) {
        int64_t count = 0;
        for (int64_t t = 0; t < b->tokens; t++)
            count += is_real(b, row * b->tokens + t);
        if (count == 0)
            return tn_fail(err, TN_E_INPUT, "input", "text %lld has no tokens; give it at least one", (long long)row);
        if (m->e->info.max_tokens > 0 && count > m->e->info.max_tokens)
            return tn_fail(err, TN_E_INPUT, "input",
                           "text %lld has %lld tokens, the model takes at most %lld; shorten it", (long long)row,
                           (long long)count, (long long)m->e->info.max_tokens);
        if (!m->e->pipeline.include_prompt && count <= m->prompt)
            return tn_fail(err, TN_E_INPUT, "input", "text %lld has no tokens behind its prompt; give it at least one",
                           (long long)row);
        m->longest = count > m->longest ? count : m->longest;
    }
    return TN_OK;
}

static tn_status check(const embedding *m, const float *out, tn_error *err)
{
    const tn_batch *b = &m->batch;
    if (!out)
        return structs_missing("out", err);
    if (!b->ids)
        return structs_missing("tn_batch.ids", err);
    if (b->rows < 1 || b->tokens < 1 || b->tokens > INT32_MAX || b->rows > INT32_MAX)
        return tn_fail(err, TN_E_INPUT, "input", "%lld texts of %lld tokens cannot be; give at least one token",
                       (long long)b->rows, (long long)b->tokens);
    if (m->prompt < 0)
        return tn_fail(err, TN_E_USAGE, "prompt", "%lld tokens cannot be", (long long)m->prompt);
    if (b->images || b->videos || b->sounds || b->token_types || b->axes)
        return tn_fail(err, TN_E_USAGE, "input", "texts alone become vectors; leave pictures and sounds out");
    return TN_OK;
}

static tn_status prepare(embedding *m, tn_error *err)
{
    const tn_model_info *info = &m->e->model->info;
    tn_status status = measure(m, err);
    if (status != TN_OK)
        return status;
    size_t tokens = (size_t)m->longest;
    m->ids = malloc(tokens * sizeof *m->ids);
    m->positions = malloc(tokens * sizeof *m->positions);
    m->states = malloc(tokens * (size_t)info->hidden * sizeof *m->states);
    m->hidden = calloc((size_t)info->layers + 1, sizeof *m->hidden);
    m->work = malloc(2 * (size_t)m->e->pipeline.widest * sizeof *m->work);
    if (!m->ids || !m->positions || !m->states || !m->hidden || !m->work)
        return tn_fail(err, TN_E_MEMORY, "embedding", "out of memory for %lld tokens; give shorter texts",
                       (long long)m->longest);
    m->hidden[info->layers] = m->states;
    tn_session_options so = {.size = sizeof so, .context = m->longest};
    tn_error local = TN_ERROR_INIT;
    m->session = tn_session_new(m->e->model, &so, &local);
    return m->session ? TN_OK : tn_fail(err, local.code, local.where, "%s", local.message);
}

static tn_status embed_row(embedding *m, int64_t row, float *out, tn_error *err)
{
    const tn_batch *b = &m->batch;
    const pipeline *p = &m->e->pipeline;
    int64_t count = 0;
    for (int64_t t = 0; t < b->tokens; t++) {
        int64_t at = row * b->tokens + t;
        if (!is_real(b, at))
            continue;
        m->ids[count] = b->ids[at];
        m->positions[count++] = b->positions ? b->positions[at] : 0;
    }
    tn_batch one = {
        .size = sizeof one, .rows = 1, .tokens = count, .ids = m->ids, .positions = b->positions ? m->positions : NULL};
    tn_outputs outputs = {.size = sizeof outputs, .hidden = m->hidden};
    tn_session_reset(m->session);
    tn_status status = tn_session_run(m->session, &one, &outputs, err);
    if (status != TN_OK)
        return status;
    pipeline_run(p, m->states, count, p->include_prompt ? 0 : m->prompt, m->work, out);
    for (int64_t i = 0; i < p->width && status == TN_OK; i++)
        if (!isfinite(out[i]))
            status = tn_fail(err, TN_E_VERIFY, "embedding",
                             "NaN or infinity in the vector of text %lld; is the checkpoint whole? Try --kernels=none, "
                             "and --dtype f32",
                             (long long)row);
    return status;
}

tn_status tn_embed(tn_embedder *e, const tn_batch *batch, int64_t prompt, float *out, tn_error *err)
{
    embedding m = {.e = e, .prompt = prompt};
    if (!e)
        return structs_missing("embedder", err);
    tn_status status = structs_take(&m.batch, sizeof m.batch, batch, "tn_batch", err);
    if (status == TN_OK)
        status = check(&m, out, err);
    if (status == TN_OK)
        status = prepare(&m, err);
    for (int64_t row = 0; row < m.batch.rows && status == TN_OK; row++)
        status = embed_row(&m, row, out + row * e->pipeline.width, err);
    tn_session_free(m.session);
    free(m.ids);
    free(m.positions);
    free(m.states);
    free(m.hidden);
    free(m.work);
    return status;
}
