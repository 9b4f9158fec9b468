/* A plugin's device against the CPU, operation by operation, before a model computes anything on it. */
#include "check/check_device.h"

#include "base/convert.h"
#include "base/tensor.h"
#include "check/check.h"
#include "check/fence.h"
#include "op/op.h"

#include <stdlib.h>
#include <string.h>

/* Calls are tried with more rows than a block of any plausible size, unless that is more work than this. */
static const double MOST_WORK = 2e9;
static const check_case cases[] = {{.batch = 1, .tokens = 1},
                                   {.batch = 1, .tokens = 19, .profile = INPUTS_SCALED, .seed = 1},
                                   {.batch = 2, .tokens = 33, .seed = 2},
                                   {.batch = 1, .tokens = 300, .seed = 3}};
enum { CASES = sizeof cases / sizeof *cases, ALWAYS = 2 };

/* How far apart two right results may be: sums in another order, and roundings between the parts of a composition. */
static double tolerance_of(tn_op op, tn_dtype dtype)
{
    static const struct {
        tn_op op;
        double f32, half;
    } known[] = {{TN_OP_EMBEDDING, 1, 1}, {TN_OP_CACHE_APPEND, 1, 1},  {TN_OP_ADD, 1, 1},
                 {TN_OP_RMS_NORM, 16, 4}, {TN_OP_ADD_RMS_NORM, 16, 4}, {TN_OP_LAYER_NORM, 16, 4},
                 {TN_OP_ROPE, 16, 4},     {TN_OP_GLU, 16, 4},          {TN_OP_SOFTCAP, 16, 4},
                 {TN_OP_LINEAR, 256, 4},  {TN_OP_MLP, 256, 16},        {TN_OP_MOE_BLOCK, 256, 16}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].op == op)
            return dtype == TN_F32 ? known[i].f32 : known[i].half;
    return dtype == TN_F32 ? 256 : 8;
}

/* ---- parameters in the host's memory ------------------------------------------------------------------------------
 */

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

/* ---- what goes in ---------------------------------------------------------------------------------------------------
 */

/* Batch rows have this many more slots in a cache than tokens. */
enum { SPARE_SLOTS = 5 };

static void draw_floats(const tn_tensor *t, struct inputs_random *random)
{
    for (int64_t i = 0, count = tn_tensor_count(t); i < count; i++) {
        float value = inputs_normal(random);
        convert_from_f32(&value, t->dtype, (char *)t->data + (size_t)i * tn_dtype_size(t->dtype), 1);
    }
}

/* Ids of the table's rows, its last one too. */
static void draw_ids(const tn_tensor *t, int64_t rows, struct inputs_random *random)
{
    int64_t *ids = t->data, count = tn_tensor_count(t);
    for (int64_t i = 0; i < count; i++)
        ids[i] = i + 1 == count ? rows - 1 : (int64_t)(inputs_uniform(random) * (double)rows);
}

/* Slots from the end of the cache on, one token in seven nowhere. */
static void draw_slots(const tn_tensor *t, int64_t capacity)
{
    int64_t tokens = t->shape[1];
    for (int64_t i = 0, count = tn_tensor_count(t); i < count; i++)
        ((int32_t *)t->data)[i] = i % 7 == 6 ? -1 : (int32_t)(capacity - 1 - i % tokens);
}

/* Gives inputs, and what an output holds before, their places behind base (NULL: counts only); returns the bytes. */
static size_t place(tn_tensor *tensors, int count, char *base)
{
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        tensors[i].data = base ? base + used : NULL;
        used += tensor_padded_bytes(&tensors[i]);
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
    struct inputs_random random = {.state = c.seed + 1};
    in->memory = aligned_alloc(64, place(call->in, call->in_count, NULL));
    if (!in->memory)
        return check_no_memory(err);
    place(call->in, call->in_count, in->memory);
    for (int i = 0; i < call->in_count; i++)
        if (tensor_is_float(call->in[i].dtype))
            draw_floats(&call->in[i], &random);
        else if (s->op == TN_OP_EMBEDDING)
            draw_ids(&call->in[i], site->param[TN_ROLE_WEIGHT].tensors[0].shape[0], &random);
        else
            draw_slots(&call->in[i], call->out[0].shape[1]);
    return TN_OK;
}

/* ---- performing
 * ------------------------------------------------------------------------------------------------------- */

static size_t bytes_of(const tn_tensor *t)
{
    return tn_dtype_bytes(t->dtype, tn_tensor_count(t));
}

/* Copies inputs, and what outputs hold before, to the device, performs the call there, and copies outputs back to out.
 * in_place: so many outputs are the memory of inputs. */
static tn_status perform(const check_device_subject *s, const tn_call *like, int in_place, tn_tensor *out,
                         tn_error *err)
{
    void *memory;
    tn_call call = *like;
    call.site = s->op == TN_OP_CACHE_APPEND ? NULL : s->site; /* as the graph calls it */
    size_t ins = place(call.in, call.in_count, NULL), bytes = ins + place(call.out, call.out_count, NULL);
    tn_status status = device_alloc(s->device, bytes, &memory, err);
    if (status != TN_OK)
        return status;
    place(call.in, call.in_count, memory);
    place(call.out, call.out_count, (char *)memory + ins);
    for (int i = 0; i < call.in_count && status == TN_OK; i++)
        status = device_upload(s->device, call.in[i].data, like->in[i].data, bytes_of(&like->in[i]), err);
    for (int i = 0; i < call.out_count && status == TN_OK; i++)
        if (i < in_place)
            call.out[i].data = call.in[i].data;
        else
            status = device_upload(s->device, call.out[i].data, out[i].data, bytes_of(&out[i]), err);
    if (status == TN_OK)
        status = run_alone(s->device, NULL, NULL, &call, err);
    for (int i = 0; i < call.out_count && status == TN_OK; i++)
        status = device_download(s->device, out[i].data, call.out[i].data, bytes_of(&out[i]), err);
    tn_status synced = device_sync(s->device, status == TN_OK ? err : NULL);
    device_free(s->device, memory, bytes);
    return status == TN_OK ? synced : status;
}

/* What outputs hold before the call: nothing that a result may be, but a cache keeps what no token goes to. */
static void fill_outputs(const check_device_subject *s, tn_tensor *out, int count)
{
    struct inputs_random random = {.state = 99};
    for (int i = 0; i < count; i++)
        if (s->op == TN_OP_CACHE_APPEND)
            draw_floats(&out[i], &random);
        else
            memset(out[i].data, FENCE_FILL, bytes_of(&out[i]));
}

static tn_status wrong(const check_device_subject *s, int64_t tokens, int in_place, const char *what, tn_error *err)
{
    return tn_fail(err, TN_E_KERNEL, s->site->path,
                   "device %s performs %s wrong (%lld token%s%s): %s; use --device cpu", s->device->ops->name,
                   tn_op_name(s->op), (long long)tokens, tokens == 1 ? "" : "s", in_place ? ", in place" : "", what);
}

/* One set of inputs, with results in memory of their own and then in that of the inputs where the operation allows it.
 */
static tn_status compare_on(const check_device_subject *s, const inputs *in, tn_call *eager, tn_error *err)
{
    tn_tensor *out = eager->out, got[TN_CALL_TENSORS];
    int outs = eager->out_count, can = op_find(s->op)->in_place;
    char *memory = aligned_alloc(64, 2 * place(out, outs, NULL) + 64);
    if (!memory)
        return check_no_memory(err);
    size_t bytes = place(out, outs, memory);
    memcpy(got, out, sizeof got);
    place(got, outs, memory + bytes);
    fill_outputs(s, out, outs);
    tn_status status = run_alone(s->cpu, NULL, NULL, eager, err);
    for (int in_place = 0; in_place <= can && status == TN_OK; in_place += can ? can : 1) {
        tn_error why = TN_ERROR_INIT;
        tn_call call = in->call;
        compare_figures figures = {0};
        fill_outputs(s, got, outs);
        status = perform(s, &call, in_place, got, &why);
        memcpy(call.out, got, sizeof got);
        if (status != TN_OK)
            status = status == TN_E_MEMORY ? tn_fail(err, status, why.where, "%s", why.message)
                                           : wrong(s, in->tokens, in_place, why.message, err);
        else
            compare_call(eager, &call, tolerance_of(s->op, (tn_dtype)s->site->meaning[TN_AXIS_DTYPE]), in->skip,
                         &figures);
        if (figures.worst > 1)
            status = wrong(s, in->tokens, in_place, figures.detail, err);
    }
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
    for (size_t i = 0; i < CASES && status == TN_OK; i++)
        if (i < ALWAYS || work_of(s, &host.site, &cases[i]) <= MOST_WORK)
            status = check_case_on(s, &host.site, cases[i], err);
    host_site_close(&host);
    return status;
}
