/* What a run did: its calls, what they read, and where gradients of it lie. */
#include "run/tape.h"

#include "base/reserved.h"
#include "base/tensor.h"
#include "op/op.h"
#include "run/strips.h"

#include <stdlib.h>
#include <string.h>

enum { LINE = 64 }; /* bytes of a flag in tape.touched                                              */

tn_status tape_open(tape *t, arena *a, const device *device, size_t bytes, tape_sums sums, tn_error *err)
{
    *t = (tape){.arena = a, .sums = sums, .padding = -1};
    *a = (arena){.device = device, .size = bytes / LINE * LINE, .guessed = true};
    if (!device->ops->host_memory)
        return tn_fail(err, TN_E_USAGE, device->ops->name,
                       "gradients of a whole model are computed in the host's memory; open it on the cpu");
    a->base = reserved_new(a->size);
    t->gradients = reserved_new(a->size);
    t->touched = reserved_new(a->size / LINE);
    if (a->base && t->gradients && t->touched)
        return TN_OK;
    tape_close(t);
    return tn_fail(err, TN_E_MEMORY, "gradients", "the system gives no %zu bytes of addresses; raise ulimit -v", bytes);
}

void tape_close(tape *t)
{
    if (!t->arena)
        return;
    reserved_free(t->arena->base, t->arena->size);
    reserved_free(t->gradients, t->arena->size);
    reserved_free(t->touched, t->arena->size / LINE);
    free(t->calls);
    *t->arena = (arena){.device = t->arena->device};
    *t = (tape){0};
}

void tape_forget(tape *t, size_t mark)
{
    size_t lines = (t->high + LINE - 1) / LINE;
    if (t->high > mark + TAPE_MUCH) {
        reserved_clear(t->gradients + mark, t->high - mark);
        memset(t->touched + mark / LINE, 0, lines - mark / LINE);
        return;
    }
    for (size_t i = mark / LINE; i < lines; i++)
        if (t->touched[i]) {
            memset(t->gradients + i * LINE, 0, LINE);
            t->touched[i] = 0;
        }
}

void tape_reset(tape *t)
{
    tape_forget(t, 0);
    t->count = t->high = 0;
    arena_release(t->arena, 0);
}

/* ---- what is written over --------------------------------------------------------------------------- */

/* The bytes between a tensor's first and last element. */
typedef struct range {
    const char *begin, *end;
} range;

static range range_of(const tn_tensor *t)
{
    int64_t last = 0;
    const char *begin = t->data;
    if (!begin || tn_tensor_count(t) == 0)
        return (range){begin, begin};
    for (int32_t i = 0; i < t->ndim; i++)
        last += (t->shape[i] - 1) * t->stride[i];
    return (range){begin, begin + (size_t)(last + 1) * tn_dtype_size(t->dtype)};
}

bool tape_overlap(const tn_tensor *a, const tn_tensor *b)
{
    range x = range_of(a), y = range_of(b);
    return x.begin < y.end && y.begin < x.end;
}

bool tape_holds(const tape *t, const tn_tensor *x)
{
    const char *at = x->data;
    return at && at >= t->arena->base && at < t->arena->base + t->arena->size;
}

/* Does the backward of such a call read the input? */
static bool is_read(const op_row *row, int i)
{
    return row && !row->in[i].unread;
}

static bool same_view(const tn_tensor *a, const tn_tensor *b)
{
    return a->data == b->data && a->dtype == b->dtype && a->ndim == b->ndim &&
           !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) &&
           !memcmp(a->stride, b->stride, (size_t)a->ndim * sizeof *a->stride);
}

/* Saves one input of a call in a dense copy, which all calls that read the same get. */
static tn_status save(tape *t, size_t call, int input, tn_error *err)
{
    const tn_tensor old = t->calls[call].read[input];
    tn_tensor copy = tn_tensor_dense(NULL, old.dtype, old.ndim, old.shape);
    tn_status status =
        arena_take(t->arena, (size_t)tn_tensor_count(&copy) * tn_dtype_size(copy.dtype), &copy.data, err);
    const tn_call copying = run_make_call(TN_OP_COPY, NULL, RUN_TENSORS(&old), RUN_TENSORS(&copy));
    if (status == TN_OK)
        status = run_eager_call(t->arena->device, t->arena, &copying, err);
    if (status != TN_OK)
        return status;
    for (size_t c = 0; c < t->count; c++)
        for (int32_t i = 0; i < t->calls[c].call.in_count; i++)
            if (same_view(&t->calls[c].read[i], &old))
                t->calls[c].read[i] = copy;
    return TN_OK;
}

/* Of what calls from `first` on read. */
static tn_status save_what_is_lost(tape *t, size_t first, const tn_tensor *written, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t c = first; c < t->count && status == TN_OK; c++) {
        const tape_call *earlier = &t->calls[c];
        const op_row *row = op_find(earlier->call.op);
        for (int32_t i = 0; i < earlier->call.in_count && status == TN_OK; i++)
            if (is_read(row, i) && tape_overlap(&earlier->read[i], written))
                status = save(t, c, i, err);
    }
    return status;
}

static void remember_reach(tape *t, const tn_tensor *x)
{
    if (!tape_holds(t, x))
        return;
    size_t end = (size_t)(range_of(x).end - t->arena->base);
    t->high = end > t->high ? end : t->high;
}

tn_status tape_record(tape *t, const graph_site *site, const tn_call *call, tn_error *err)
{
    if (t->count == t->capacity) {
        size_t capacity = t->capacity ? 2 * t->capacity : 256;
        tape_call *more = realloc(t->calls, capacity * sizeof *more);
        if (!more)
            return tn_fail(err, TN_E_MEMORY, "gradients", "out of memory for %zu calls", capacity);
        t->calls = more;
        t->capacity = capacity;
    }
    tape_call *entry = &t->calls[t->count++];
    *entry = (tape_call){.site = site, .call = *call};
    memcpy(entry->read, call->in, sizeof entry->read);
    entry->mark = arena_mark(t->arena);
    size_t before = t->high;
    tn_status status = TN_OK;
    for (int32_t i = 0; i < call->in_count; i++)
        remember_reach(t, &call->in[i]);
    for (int32_t i = 0; i < call->out_count; i++)
        remember_reach(t, &call->out[i]);
    for (int32_t i = 0; i < call->out_count && status == TN_OK; i++)
        if (tape_holds(t, &call->out[i])) {
            bool met = (size_t)((char *)call->out[i].data - t->arena->base) < before;
            status = save_what_is_lost(t, met ? 0 : t->count - 1, &call->out[i], err);
        }
    return status;
}

/* ---- gradients ------------------------------------------------------------------------------------- */

/* The flags of the lines that n bytes from at on lie in. */
static unsigned char *lines_of(tape *t, const char *at, size_t bytes, size_t *count)
{
    size_t first = (size_t)(at - t->gradients) / LINE, last = (size_t)(at - t->gradients + bytes - 1) / LINE;
    *count = bytes > 0 ? last - first + 1 : 0;
    return t->touched + first;
}

tn_tensor tape_place(const tape *t, const tn_tensor *x)
{
    tn_tensor g = *x;
    g.data = t->gradients + ((char *)x->data - t->arena->base);
    return g;
}

bool tape_is_touched(tape *t, const tn_tensor *g)
{
    strips s = strips_of(g);
    size_t element = tn_dtype_size(g->dtype), count;
    for (int64_t i = 0; i < s.count; i++) {
        const unsigned char *line =
            lines_of(t, (char *)g->data + strips_at(&s, i) * (int64_t)element, (size_t)s.width * element, &count);
        if (count > 0 && (line[0] || memchr(line, 1, count)))
            return true;
    }
    return false;
}

void tape_touch(tape *t, const tn_tensor *g)
{
    strips s = strips_of(g);
    size_t element = tn_dtype_size(g->dtype), count;
    for (int64_t i = 0; i < s.count; i++) {
        unsigned char *line =
            lines_of(t, (char *)g->data + strips_at(&s, i) * (int64_t)element, (size_t)s.width * element, &count);
        memset(line, 1, count);
    }
}

/* A line that others have elements in stays touched. */
void tape_clear(tape *t, const tn_tensor *g)
{
    strips s = strips_of(g);
    size_t element = tn_dtype_size(g->dtype), bytes = (size_t)s.width * element, count;
    for (int64_t i = 0; i < s.count && bytes > 0; i++) {
        char *at = (char *)g->data + strips_at(&s, i) * (int64_t)element;
        memset(at, 0, bytes);
        unsigned char *line = lines_of(t, at, bytes, &count);
        size_t offset = (size_t)(at - t->gradients), whole = (offset + LINE - 1) / LINE;
        size_t end = (offset + bytes) / LINE;
        if (end > whole)
            memset(line + (whole - offset / LINE), 0, end - whole);
    }
}

tn_tensor tape_gradient(tape *t, const tn_tensor *x)
{
    tn_tensor g = tape_place(t, x);
    tape_touch(t, &g);
    return g;
}
