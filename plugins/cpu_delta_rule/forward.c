/* The gated delta rule, forward: a few tokens one by one, more of them in chunks, within which what the tokens write
 * depends on each other by a triangular system. With c_i the sum of g up to token i, M what was before the chunk and D
 * the rows d_i:
 *
 *     d_i = beta_i (v_i - e^(c_i) M^T k_i - sum_{j<i} e^(c_i - c_j) (k_i k_j) d_j),
 *     o_i = e^(c_i) M^T q_i + sum_{j<=i} e^(c_i - c_j) (q_i k_j) d_j,   M = e^(c_n) M + sum_j e^(c_n - c_j) k_j d_j^T.
 *
 * Columns of M do not depend on each other, so that they can be given to threads as it suits. */
#include "delta_rule.h"

#include "scratch.h"

#include <math.h>
#include <string.h>

typedef struct forward_run {
    const delta_job *job;
    const tn_tensor *o, *next;
    int64_t cuts; /* units of a key head                                                           */
    char *scratch;
    size_t thread_size;
} forward_run;

typedef struct forward_work {
    delta_pairs pairs;
    delta_gates gates;
    float *m;     /* [2 * DELTA_CHUNK,DELTA_CHUNK]                                                 */
    float *seen;  /* [2n,dv]: rows 2i are M^T k_i, rows 2i + 1 become o_i                          */
    float *d;     /* [n,dv]                                                                        */
    float *panel; /* of products                                                                   */
} forward_work;

/* Columns [column, column + width) of a value head of a batch row. */
typedef struct forward_part {
    int64_t row, head, column, width;
    const char *from; /* the state before the next token                                           */
    char *to;
    int64_t from_row, to_row; /* elements                                                          */
} forward_part;

static float *take_floats(char *base, size_t *used, int64_t count)
{
    size_t at = scratch_take(used, (size_t)count * sizeof(float));
    return base ? (float *)(void *)(base + at) : NULL;
}

/* base NULL: only the size counts. */
static size_t layout(int64_t dk, int64_t dv, char *base, forward_work *work)
{
    size_t used = 0;
    work->pairs.x = take_floats(base, &used, 2 * DELTA_CHUNK * dk);
    work->pairs.dots = take_floats(base, &used, 2 * DELTA_CHUNK * DELTA_CHUNK);
    work->m = take_floats(base, &used, 2 * DELTA_CHUNK * DELTA_CHUNK);
    work->seen = take_floats(base, &used, 2 * DELTA_CHUNK * dv);
    work->d = take_floats(base, &used, DELTA_CHUNK * dv);
    work->panel = take_floats(base, &used, delta_rule_panel(dk, dv));
    return used;
}

size_t delta_rule_scratch_size(const tn_site *site, int32_t threads)
{
    forward_work work;
    return layout(site->dim[TN_DIM_HEAD], site->dim[TN_DIM_HEAD_V], NULL, &work) * (size_t)threads;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static char *columns_at(const tn_tensor *t, const forward_part *part, int64_t token)
{
    return delta_rule_at(t, part->row, token, part->head) + part->column * (int64_t)tn_dtype_size(t->dtype);
}

/* From here on the state is read where it was written. */
static void written(forward_part *part)
{
    part->from = part->to;
    part->from_row = part->to_row;
}

/* The state of the next head, which is the next that this thread reads, or nobody's; not read here. */
static const float *next_state(const forward_run *run, const forward_part *part)
{
    int64_t heads = run->job->v_heads;
    bool last = part->head + 1 == heads && part->row + 1 == run->job->rows;
    if (last || part->width < run->job->dv)
        return NULL;
    return (const float *)(const void *)delta_rule_at(run->job->state, part->row + (part->head + 1) / heads,
                                                      (part->head + 1) % heads, 0);
}

static void one_by_one(const forward_run *run, forward_work *work, const delta_tokens *tokens, forward_part *part)
{
    const delta_job *job = run->job;
    for (int64_t i = 0; i < tokens->n; i++) {
        const delta_gates *gates = &work->gates;
        const delta_token t = {.from = (const float *)(const void *)part->from,
                               .to = (float *)(void *)part->to,
                               .from_row = part->from_row,
                               .to_row = part->to_row,
                               .k = work->pairs.x + 2 * i * job->dk,
                               .q = work->pairs.x + (2 * i + 1) * job->dk,
                               .v = work->d,
                               .seen = work->seen,
                               .o = work->seen + part->width,
                               .ahead = i + 1 == tokens->n ? next_state(run, part) : NULL,
                               .dk = job->dk,
                               .dv = part->width,
                               .decay = gates->g[i] < DELTA_FORGOTTEN ? 0.0f : expf(gates->g[i]),
                               .beta = gates->beta[i]};
        job->kernels.load(columns_at(job->v, part, tokens->at[i]), job->dtype, part->width, t.v);
        job->kernels.token(&t);
        job->kernels.store(t.o, job->dtype, part->width, columns_at(run->o, part, tokens->at[i]));
        written(part);
    }
}

/* seen is read from the state; d and the part of o that comes from it are begun. */
static void see_state(const forward_run *run, forward_work *work, const delta_tokens *tokens, const forward_part *part)
{
    const delta_job *job = run->job;
    const delta_gates *gates = &work->gates;
    int64_t width = part->width;
    const delta_product see = {.a = work->pairs.x,
                               .a_row = job->dk,
                               .a_k = 1,
                               .b = (const float *)(const void *)part->from,
                               .b_k = part->from_row,
                               .b_col = 1,
                               .c = work->seen,
                               .c_row = width,
                               .m = 2 * tokens->n,
                               .n = width,
                               .k = job->dk};
    job->kernels.product(&see, work->panel);
    for (int64_t i = 0; i < tokens->n; i++) {
        float *d = work->d + i * width, *seen = work->seen + 2 * i * width;
        job->kernels.load(columns_at(job->v, part, tokens->at[i]), job->dtype, width, d);
        job->kernels.add_scaled(d, seen, -gates->since[i], width);
        job->kernels.scale(seen + width, gates->since[i], width);
    }
}

static void write_state(const forward_run *run, forward_work *work, int64_t n, forward_part *part)
{
    const delta_job *job = run->job;
    for (int64_t i = 0; i < n; i++)
        job->kernels.scale(work->d + i * part->width, work->gates.until[i], part->width);
    const delta_product write = {.a = work->pairs.x,
                                 .a_row = 1,
                                 .a_k = 2 * job->dk,
                                 .b = work->d,
                                 .b_k = part->width,
                                 .b_col = 1,
                                 .from = (const float *)(const void *)part->from,
                                 .from_row = part->from_row,
                                 .c = (float *)(void *)part->to,
                                 .c_row = part->to_row,
                                 .m = job->dk,
                                 .n = part->width,
                                 .k = n,
                                 .scale = work->gates.since[n - 1]};
    job->kernels.product(&write, work->panel);
    written(part);
}

/* What queries see of the chunk itself is added to what they see of the state. */
static void chunk(const forward_run *run, forward_work *work, const delta_tokens *tokens, forward_part *part)
{
    const delta_job *job = run->job;
    int64_t n = tokens->n, width = part->width;
    delta_rule_weigh(job, n, &work->pairs, &work->gates, work->m);
    see_state(run, work, tokens, part);
    delta_rule_solve(job, n, work->m, 2 * DELTA_CHUNK, work->d, width, width, work->panel);
    for (int64_t i = 0; i < n; i++)
        job->kernels.scale(work->d + i * width, work->gates.beta[i], width);
    const delta_product own = {.a = work->m + DELTA_CHUNK,
                               .a_row = 2 * DELTA_CHUNK,
                               .a_k = 1,
                               .b = work->d,
                               .b_k = width,
                               .b_col = 1,
                               .from = work->seen + width,
                               .from_row = 2 * width,
                               .c = work->seen + width,
                               .c_row = 2 * width,
                               .m = n,
                               .n = width,
                               .k = n,
                               .scale = 1,
                               .form = DELTA_LOWER};
    job->kernels.product(&own, work->panel);
    for (int64_t i = 0; i < n; i++)
        job->kernels.store(work->seen + (2 * i + 1) * width, job->dtype, width,
                           columns_at(run->o, part, tokens->at[i]));
    write_state(run, work, n, part);
}

/* ---- units ------------------------------------------------------------------------------------------------------- */

static forward_part part_of(const forward_run *run, int64_t row, int64_t head, int64_t column, int64_t width)
{
    forward_part part = {.row = row, .head = head, .column = column, .width = width};
    part.from = delta_rule_at(run->job->state, row, head, 0) + (size_t)column * sizeof(float);
    part.to = delta_rule_at(run->next, row, head, 0) + (size_t)column * sizeof(float);
    part.from_row = run->job->state->stride[2];
    part.to_row = run->next->stride[2];
    return part;
}

/* A row of padding alone leaves its state as it was. */
static void copy_state(const forward_run *run, const forward_part *part)
{
    for (int64_t i = 0; part->from != part->to && i < run->job->dk; i++)
        memcpy(part->to + (size_t)(i * part->to_row) * sizeof(float),
               part->from + (size_t)(i * part->from_row) * sizeof(float), (size_t)part->width * sizeof(float));
}

static void first_part(const forward_run *run, const delta_tokens *tokens, const forward_part *part)
{
    delta_rule_clear_padding(run->job, run->o, part->row, part->head, part->column, part->width);
    if (tokens->n == 0)
        copy_state(run, part);
}

/* Tokens of one head, of which done came before. */
static void run_head(const forward_run *run, forward_work *work, const delta_tokens *tokens, int64_t done,
                     forward_part part)
{
    if (done > 0)
        written(&part);
    else
        first_part(run, tokens, &part);
    if (tokens->n == 0)
        return;
    delta_rule_load_gates(run->job, part.row, part.head, tokens, &work->gates);
    if (run->job->tokens <= DELTA_FEW) {
        one_by_one(run, work, tokens, &part);
    } else {
        delta_rule_sum_gates(run->job, tokens->n, &work->gates);
        chunk(run, work, tokens, &part);
    }
}

/* The value heads [first, last) of a key head, or of the only one of them some columns. */
static void run_unit(const forward_run *run, forward_work *work, int64_t row, int64_t first, int64_t last,
                     int64_t column, int64_t width)
{
    const delta_job *job = run->job;
    int64_t next = 0, done = 0;
    do {
        delta_tokens tokens = delta_rule_next(job, row, &next, DELTA_CHUNK);
        delta_rule_load_pairs(job, row, first / job->group, &tokens, &work->pairs);
        if (job->tokens > DELTA_FEW)
            delta_rule_multiply_pairs(job, tokens.n, &work->pairs, work->panel);
        for (int64_t head = first; head < last; head++)
            run_head(run, work, &tokens, done, part_of(run, row, head, column, width));
        done += tokens.n;
    } while (next < job->tokens);
}

static void run_units(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const forward_run *run = ctx;
    const delta_job *job = run->job;
    forward_work work;
    layout(job->dk, job->dv, run->scratch + (size_t)thread * run->thread_size, &work);
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t key = unit / run->cuts, cut = unit % run->cuts, row = key / job->k_heads;
        int64_t head = key % job->k_heads * job->group;
        if (run->cuts == 1) {
            run_unit(run, &work, row, head, head + job->group, 0, job->dv);
            continue;
        }
        int64_t parts = run->cuts / job->group, part = cut % parts;
        int64_t width = (job->dv + parts * DELTA_PANEL - 1) / (parts * DELTA_PANEL) * DELTA_PANEL, first = part * width;
        head += cut / parts;
        if (first < job->dv)
            run_unit(run, &work, row, head, head + 1, first, job->dv - first < width ? job->dv - first : width);
    }
}

/* The division that is done first: by key heads, which share most, by value heads, or by their columns. */
static int64_t choose_cuts(const delta_job *job)
{
    enum { MOST_PARTS = 8 };
    const double shared = 0.15; /* of a value head's work, which every part of it does            */
    int64_t units = job->rows * job->k_heads, threads = tn_thread_count(), best = 1;
    int64_t columns = (job->dv + DELTA_PANEL - 1) / DELTA_PANEL;
    int64_t unit_rounds = (units + threads - 1) / threads;
    double least = (double)(unit_rounds * job->group);
    for (int64_t parts = 1; parts <= columns && parts <= MOST_PARTS; parts *= 2) {
        int64_t rounds = (units * job->group * parts + threads - 1) / threads;
        double time = (double)rounds * (shared + 1.0 / (double)parts);
        if (time < least) {
            least = time;
            best = job->group * parts;
        }
    }
    return best;
}

void delta_rule_forward(const delta_job *job, const tn_tensor *o, const tn_tensor *next, void *scratch)
{
    enum { SMALL = 1 << 15 }; /* elements of states times tokens: what takes less than to wake a thread */
    forward_work work;
    forward_run run = {.job = job, .o = o, .next = next, .cuts = choose_cuts(job), .scratch = scratch};
    run.thread_size = layout(job->dk, job->dv, NULL, &work);
    int64_t units = job->rows * job->k_heads * run.cuts;
    if (job->rows * job->v_heads * job->dk * job->dv * job->tokens <= SMALL)
        run_units(&run, 0, units, 0);
    else
        tn_parallel_for(units, 1, run_units, &run);
}
