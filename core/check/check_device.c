/* A plugin's device against the CPU, operation by operation, before a model computes anything on it, and kernels that
 * work in such a device's memory. */
#include "check/check_device.h"

#include "base/convert.h"
#include "base/tensor.h"
#include "check/check.h"
#include "check/fence.h"
#include "op/op.h"

#include <stdlib.h>
#include <string.h>

/* Calls are tried with more rows than the chunk of a session, unless that is more work than this. A token comes four
 * times, with other numbers each time: a device may keep what it made for the first, and repeat what it did before. */
static const double MOST_WORK = 8e9;
static const check_case cases[] = {{.batch = 1, .tokens = 1},
                                   {.batch = 1, .tokens = 1, .seed = 7},
                                   {.batch = 1, .tokens = 1, .seed = 8},
                                   {.batch = 1, .tokens = 1, .seed = 9},
                                   {.batch = 1, .tokens = 19, .profile = INPUTS_SCALED, .seed = 1},
                                   {.batch = 2, .tokens = 33, .seed = 2},
                                   {.batch = 1, .tokens = 600, .seed = 3}};
enum { CASES = sizeof cases / sizeof *cases, ALWAYS = 5, BRIEF = 4 };
/* What kernels are tried with besides. */
static const check_case kernel_cases[] = {{.batch = 1, .tokens = 0},
                                          {.batch = 1, .tokens = 8, .profile = INPUTS_OUTLIERS, .seed = 4},
                                          {.batch = 2, .tokens = 12, .profile = INPUTS_CROWDED, .seed = 6}};
enum { KERNEL_CASES = sizeof kernel_cases / sizeof *kernel_cases };

/* How far apart two right results may be: sums in another order, and roundings between the parts of a composition. Rows
 * of SELECTIVE_SCAN may be much shorter than the states that they come from. ATTENTION in 16 bits: eager rounds
 * products and scaled scores, which a device that keeps them in f32 does not: half of what kernels have for the same,
 * which plugins/cpu_attention/README.md derives. */
static double tolerance_of(tn_op op, tn_dtype dtype)
{
    static const struct {
        tn_op op;
        double f32, half;
    } known[] = {
        {TN_OP_EMBEDDING, 1, 1},     {TN_OP_CACHE_APPEND, 1, 1},     {TN_OP_ADD, 1, 1},    {TN_OP_RMS_NORM, 16, 4},
        {TN_OP_ADD_RMS_NORM, 16, 4}, {TN_OP_LAYER_NORM, 16, 4},      {TN_OP_ROPE, 16, 4},  {TN_OP_GLU, 16, 4},
        {TN_OP_SOFTCAP, 16, 4},      {TN_OP_LINEAR, 256, 4},         {TN_OP_MLP, 256, 16}, {TN_OP_ATTENTION, 256, 16},
        {TN_OP_MOE_BLOCK, 256, 16},  {TN_OP_SELECTIVE_SCAN, 1024, 8}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].op == op)
            return dtype == TN_F32 ? known[i].f32 : known[i].half;
    return dtype == TN_F32 ? 256 : 8;
}

double check_device_ulps(tn_op op, tn_dtype dtype)
{
    return tolerance_of(op, dtype);
}

/* ---- parameters in the host's memory ------------------------------------------------------------ */

/* The site as the CPU sees it. */
typedef struct host_site {
    tn_site site;
    tn_tensor *tensors;
    void *memory;
} host_site;

static size_t count_tensors(const tn_site *site, size_t *bytes)
{
    size_t count = 0;
    *bytes = 0;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < site->param[role].count; i++, count++)
            *bytes += tensor_padded_bytes(&site->param[role].tensors[i]);
    return count;
}

static tn_status fetch_params(host_site *h, const device *d, tn_error *err)
{
    tn_tensor *next = h->tensors;
    char *at = h->memory;
    tn_status status = TN_OK;
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        tn_param *p = &h->site.param[role];
        const tn_tensor *from = p->tensors;
        for (int64_t i = 0; i < p->count && status == TN_OK; i++) {
            next[i] = from[i];
            next[i].data = at;
            status =
                device_download(d, at, from[i].data, tn_dtype_bytes(from[i].dtype, tn_tensor_count(&from[i])), err);
            at += tensor_padded_bytes(&from[i]);
        }
        p->tensors = p->count > 0 ? next : NULL;
        next += p->count;
    }
    return status;
}

static void host_site_close(host_site *h)
{
    free(h->tensors);
    free(h->memory);
    *h = (host_site){0};
}

static tn_status host_site_open(host_site *h, const check_device_subject *s, tn_error *err)
{
    size_t bytes, count = count_tensors(s->site, &bytes);
    *h = (host_site){.site = *s->site};
    if (s->device->ops->host_memory || count == 0)
        return TN_OK;
    h->tensors = calloc(count, sizeof *h->tensors);
    h->memory = aligned_alloc(64, bytes);
    tn_status status = h->tensors && h->memory ? fetch_params(h, s->device, err) : check_no_memory(err);
    if (status != TN_OK)
        host_site_close(h);
    return status;
}

/* ---- what goes in ------------------------------------------------------------ */

/* Batch rows have this many more slots in a cache than tokens. */
enum { SPARE_SLOTS = 5 };

/* Between -2 and 2: steps need no tails, and there are many numbers to draw. */
static void draw_floats(const tn_tensor *t, random_state *random)
{
    float block[256];
    size_t size = tn_dtype_size(t->dtype);
    for (int64_t i = 0, count = tn_tensor_count(t); i < count; i += 256) {
        int64_t n = count - i < 256 ? count - i : 256;
        for (int64_t j = 0; j < n; j++)
            block[j] = (float)(4 * random_uniform(random) - 2);
        convert_from_f32(block, t->dtype, (char *)t->data + (size_t)i * size, n);
    }
}

/* Ids of the table's rows, its last one too, but where one token comes again. */
static void draw_ids(const tn_tensor *t, int64_t rows, uint64_t seed, random_state *random)
{
    int64_t *ids = t->data, count = tn_tensor_count(t);
    for (int64_t i = 0; i < count; i++)
        ids[i] =
            i + 1 == count && (count > 1 || seed == 0) ? rows - 1 : (int64_t)(random_uniform(random) * (double)rows);
}

/* Slots down from the end of the cache or, with a seed, another one; one token in seven nowhere. */
static void draw_slots(const tn_tensor *t, int64_t capacity, uint64_t seed)
{
    int64_t tokens = t->shape[1], skip = (int64_t)(seed % (uint64_t)capacity);
    for (int64_t i = 0, count = tn_tensor_count(t); i < count; i++)
        ((int32_t *)t->data)[i] = i % 7 == 6 ? -1 : (int32_t)(capacity - 1 - (i % tokens + skip) % capacity);
}

/* Bytes from a tensor's first element to behind its last row. */
static size_t extent(const tn_tensor *t)
{
    return t->ndim > 0 ? (size_t)(t->shape[0] * t->stride[0]) * tn_dtype_size(t->dtype) : 0;
}

/* Gives tensors their places behind base (NULL: counts only); returns the bytes. */
static size_t place(tn_tensor *tensors, int count, char *base)
{
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        tensors[i].data = base ? base + used : NULL;
        used += (extent(&tensors[i]) + 63) & ~(size_t)63;
    }
    return used;
}

static tn_status draw_step(inputs *in, const check_device_subject *s, const tn_site *site, check_case c, tn_error *err)
{
    const op_row *row = op_find(s->op);
    op_free letters = op_free_of(row, c.batch, c.tokens, c.tokens + SPARE_SLOTS);
    letters.any = s->width;
    *in = (inputs){.call = op_call_of(row, site, &letters), .tokens = c.batch * c.tokens};
    tn_call *call = &in->call;
    random_state random = {.state = c.seed + 1};
    in->memory = aligned_alloc(64, place(call->in, call->in_count, NULL));
    if (!in->memory)
        return check_no_memory(err);
    place(call->in, call->in_count, in->memory);
    for (int i = 0; i < call->in_count; i++)
        if (tensor_is_float(call->in[i].dtype))
            draw_floats(&call->in[i], &random);
        else if (s->op == TN_OP_EMBEDDING || s->op == TN_OP_EMBEDDING_BAG)
            draw_ids(&call->in[i], site->param[TN_ROLE_WEIGHT].tensors[0].shape[0], c.seed, &random);
        else
            draw_slots(&call->in[i], call->out[0].shape[1], c.seed);
    return TN_OK;
}

/* ---- performing ------------------------------------------------------------ */

/* Where a call's tensors lie: side by side, results in the memory of inputs, or with a gap behind each row (behind each
 * batch row of tensors with heads, as in a cache that is not full). */
typedef enum arrangement { DENSE, IN_PLACE, APART, ARRANGEMENTS } arrangement;

/* Elements of a gap. */
enum { GAP = 8 };

static void spread(tn_tensor *tensors, int count)
{
    for (int i = 0; i < count; i++)
        if (tensor_is_float(tensors[i].dtype) && tensors[i].ndim > 1)
            tensors[i].stride[0] += GAP;
}

/* Copies a dense tensor to one of the same shape whose first dimension may have gaps. */
static void copy_rows(const tn_tensor *from, const tn_tensor *to)
{
    size_t size = tn_dtype_size(from->dtype);
    for (int64_t i = 0; i < from->shape[0]; i++)
        memcpy((char *)to->data + (size_t)(i * to->stride[0]) * size,
               (const char *)from->data + (size_t)(i * from->stride[0]) * size, (size_t)from->stride[0] * size);
}

/* Everything of a call in one piece of the host's memory, with a margin at both ends; the same places are used on the
 * device. */
typedef struct staged {
    tn_call call;
    char *memory, *before; /* before: a copy, to find what changes                                  */
    size_t bytes;
} staged;

enum { MARGIN = 4096 };

static tn_status stage(staged *g, const tn_call *like, arrangement how, tn_error *err)
{
    *g = (staged){.call = *like};
    if (how == APART) {
        spread(g->call.in, g->call.in_count);
        spread(g->call.out, g->call.out_count);
    }
    size_t ins = place(g->call.in, g->call.in_count, NULL);
    g->bytes = MARGIN + ins + place(g->call.out, g->call.out_count, NULL) + MARGIN;
    g->memory = aligned_alloc(64, g->bytes);
    g->before = malloc(g->bytes);
    if (!g->memory || !g->before)
        return check_no_memory(err);
    memset(g->memory, FENCE_FILL, g->bytes);
    place(g->call.in, g->call.in_count, g->memory + MARGIN);
    place(g->call.out, g->call.out_count, g->memory + MARGIN + ins);
    for (int i = 0; i < like->in_count; i++)
        copy_rows(&like->in[i], &g->call.in[i]);
    for (int i = 0; how == IN_PLACE && i < op_find(like->op)->in_place; i++)
        if (g->call.out[i].dtype == g->call.in[i].dtype)
            g->call.out[i].data = g->call.in[i].data;
    return TN_OK;
}

/* The tensors at the same places of other memory. */
static void move(tn_tensor *tensors, int count, const char *from, char *to)
{
    for (int i = 0; i < count; i++)
        tensors[i].data = to + ((char *)tensors[i].data - from);
}

/* Copies all of it to the device, performs the call there, and copies all of it back. */
static tn_status perform(const check_device_subject *s, const staged *g, tn_error *err)
{
    void *memory;
    tn_call call = g->call;
    tn_status status = device_alloc(s->device, g->bytes, &memory, err);
    if (status != TN_OK)
        return status;
    call.site = s->op == TN_OP_CACHE_APPEND ? NULL : s->site; /* as the graph calls it */
    move(call.in, call.in_count, g->memory, memory);
    move(call.out, call.out_count, g->memory, memory);
    status = device_upload(s->device, memory, g->memory, g->bytes, err);
    if (status == TN_OK)
        status = run_alone(s->device, NULL, s->bound, &call, err);
    if (status == TN_OK)
        status = device_download(s->device, g->memory, memory, g->bytes, err);
    tn_status synced = device_sync(s->device, status == TN_OK ? err : NULL);
    device_free(s->device, memory, g->bytes);
    return status == TN_OK ? synced : status;
}

/* A cache keeps what no token goes to: it has to hold something before. */
static void fill_cache(const check_device_subject *s, const tn_tensor *cache)
{
    random_state random = {.state = 99};
    for (int64_t b = 0; s->op == TN_OP_CACHE_APPEND && b < cache->shape[0]; b++) {
        tn_tensor row = *cache;
        row.data = (char *)cache->data + (size_t)(b * cache->stride[0]) * tn_dtype_size(cache->dtype);
        row.shape[0] = 1;
        draw_floats(&row, &random);
    }
}

/* Is everything but the rows of the results what it was? */
static bool rest_intact(const staged *g, arrangement how)
{
    for (int i = 0; i < g->call.out_count; i++) {
        const tn_tensor *t = &g->call.out[i];
        size_t size = tn_dtype_size(t->dtype), at = (size_t)((char *)t->data - g->memory);
        bool gap = how == APART && tensor_is_float(t->dtype) && t->ndim > 1;
        for (int64_t row = 0; row < t->shape[0]; row++, at += (size_t)t->stride[0] * size)
            memcpy(g->before + at, g->memory + at, (size_t)(t->stride[0] - (gap ? GAP : 0)) * size);
    }
    return memcmp(g->before, g->memory, g->bytes) == 0;
}

static const char *const arranged[] = {"", ", in place", ", rows apart"};

static tn_status wrong(const check_device_subject *s, int64_t tokens, arrangement how, const char *what, tn_error *err)
{
    if (s->bound)
        return tn_fail(err, TN_E_KERNEL, s->site->path, "with %lld token%s%s: %s", (long long)tokens,
                       tokens == 1 ? "" : "s", arranged[how], what);
    return tn_fail(err, TN_E_KERNEL, s->site->path,
                   "device %s performs %s wrong (%lld token%s%s): %s; use --device cpu", s->device->ops->name,
                   tn_op_name(s->op), (long long)tokens, tokens == 1 ? "" : "s", arranged[how], what);
}

static tn_status wrong_numbers(const check_device_subject *s, int64_t tokens, arrangement how, double ulps,
                               const compare_figures *figures, tn_error *err)
{
    if (!s->bound)
        return wrong(s, tokens, how, figures->detail, err);
    return tn_fail(err, TN_E_VERIFY, s->site->path,
                   "wrong numbers with %lld token%s%s: %.3g times the tolerance of %g ulps (%s)", (long long)tokens,
                   tokens == 1 ? "" : "s", arranged[how], figures->worst, ulps, figures->detail);
}

static tn_status compare_arranged(const check_device_subject *s, const inputs *in, const tn_call *eager,
                                  arrangement how, tn_error *err)
{
    staged g;
    tn_error why = TN_ERROR_INIT;
    compare_figures own = {0}, *figures = s->figures ? s->figures : &own;
    tn_dtype dtype = (tn_dtype)s->site->meaning[TN_AXIS_DTYPE];
    double ulps = s->bound ? compare_ulps(&s->bound->impl->tolerance, dtype) : tolerance_of(s->op, dtype);
    tn_status status = stage(&g, &in->call, how, err);
    if (status == TN_OK) {
        fill_cache(s, &g.call.out[0]);
        memcpy(g.before, g.memory, g.bytes);
        status = perform(s, &g, &why);
        if (status != TN_OK)
            status = status == TN_E_MEMORY ? tn_fail(err, status, why.where, "%s", why.message)
                                           : wrong(s, in->tokens, how, why.message, err);
        else
            compare_call(eager, &g.call, ulps, in->skip, figures);
    }
    if (status == TN_OK && figures->worst > 1)
        status = wrong_numbers(s, in->tokens, how, ulps, figures, err);
    if (status == TN_OK && !rest_intact(&g, how))
        status = wrong(s, in->tokens, how, "it writes outside of its results", err);
    free(g.memory);
    free(g.before);
    return status;
}

/* One set of inputs, however tensors may lie. */
static tn_status compare_on(const check_device_subject *s, const inputs *in, tn_call *eager, tn_error *err)
{
    size_t bytes = place(eager->out, eager->out_count, NULL);
    char *memory = aligned_alloc(64, bytes ? bytes : 64);
    if (!memory)
        return check_no_memory(err);
    place(eager->out, eager->out_count, memory);
    fill_cache(s, &eager->out[0]);
    tn_status status = run_alone(s->cpu, NULL, NULL, eager, err);
    for (int how = DENSE; how < ARRANGEMENTS && status == TN_OK; how++)
        if (how != IN_PLACE || op_find(s->op)->in_place > 0)
            status = compare_arranged(s, in, eager, (arrangement)how, err);
    free(memory);
    return status;
}

static tn_status check_case_on(const check_device_subject *s, const tn_site *host, check_case c, tn_error *err)
{
    inputs in;
    tn_error why = TN_ERROR_INIT;
    bool step = s->op != host->op || op_find(s->op)->kind != OP_CONTRACT;
    tn_status status = step ? draw_step(&in, s, host, c, err) : inputs_draw_case(&in, host, &c, &why);
    if (!step && status == TN_DECLINED)
        return TN_OK; /* a router that rounding decides: nothing can be compared */
    if (status != TN_OK)
        return step ? status : tn_fail(err, status, why.where, "%s", why.message);
    tn_call eager = in.call;
    status = compare_on(s, &in, &eager, err);
    inputs_close(&in);
    return status;
}

static double work_of(const check_device_subject *s, const tn_site *host, const check_case *c)
{
    return s->op == host->op && op_find(s->op)->kind == OP_CONTRACT ? inputs_operations(host, c->batch * c->tokens) : 0;
}

tn_status check_device(const check_device_subject *s, tn_error *err)
{
    host_site host;
    tn_status status = host_site_open(&host, s, err);
    size_t first = s->brief ? BRIEF : 0, end = s->brief ? BRIEF + 1 : CASES;
    for (size_t i = first; i < end && status == TN_OK; i++)
        if (i < ALWAYS || work_of(s, &host.site, &cases[i]) <= MOST_WORK)
            status = check_case_on(s, &host.site, cases[i], err);
    for (size_t i = 0; s->bound && i < KERNEL_CASES && status == TN_OK; i++)
        status = check_case_on(s, &host.site, kernel_cases[i], err);
    if (status == TN_OK && s->gradients)
        status = check_device_gradients(s, &host.site, err);
    host_site_close(&host);
    return status;
}
