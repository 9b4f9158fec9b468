/* A text in other calls than one, for models whose kernels promise the same bits: behind tn_compare_calls. Of each
 * token only a number made of its bits is kept, one for the result of each layer and one for the logits. */
#include "base/siphash.h"
#include "base/structs.h"
#include "generate/session.h"
#include "open/model.h"
#include "run/rope_tables.h"

#include <stdlib.h>
#include <string.h>

/* How the text is computed. */
typedef struct manner {
    const char *name;
    int64_t chunk;      /* tokens of a call; 0: all                                                */
    int64_t most;       /* tokens of the text that are computed; 0: all                              */
    int64_t rows, row;  /* the batch, and which row of it is the text: others are other tokens of it         */
    int64_t padding;    /* columns before the text                                                */
    bool longer, again; /* the context is longer; half of the text is forgotten and computed once more   */
} manner;

enum { MOST_TOKENS = 65536, MOST_SINGLE = 96, PADDING = 5, CALL = 512, LONGER = 3, BACK = 40 };
static const manner manners[] = {
    {.name = "one prompt", .rows = 1},
    {.name = "token by token", .chunk = 1, .most = MOST_SINGLE, .rows = 1},
    {.name = "7 tokens at a time", .chunk = 7, .rows = 1},
    {.name = "64 tokens at a time", .chunk = 64, .rows = 1},
    {.name = "512 tokens at a time", .chunk = CALL, .rows = 1},
    {.name = "in a longer context", .rows = 1, .longer = true},
    {.name = "padded, beside two other rows", .chunk = 64, .rows = 3, .row = 1, .padding = PADDING},
    {.name = "once more behind a rewind", .chunk = 3, .rows = 1, .again = true},
};
enum { MANNERS = sizeof manners / sizeof *manners };

typedef struct comparison {
    tn_model *model;
    const int64_t *ids;
    int64_t count, layers, hidden, vocab;
    uint64_t *bits[2]; /* [count][layers + 2], of one prompt and of another manner                      */
    float *logits, **states;
    int64_t *tokens, *mask; /* of a call                                                             */
    int64_t most_columns;   /* rows times columns of a call                                          */
} comparison;

static uint64_t number_of(const float *values, int64_t count)
{
    return siphash((siphash_key){1, 2}, values, (size_t)count * sizeof *values);
}

/* What the call's columns of the text's row became, from token `at` on. */
static void keep(const comparison *c, const manner *m, int64_t columns, int64_t at, uint64_t *bits)
{
    for (int64_t i = 0; i < columns; i++) {
        int64_t token = at + i - m->padding, from = m->row * columns + i;
        if (token < 0 || token >= c->count)
            continue;
        uint64_t *to = bits + token * (c->layers + 2);
        for (int64_t l = 0; l <= c->layers; l++)
            to[l] = number_of(c->states[l] + from * c->hidden, c->hidden);
        to[c->layers + 1] = number_of(c->logits + from * c->vocab, c->vocab);
    }
}

/* Columns at .. at + columns - 1 of all rows: the text's, and other tokens of it. */
static tn_status run_columns(const comparison *c, const manner *m, tn_session *session, int64_t at, int64_t columns,
                             tn_error *err)
{
    for (int64_t i = 0; i < m->rows * columns; i++) {
        int64_t row = i / columns, token = at + i % columns - (row == m->row ? m->padding : 0);
        c->mask[i] = token >= 0;
        c->tokens[i] = c->ids[token < 0 ? 0 : (token + (row == m->row ? 0 : (row + 1) * 31)) % c->count];
    }
    tn_batch batch = {.size = sizeof batch, .rows = m->rows, .tokens = columns, .ids = c->tokens, .mask = c->mask};
    tn_outputs outputs = {.size = sizeof outputs, .logits = c->logits, .hidden = c->states};
    return tn_session_run(session, &batch, &outputs, err);
}

static tn_status run_from(const comparison *c, const manner *m, tn_session *session, int64_t from, int64_t end,
                          uint64_t *bits, tn_error *err)
{
    tn_status status = TN_OK;
    for (int64_t at = from; at < end && status == TN_OK;) {
        int64_t columns = m->chunk && m->chunk < end - at ? m->chunk : end - at;
        status = run_columns(c, m, session, at, columns, err);
        if (status == TN_OK)
            keep(c, m, columns, at, bits);
        at += columns;
    }
    return status;
}

/* Rows that begin with padding end with other rows' tokens, which take positions: of learnt ones there are so many. */
static int64_t computed(const comparison *c, const manner *m)
{
    const model_shape *shape = c->model->flow->shape(c->model->arch_state);
    int64_t count = m->most && m->most < c->count ? m->most : c->count;
    int64_t room = shape->learnt.count ? shape->max_positions - m->padding : INT64_MAX;
    return room < count ? room : count;
}

/* Frequencies that follow the length of a call, and scales that follow its columns, padding among them, as in
 * transformers: what a token gets depends on the call by what the model is. */
static tn_status check_model(const comparison *c, const manner *m, tn_error *err)
{
    const model_shape *shape = c->model->flow->shape(c->model->arch_state);
    for (int32_t i = 0; i < shape->rope_count; i++)
        if (rope_tables_moved(&shape->rope[i], c->count + PADDING))
            return tn_fail(err, TN_DECLINED, "verify", "the model's rotary frequencies follow the length of a call");
    return m->padding > 0 && shape->q_scale.kind >= Q_SCALE_COLUMN
               ? tn_fail(err, TN_DECLINED, "verify", "padding counts among the positions or tokens of the model")
               : TN_OK;
}

/* TN_DECLINED: this model cannot be computed so. */
static tn_status run_manner(const comparison *c, const manner *m, uint64_t *bits, tn_error *err)
{
    tn_status possible = check_model(c, m, err);
    if (possible != TN_OK)
        return possible;
    int64_t end = computed(c, m) + m->padding, longest = c->model->info.max_positions;
    int64_t context = m->longer ? LONGER * end : end;
    context = context > longest && longest >= end ? longest : context;
    tn_session_options options = {.size = sizeof options,
                                  .rows = m->rows,
                                  .context = context,
                                  .chunk = m->again   ? BACK
                                           : m->chunk ? m->chunk
                                                      : end};
    tn_session *session = tn_session_new(c->model, &options, err);
    if (!session)
        return err->code;
    session_take_any_logits(session);
    tn_status status = run_from(c, m, session, 0, end, bits, err);
    int64_t back = end - (end / 2 < BACK ? end / 2 : BACK); /* rings hold a chunk more than a window              */
    if (status == TN_OK && m->again)
        status = tn_session_rewind(session, back, err);
    if (status == TN_OK && m->again)
        status = run_from(c, m, session, back, end, bits, err);
    tn_session_free(session);
    return status;
}

static void compare(const comparison *c, const manner *m, tn_calls_row *row)
{
    *row = (tn_calls_row){.size = row->size, .calls = m->name, .tokens = computed(c, m), .layer = -1, .token = -1};
    for (int64_t t = 0; t < row->tokens; t++)
        for (int64_t l = 0; l < c->layers + 2; l++) {
            int64_t at = t * (c->layers + 2) + l;
            if (c->bits[0][at] == c->bits[1][at])
                continue;
            row->different++;
            if (row->token < 0 || l < row->layer) {
                row->token = t;
                row->layer = l;
            }
            break;
        }
}

static tn_status prepare(comparison *c, tn_error *err)
{
    const tn_model_info *info = &c->model->info;
    *c = (comparison){.model = c->model, .ids = c->ids, .count = c->count, .layers = info->layers};
    c->hidden = info->hidden;
    c->vocab = info->vocab;
    c->most_columns = c->count + PADDING > 3 * 64 ? c->count + PADDING : 3 * 64;
    size_t columns = (size_t)c->most_columns, hidden = (size_t)c->hidden, layers = (size_t)c->layers;
    c->logits = malloc(columns * (size_t)c->vocab * sizeof(float));
    c->tokens = malloc(2 * columns * sizeof(int64_t));
    c->states = calloc(layers + 1, sizeof *c->states);
    float *states = malloc((layers + 1) * columns * hidden * sizeof(float));
    for (int i = 0; i < 2; i++)
        c->bits[i] = calloc((size_t)c->count * (layers + 2), sizeof(uint64_t));
    if (c->states)
        c->states[0] = states;
    if (!c->logits || !c->tokens || !c->states || !states || !c->bits[0] || !c->bits[1])
        return tn_fail(err, TN_E_MEMORY, "verify", "out of memory; use fewer tokens");
    c->mask = c->tokens + columns;
    for (size_t l = 1; l <= layers; l++)
        c->states[l] = states + l * columns * hidden;
    return TN_OK;
}

static void release(comparison *c)
{
    free(c->logits);
    free(c->tokens);
    free(c->states ? c->states[0] : NULL);
    free(c->states);
    free(c->bits[0]);
    free(c->bits[1]);
}

/* The rows but the first manner's, which is what the others are compared with. */
static tn_status compare_all(comparison *c, tn_calls_row **rows, size_t *count, bool *same, tn_error *err)
{
    tn_status status = run_manner(c, &manners[0], c->bits[0], err);
    for (int i = 1; i < MANNERS && status == TN_OK; i++) {
        tn_error why = TN_ERROR_INIT;
        status = run_manner(c, &manners[i], c->bits[1], &why);
        if (status == TN_OK) {
            compare(c, &manners[i], rows[*count]);
            *same &= rows[*count]->different == 0;
            ++*count;
        } else if (status == TN_DECLINED) { /* states do not go back                                         */
            status = TN_OK;
        } else {
            tn_fail(err, status, why.where, "%s: %s", manners[i].name, why.message);
        }
    }
    return status;
}

tn_status tn_compare_calls(tn_model *model, const int64_t *ids, int64_t count, tn_calls_row ***rows, size_t *row_count,
                           tn_error *err)
{
    comparison c = {.model = model, .ids = ids, .count = count};
    bool same = true;
    if (!rows || !row_count)
        return structs_missing(rows ? "row_count" : "rows", err);
    *rows = NULL;
    *row_count = 0;
    if (!model || !ids)
        return structs_missing(model ? "ids" : "model", err);
    if (count < 2 || count > MOST_TOKENS)
        return tn_fail(err, TN_E_USAGE, "verify", "%lld tokens; give 2 to %d", (long long)count, (int)MOST_TOKENS);
    *rows = structs_list(MANNERS, sizeof **rows[0]);
    tn_status status = *rows ? prepare(&c, err) : tn_fail(err, TN_E_MEMORY, "verify", "out of memory");
    if (status == TN_OK)
        status = compare_all(&c, *rows, row_count, &same, err);
    release(&c);
    if (status != TN_OK) {
        free(*rows);
        *rows = NULL;
        *row_count = 0;
        return status;
    }
    return same ? TN_OK
                : tn_fail(err, TN_E_VERIFY, "verify", "a token's numbers depend on the call that it is computed in");
}
