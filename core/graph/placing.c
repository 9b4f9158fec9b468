/* Where tensors that are copied lie: blocks of the device's memory, filled by the host. */
#include "graph/placing.h"

#include "base/convert.h"
#include "base/tensor.h"
#include "graph/lacks.h"
#include "op/op.h"

#include <stdlib.h>
#include <string.h>

void build_copies_protect(build_copies *copies)
{
    if (copies->device)
        device_sync(copies->device, NULL);
    for (size_t i = 0; i < copies->count; i++)
        pages_protect(&copies->blocks[i]);
}

void build_copies_free(build_copies *copies)
{
    if (copies->device)
        device_sync(copies->device, NULL);
    for (size_t i = 0; i < copies->count; i++)
        pages_free(&copies->blocks[i], copies->device);
    free(copies->blocks);
    *copies = (build_copies){.device = copies->device};
}

/* Tensors side by side in large blocks: each block is a mapping, of which a process has only so many; and a device may
 * read matrices that follow one another as one. Its memory is not taken for more than the files still hold. */
static const size_t BLOCK_BYTES = (size_t)16 << 20, DEVICE_BLOCK_BYTES = (size_t)256 << 20, TENSOR_ALIGN = 64;

static size_t block_bytes(const graph_builder *b)
{
    if (b->device->ops->host_memory)
        return BLOCK_BYTES;
    size_t left = b->total_bytes > b->copies->total ? (size_t)(b->total_bytes - b->copies->total) : 0;
    return left < DEVICE_BLOCK_BYTES ? left : DEVICE_BLOCK_BYTES;
}

static bool add_block(graph_builder *b, size_t bytes)
{
    build_copies *c = b->copies;
    if (c->count == c->capacity) {
        size_t capacity = c->capacity ? 2 * c->capacity : 64;
        pages *blocks = realloc(c->blocks, capacity * sizeof *blocks);
        if (!blocks) {
            build_fail(b, TN_E_MEMORY, "graph", "out of memory while loading weights; free some memory");
            return false;
        }
        c->blocks = blocks;
        c->capacity = capacity;
    }
    if ((b->status = pages_alloc(&c->blocks[c->count], b->device, bytes, b->err)) != TN_OK)
        return false;
    c->count++;
    return true;
}

static size_t aligned(size_t bytes)
{
    return (bytes + TENSOR_ALIGN - 1) / TENSOR_ALIGN * TENSOR_ALIGN;
}

static bool fits(const build_copies *c, size_t bytes)
{
    return c->count > 0 && c->used <= c->blocks[c->count - 1].bytes && bytes <= c->blocks[c->count - 1].bytes - c->used;
}

/* A block of their own, which does not become the last one: that goes on being filled. */
static bool add_own_block(graph_builder *b, size_t bytes)
{
    build_copies *c = b->copies;
    if (!add_block(b, bytes))
        return false;
    pages *last = &c->blocks[c->count - 1], own = *last;
    if (c->count == 1) {
        c->used = own.bytes;
    } else {
        last[0] = last[-1];
        last[-1] = own;
    }
    c->together = own.data;
    c->together_bytes = bytes;
    return true;
}

void build_together(graph_builder *b, int64_t count, int64_t elements)
{
    size_t each = aligned(tn_dtype_bytes(b->dtype, elements));
    b->copies->together_bytes = 0;
    if (b->status == TN_OK && !b->device->ops->host_memory && !b->lacks && !b->elsewhere && count > 1 &&
        each <= SIZE_MAX / (size_t)count && !fits(b->copies, each * (size_t)count))
        add_own_block(b, each * (size_t)count);
}

/* Where so many bytes lie, in what is kept for this tensor and its like, or in the last block; NULL after an error. */
static char *place_for(graph_builder *b, size_t bytes)
{
    build_copies *c = b->copies;
    if (bytes > 0 && aligned(bytes) <= c->together_bytes) {
        c->together_bytes -= aligned(bytes);
        c->together += aligned(bytes);
        return c->together - aligned(bytes);
    }
    if (!fits(c, bytes)) {
        size_t most = block_bytes(b);
        if (!add_block(b, bytes > most ? bytes : most))
            return NULL;
        c->used = 0;
    }
    c->used += aligned(bytes);
    return c->blocks[c->count - 1].data + (c->used - aligned(bytes));
}

static bool keep_copy(graph_builder *b, size_t bytes, void **memory)
{
    *memory = place_for(b, bytes);
    if (*memory)
        b->copies->total += (int64_t)bytes;
    return *memory != NULL;
}

typedef struct convert_job {
    const char *src;
    char *dst;
    tn_dtype from, to;
} convert_job;

enum { CONVERT_BLOCK = 4096 };

/* From one floating type to another by way of f32, which holds every value of the narrower ones. */
static void convert_piece(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    (void)thread;
    const convert_job *job = ctx;
    size_t from = tn_dtype_size(job->from), to = tn_dtype_size(job->to);
    float block[CONVERT_BLOCK];
    for (int64_t i = begin; i < end; i += CONVERT_BLOCK) {
        int64_t n = end - i < CONVERT_BLOCK ? end - i : CONVERT_BLOCK;
        if (job->from == job->to) {
            memcpy(job->dst + (size_t)i * to, job->src + (size_t)i * from, (size_t)n * to);
            continue;
        }
        if (job->from == TN_F64)
            for (int64_t j = 0; j < n; j++) {
                double value;
                memcpy(&value, job->src + (size_t)(i + j) * from, sizeof value);
                block[j] = (float)value;
            }
        else
            convert_to_f32(job->src + (size_t)i * from, job->from, block, n);
        convert_from_f32(block, job->to, job->dst + (size_t)i * to, n);
    }
}

bool placing_begin(graph_builder *b, const char *name, size_t bytes, placing *p)
{
    *p = (placing){.bytes = bytes};
    if (!keep_copy(b, bytes, &p->memory))
        return false;
    p->host = b->device->ops->host_memory ? p->memory : malloc(bytes ? bytes : 1);
    if (!p->host)
        build_fail(b, TN_E_MEMORY, name, "out of memory for a tensor of %zu bytes; free some memory", bytes);
    return p->host;
}

bool placing_end(graph_builder *b, const placing *p)
{
    if (!b->device->ops->host_memory) {
        if (b->status == TN_OK)
            b->status = device_upload(b->device, p->memory, p->host, p->bytes, b->err);
        free(p->host);
    }
    return b->status == TN_OK;
}

bool placing_tensor(graph_builder *b, const char *name, tn_dtype dtype, bool copies, tn_tensor *t)
{
    size_t element = tn_dtype_size(t->dtype);
    bool usable = t->dtype == dtype && b->device->ops->host_memory && (uintptr_t)t->data % element == 0;
    if (usable && !copies)
        return true;
    placing p;
    if (!placing_begin(b, name, (size_t)tn_tensor_count(t) * tn_dtype_size(dtype), &p))
        return false;
    convert_job job = {t->data, p.host, t->dtype, dtype};
    tn_parallel_for(tn_tensor_count(t), 16 * CONVERT_BLOCK, convert_piece, &job);
    t->data = p.memory;
    t->dtype = dtype;
    return placing_end(b, &p);
}

int64_t build_ranges_rows(const build_ranges *ranges)
{
    int64_t rows = 0;
    for (int32_t i = 0; i < ranges->count; i++)
        rows += ranges->at[i].rows;
    return rows;
}

/* Ranges of each of some blocks, which are what is before the dimension that they are of. */
typedef struct range_job {
    const build_ranges *ranges;
    convert_job whole;
    int64_t width, from, to; /* elements of a row of that dimension; rows of a block: of the file's, of the result's */
} range_job;

static void take_blocks(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const range_job *j = ctx;
    tn_dtype from = j->whole.from, to = j->whole.to;
    for (int64_t block = begin; block < end; block++)
        for (int64_t i = 0, at = block * j->to; i < j->ranges->count; at += j->ranges->at[i++].rows) {
            const struct build_range *range = &j->ranges->at[i];
            convert_job piece = {j->whole.src + tn_dtype_bytes(from, (block * j->from + range->first) * j->width),
                                 j->whole.dst + tn_dtype_bytes(to, at * j->width), from, to};
            if (from == to)
                memcpy(piece.dst, piece.src, tn_dtype_bytes(to, range->rows * j->width));
            else
                convert_piece(&piece, 0, range->rows * j->width, thread);
        }
}

bool placing_ranges(graph_builder *b, const char *name, tn_dtype dtype, const build_ranges *ranges, int32_t dim,
                    tn_tensor *t)
{
    int64_t blocks = 1;
    range_job job = {ranges, {t->data, NULL, t->dtype, dtype}, 1, t->shape[dim], build_ranges_rows(ranges)};
    placing p;
    for (int32_t d = 0; d < t->ndim; d++) {
        blocks *= d < dim ? t->shape[d] : 1;
        job.width *= d > dim ? t->shape[d] : 1;
    }
    t->shape[dim] = job.to;
    if (ranges->count == 1 && blocks == 1) {
        t->data = (char *)t->data + tn_dtype_bytes(t->dtype, ranges->at[0].first * job.width);
        return placing_tensor(b, name, dtype, false, t);
    }
    if (!placing_begin(b, name, tn_dtype_bytes(dtype, tn_tensor_count(t)), &p))
        return false;
    job.whole.dst = p.host;
    tn_parallel_for(blocks, 1 + 16 * CONVERT_BLOCK / (job.to * job.width + 1), take_blocks, &job);
    const tn_tensor whole = *t;
    *t = tn_tensor_dense(p.memory, dtype, whole.ndim, whole.shape);
    return placing_end(b, &p);
}

static void mark(graph_builder *b, const tn_tensor *t)
{
    if (t->dtype != TN_DTYPE_NONE)
        shards_mark(b->weights, t->data, tn_dtype_bytes(t->dtype, tn_tensor_count(t)));
}

void placing_mark(graph_builder *b, const char *name, const build_form *form, const tn_tensor *t)
{
    const shards_parts parts = shards_parts_of(b->weights, name);
    mark(b, &parts.scale);
    mark(b, &parts.zero);
    mark(b, &parts.group);
    if (!form->ranges || form->dim > 0 || form->turned || form->dtype || b->dequantise) {
        mark(b, t);
        return;
    }
    int64_t width = t->shape[0] > 0 ? tn_tensor_count(t) / t->shape[0] : 0;
    for (int32_t i = 0; i < form->ranges->count; i++) {
        const struct build_range *range = &form->ranges->at[i];
        shards_mark(b->weights, (const char *)t->data + tn_dtype_bytes(t->dtype, range->first * width),
                    tn_dtype_bytes(t->dtype, range->rows * width));
    }
}

typedef struct turn_job {
    const char *from;
    char *to;
    int64_t m, n;
    size_t element;
} turn_job;

/* Rows of the result, [..,n,m]; several at a time, which lie side by side in [..,m,n]. */
static void turn_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    enum { ROWS = 16 };
    const turn_job *j = ctx;
    (void)thread;
    for (int64_t first = begin, rows; first < end; first += rows) {
        int64_t i = first / j->n, row = first % j->n, left = end - first < ROWS ? end - first : ROWS;
        rows = left < j->n - row ? left : j->n - row;
        for (int64_t column = 0; column < j->m; column++)
            for (int64_t k = 0; k < rows; k++)
                memcpy(j->to + (size_t)((first + k) * j->m + column) * j->element,
                       j->from + (size_t)((i * j->m + column) * j->n + row + k) * j->element, j->element);
    }
}

bool placing_turned(graph_builder *b, const char *name, tn_dtype dtype, tn_tensor *t)
{
    size_t element = tn_dtype_size(t->dtype), bytes = (size_t)tn_tensor_count(t) * element;
    int64_t m = t->shape[t->ndim - 2], n = t->shape[t->ndim - 1], count = m * n > 0 ? tn_tensor_count(t) / (m * n) : 0;
    char *turned = malloc(bytes ? bytes : 1);
    if (!turned) {
        build_fail(b, TN_E_MEMORY, name, "out of memory for a tensor of %zu bytes; free some memory", bytes);
        return false;
    }
    turn_job job = {t->data, turned, m, n, element};
    tn_parallel_for(count * n, 1 + 16 * CONVERT_BLOCK / (m + 1), turn_rows, &job);
    int64_t shape[TN_MAX_DIMS];
    memcpy(shape, t->shape, sizeof shape);
    shape[t->ndim - 2] = n;
    shape[t->ndim - 1] = m;
    *t = tn_tensor_dense(turned, t->dtype, t->ndim, shape);
    bool placed = placing_tensor(b, name, dtype, true, t);
    free(turned);
    return placed;
}

/* ---- twins: weights in the type of products, beside those that are trained -------------------------- */

graph_twin *graph_find_twin(const graph *g, const char *data)
{
    for (size_t i = g->twin_count; i > 0; i--) { /* what was read last is asked for first                  */
        graph_twin *t = &g->twins[i - 1];
        if (data >= t->wide && data < t->wide + (size_t)t->count * sizeof(float))
            return t;
    }
    return NULL;
}

void placing_note(graph_builder *b, const tn_tensor *t)
{
    graph *g = b->graph;
    if (!g->narrow || b->status != TN_OK || t->dtype != g->dtype || graph_find_twin(g, t->data))
        return;
    if (g->twin_count == g->twin_capacity) {
        size_t capacity = g->twin_capacity ? 2 * g->twin_capacity : 256;
        graph_twin *more = realloc(g->twins, capacity * sizeof *more);
        if (!more) {
            build_fail(b, TN_E_MEMORY, "graph", "out of memory while loading weights; free some memory");
            return;
        }
        g->twins = more;
        g->twin_capacity = capacity;
    }
    g->twins[g->twin_count++] = (graph_twin){.wide = t->data, .count = tn_tensor_count(t)};
}

typedef struct rounding {
    const graph_twin *twin;
    tn_dtype type;
} rounding;

static void round_elements(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const rounding *r = ctx;
    (void)thread;
    convert_from_f32((const float *)(const void *)r->twin->wide + begin, r->type,
                     r->twin->narrow + (size_t)begin * tn_dtype_size(r->type), end - begin);
}

void graph_round_twin(const graph *g, const graph_twin *twin)
{
    rounding r = {twin, g->narrow};
    tn_parallel_for(twin->count, 1 << 14, round_elements, &r);
}

static bool make_twin(graph_builder *b, const char *name, graph_twin *twin)
{
    placing p;
    if (!placing_begin(b, name, (size_t)twin->count * tn_dtype_size(b->graph->narrow), &p))
        return false;
    twin->narrow = p.memory;
    graph_round_twin(b->graph, twin);
    return placing_end(b, &p);
}

/* Vectors that may have any type beside the site's stay as they are: what they are added to is no product. */
static bool stays(const tn_site *site, tn_role role, const tn_tensor *t)
{
    const op_row *row = op_find(site->op);
    for (int i = 0; row && t->ndim < 2 && i < OP_PARAMS; i++)
        if (row->param[i].shape && row->param[i].role == role && row->param[i].any_float)
            return true;
    return t->dtype != TN_F32;
}

void placing_narrow(graph_builder *b, const tn_site *site, tn_role role, tn_tensor *tensors, int64_t count)
{
    tn_dtype narrow = b->graph->narrow;
    for (int64_t i = 0; i < count && b->status == TN_OK; i++) {
        tn_tensor *t = &tensors[i];
        if (stays(site, role, t))
            continue;
        if (!graph_find_twin(b->graph, t->data))
            placing_note(b, t);
        graph_twin *twin = graph_find_twin(b->graph, t->data);
        if (!twin || (!twin->narrow && !make_twin(b, site->path, twin)))
            return;
        t->data = twin->narrow +
                  ((const char *)t->data - twin->wide) / (ptrdiff_t)sizeof(float) * (ptrdiff_t)tn_dtype_size(narrow);
        t->dtype = narrow;
    }
}

/* ---- what no file has ---------------------------------------------------------------------------- */

bool build_values(graph_builder *b, tn_dtype dtype, int64_t count, const float *values, tn_tensor *out)
{
    placing p;
    if (b->status != TN_OK || !placing_begin(b, "graph", (size_t)count * tn_dtype_size(dtype), &p))
        return false;
    convert_from_f32(values, dtype, p.host, count);
    *out = tn_tensor_dense(p.memory, dtype, 1, &count);
    return placing_end(b, &p);
}

bool build_ones(graph_builder *b, int64_t count, tn_tensor *out)
{
    float *ones = b->status == TN_OK ? malloc((size_t)count * sizeof *ones) : NULL;
    for (int64_t i = 0; ones && i < count; i++)
        ones[i] = 1;
    if (b->status == TN_OK && !ones)
        build_fail(b, TN_E_MEMORY, "graph", "out of memory while loading weights; free some memory");
    bool made = build_values(b, b->dtype, count, ones, out);
    free(ones);
    return made;
}

bool build_stack(graph_builder *b, const tn_tensor *rows, int64_t count, tn_tensor *out)
{
    if (b->status == TN_OK && b->lacks && !lacks_stack(b, rows, count, out))
        return b->status == TN_OK;
    size_t row = b->status == TN_OK ? (size_t)rows->shape[0] * tn_dtype_size(rows->dtype) : 0;
    placing p;
    if (b->status != TN_OK || !placing_begin(b, "graph", (size_t)count * row, &p))
        return false;
    for (int64_t i = 0; i < count; i++)
        if (b->device->ops->host_memory)
            memcpy((char *)p.host + (size_t)i * row, rows[i].data, row);
        else if (b->status == TN_OK)
            b->status = device_download(b->device, (char *)p.host + (size_t)i * row, rows[i].data, row, b->err);
    *out = tn_tensor_dense(p.memory, rows->dtype, 2, (int64_t[]){count, rows->shape[0]});
    return placing_end(b, &p);
}
