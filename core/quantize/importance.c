/* What goes into the matrices of a model while it reads a text. Everything is computed eagerly, so each product is seen
 * by itself; what experts multiply with their last matrix lies in the operation's scratch. */
#include "quantize/importance.h"

#include "base/convert.h"
#include "base/tensor.h"
#include "eager/moe_experts.h"
#include "generate/session.h"
#include "quantize/encode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tokens of a window, of one call (whose logits are held), and the fewest that say anything; columns at a time. */
enum { WINDOW = 512, CALL = 128, FEWEST = 128, COLUMNS = 256 };

/* Of the mean over a matrix's columns: no column counts less, whose inputs may not be 0 in another text. */
static const float LEAST = 1e-4f;

/* One matrix. */
typedef struct entry {
    const void *data; /* where the model has it                                                         */
    int64_t columns, rows_seen;
    float *sums; /* of squares; then importance                                                    */
} entry;

struct importance {
    const quantize_plan *plan;
    entry *entries; /* by data                                                                          */
    size_t count;
    float *sums;
};

/* ---- which matrices ---------------------------------------------------------------------------------------- */

static int compare_data(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const entry *)a)->data, y = (uintptr_t)((const entry *)b)->data;
    return x < y ? -1 : x > y;
}

static entry *find(const importance *c, const void *data)
{
    const entry key = {.data = data};
    return data && c->count ? bsearch(&key, c->entries, c->count, sizeof key, compare_data) : NULL;
}

static bool is_weighed(const quantize_tensor *t)
{
    return t->ndim > 1 && t->made < 0 && encode_weighs(t->to);
}

/* Entries of all matrices; the sums of those that are one in the model come to the same. */
static void add_entries(importance *c, const quantize_plan *p)
{
    for (size_t i = 0; i < p->count; i++) {
        const quantize_tensor *t = &p->tensors[i];
        for (int64_t k = 0; is_weighed(t) && k < t->matrices; k++) {
            const void *data = quantize_matrix_data(p, t, k);
            if (data)
                c->entries[c->count++] = (entry){.data = data, .columns = t->columns};
        }
    }
    qsort(c->entries, c->count, sizeof *c->entries, compare_data);
}

static tn_status make(importance *c, const quantize_plan *p, tn_error *err)
{
    size_t matrices = 1, columns = 0;
    for (size_t i = 0; i < p->count; i++)
        matrices += is_weighed(&p->tensors[i]) ? (size_t)p->tensors[i].matrices : 0;
    c->plan = p;
    c->entries = calloc(matrices, sizeof *c->entries);
    if (c->entries)
        add_entries(c, p);
    for (size_t i = 0; i < c->count; i++)
        columns += (size_t)c->entries[i].columns;
    c->sums = c->entries ? calloc(columns + 1, sizeof *c->sums) : NULL;
    if (!c->sums)
        return tn_fail(err, TN_E_MEMORY, p->model->folder,
                       "out of memory for the importance of the columns of %zu matrices; leave the text out", matrices);
    for (size_t i = 0, at = 0; i < c->count; at += (size_t)c->entries[i++].columns)
        c->entries[i].sums = c->sums + at;
    return TN_OK;
}

/* ---- looking ------------------------------------------------------------------------------------------------- */

/* Rows first .. first + rows - 1 of x go into the matrix at data. */
static void add_rows(const importance *c, const void *data, const tn_tensor *x, int64_t first, int64_t rows)
{
    float values[COLUMNS];
    double squares[COLUMNS];
    entry *e = find(c, data);
    if (!e || e->columns != x->shape[x->ndim - 1])
        return;
    for (int64_t at = 0, n; at < e->columns; at += n) {
        n = e->columns - at < COLUMNS ? e->columns - at : COLUMNS;
        memset(squares, 0, sizeof squares);
        for (int64_t row = first; row < first + rows; row++) {
            convert_to_f32(tensor_row(x, row) + (size_t)at * tn_dtype_size(x->dtype), x->dtype, values, n);
            for (int64_t i = 0; i < n; i++)
                squares[i] += (double)values[i] * (double)values[i];
        }
        for (int64_t i = 0; i < n; i++)
            e->sums[at + i] += (float)squares[i];
    }
    e->rows_seen += rows;
}

static int64_t rows_of(const tn_tensor *x)
{
    int64_t width = x->shape[x->ndim - 1];
    return width > 0 ? tn_tensor_count(x) / width : 0;
}

static void add_grouped(const importance *c, const tn_call *call)
{
    const tn_param *param = &call->site->param[TN_ROLE_WEIGHT];
    for (int64_t g = 0, row = 0, rows; g < param->count && g < tn_tensor_count(&call->in[1]); g++, row += rows) {
        memcpy(&rows, tensor_row(&call->in[1], 0) + (size_t)(g * call->in[1].stride[0]) * sizeof rows, sizeof rows);
        add_rows(c, param->tensors[g].data, &call->in[0], row, rows);
    }
}

/* Matrix e of a parameter that is a list of them, or a stack; from its output `first` on. */
static const void *matrix_of(const tn_param *param, int64_t e, int64_t first)
{
    const tn_tensor *t = &param->tensors[0];
    if (param->count > 1 || t->ndim < 3)
        return e < param->count ? param->tensors[e].data : NULL;
    return (const char *)t->data + tn_dtype_bytes(t->dtype, e * t->stride[0] + first);
}

/* In lists, and in stacks whose gates and ups take turns. */
static void add_experts(const importance *c, const tn_call *call)
{
    experts_job job;
    const tn_param *param = call->site->param;
    if (!moe_experts_left(call, &job) || (job.layout != TN_LAYOUT_EXPERT_LIST && !job.pairs))
        return;
    const tn_param *gate = &param[job.pairs ? TN_ROLE_GATE_UP : TN_ROLE_GATE];
    const tn_param *up = &param[job.pairs ? TN_ROLE_GATE_UP : TN_ROLE_UP];
    const tn_tensor x = tn_tensor_dense(job.gathered, job.type, 2, (int64_t[]){job.slots, job.hidden});
    const tn_tensor activated = tn_tensor_dense(job.activated, job.type, 2, (int64_t[]){job.slots, job.inter});
    for (int64_t e = 0; e < job.expert_count; e++) {
        int64_t first = job.start[e], rows = job.start[e + 1] - first;
        add_rows(c, matrix_of(gate, e, 0), &x, first, rows);
        add_rows(c, matrix_of(up, e, job.pairs), &x, first, rows);
        add_rows(c, matrix_of(&param[TN_ROLE_DOWN], e, 0), &activated, first, rows);
    }
}

static tn_status look(void *ctx, const tn_call *call, tn_error *err)
{
    const importance *c = ctx;
    (void)err;
    if (call->op == TN_OP_LINEAR)
        add_rows(c, call->site->param[TN_ROLE_WEIGHT].tensors[0].data, &call->in[0], 0, rows_of(&call->in[0]));
    else if (call->op == TN_OP_GROUPED_MATMUL)
        add_grouped(c, call);
    else if (call->op == TN_OP_MOE_EXPERTS)
        add_experts(c, call);
    return TN_OK;
}

/* ---- reading the text ------------------------------------------------------------------------------------------ */

static tn_status check_ids(const quantize_plan *p, const tn_quantize_options *o, tn_error *err)
{
    if (o->id_count < FEWEST)
        return tn_fail(err, TN_E_INPUT, "text",
                       "has %lld tokens, which say too little of what counts; give at least %d", (long long)o->id_count,
                       FEWEST);
    for (int64_t i = 0; i < o->id_count; i++)
        if (o->ids[i] < 0 || o->ids[i] >= p->shape->vocab)
            return tn_fail(err, TN_E_INPUT, "text", "token id %lld is outside the vocabulary of %lld",
                           (long long)o->ids[i], (long long)p->shape->vocab);
    return TN_OK;
}

static tn_status read_window(tn_session *session, const tn_quantize_options *o, int64_t begin, int64_t end,
                             float *logits, tn_error *err)
{
    tn_outputs outputs = {.size = sizeof outputs, .logits = logits};
    tn_status status = TN_OK;
    tn_session_reset(session);
    for (int64_t at = begin, n; at < end && status == TN_OK; at += n) {
        n = end - at < CALL ? end - at : CALL;
        tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = n, .ids = o->ids + at};
        status = tn_session_run(session, &batch, &outputs, err);
        if (status == TN_OK && o->progress && o->progress(o->ctx, "reading the text", at + n, o->id_count))
            status = tn_fail(err, TN_E_CANCELLED, "text", "cancelled");
    }
    return status;
}

/* Logits are asked for so that the last matrix is used, too. */
static tn_status read_text(importance *c, const quantize_plan *p, const tn_quantize_options *o, tn_error *err)
{
    int64_t most = p->model->info.max_positions, window = most > 0 && most < WINDOW ? most : WINDOW;
    const tn_session_options options = {.size = sizeof options, .context = window, .chunk = CALL};
    float *logits = malloc((size_t)CALL * (size_t)p->shape->vocab * sizeof *logits);
    if (!logits)
        return tn_fail(err, TN_E_MEMORY, p->model->folder, "out of memory to read a text; leave the text out");
    tn_session *session = tn_session_new((tn_model *)(uintptr_t)p->model, &options, err);
    tn_status status = session ? TN_OK : err->code;
    if (session)
        session_look(session, look, c);
    for (int64_t at = 0; at < o->id_count && status == TN_OK; at += window)
        status = read_window(session, o, at, o->id_count - at < window ? o->id_count : at + window, logits, err);
    tn_session_free(session);
    free(logits);
    return status;
}

/* ---- what comes of it ------------------------------------------------------------------------------------------- */

/* Sums become importance, with a mean of 1. What no row, or nothing but zeros, went into has none. */
static tn_status finish(entry *e, const char *where, tn_error *err)
{
    double mean = 0;
    for (int64_t i = 0; i < e->columns; i++)
        mean += (double)e->sums[i] / (double)e->columns;
    if (!isfinite(mean))
        return tn_fail(err, TN_E_VERIFY, where, "computes NaN or infinity on this text; is the checkpoint whole?");
    if (mean <= 0)
        e->rows_seen = 0;
    for (int64_t i = 0; i < e->columns && mean > 0; i++)
        e->sums[i] = fmaxf((float)((double)e->sums[i] / mean), LEAST);
    return TN_OK;
}

tn_status importance_collect(const quantize_plan *p, const tn_quantize_options *options, importance **collected,
                             tn_error *err)
{
    importance *c = calloc(1, sizeof *c);
    tn_status status = c ? check_ids(p, options, err) : tn_fail(err, TN_E_MEMORY, p->model->folder, "out of memory");
    *collected = c;
    if (status == TN_OK)
        status = make(c, p, err);
    if (status == TN_OK)
        status = read_text(c, p, options, err);
    for (size_t i = 0; status == TN_OK && i < c->count; i++)
        status = finish(&c->entries[i], p->model->folder, err);
    return status;
}

void importance_free(importance *c)
{
    if (!c)
        return;
    free(c->entries);
    free(c->sums);
    free(c);
}

const float *importance_of(const importance *c, const quantize_tensor *t, int64_t number)
{
    const entry *e = find(c, quantize_matrix_data(c->plan, t, number));
    return e && e->rows_seen > 0 ? e->sums : NULL;
}
