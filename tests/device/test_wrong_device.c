/* Devices that compute or copy wrong in one point each: a model cannot be opened on them, and the error says what is
 * wrong. The same device without its fault is accepted. */
#include "eager/eager.h"
#include "open/model.h"
#include "plugin/plugins.h"
#include "suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum fault {
    NONE,
    EAGER_DOES_NOTHING,
    ADD_SUBTRACTS,
    LINEAR_ENDS_AT_64,
    LINEAR_ENDS_AT_256,
    ATTENTION_FORGETS_OLD_KEYS,
    NORM_CLEARS_FIRST,
    CACHE_KEEPS_DROPPED,
    EMBEDDING_LACKS_LAST_ROW,
    SOFTCAP_IS_LINEAR,
    EXPERTS_IGNORE_WEIGHTS,
    ROUTE_SWAPS_WEIGHTS,
    ROPE_ROTATES_BACK,
    GLU_FORGETS_UP,
    FAILS_AT_MANY_ROWS,
    NORM_HAS_LARGE_EPS,
    LINEAR_ENDS_AT_512,
    LINEAR_KEEPS_WEIGHTS,
    GLU_IGNORES_STRIDES,
    ATTENTION_IGNORES_CAPACITY,
    NORM_WRITES_GAPS,
    LINEAR_WRITES_WHOLE_BLOCKS,
    ROPE_CHANGES_TABLES,
    GRADIENTS_ADDED,
    GRADIENTS_NOT_WRITTEN,
    COPIES_SWAPPED,
    UPLOAD_DOES_NOTHING,
    UPLOAD_LACKS_LAST_BYTE,
    DOWNLOAD_ENDS_AT_4_MIB,
    DOWNLOAD_WRITES_MORE,
    UPLOAD_CHANGES_SOURCE,
    MEMORY_IS_NOT_ZERO,
    ORDINAL_IGNORED,
    SYNC_FAILS
} fault;

static fault now;

/* ---- operations ---------------------------------------------------------------------------------------------- */

static float *floats(const tn_tensor *t, int64_t row)
{
    return (float *)t->data + row * t->stride[0];
}

static void clear_rows(const tn_tensor *t, int64_t from)
{
    for (int64_t row = from; row < t->shape[0]; row++)
        memset(floats(t, row), 0, (size_t)t->shape[1] * sizeof(float));
}

static tn_status wrong_add(const tn_call *call)
{
    for (int64_t i = 0, n = tn_tensor_count(&call->out[0]); i < n; i++)
        ((float *)call->out[0].data)[i] = ((float *)call->in[0].data)[i] - ((float *)call->in[1].data)[i];
    return TN_OK;
}

/* A call whose oldest keys are hidden where there are more than 64. */
static tn_status wrong_attention(const tn_call *call, tn_error *err)
{
    const tn_tensor *index = &call->in[4];
    int32_t *seen = call->in[4].data;
    for (int64_t b = 0; b < index->shape[0] && index->shape[1] > 64; b++)
        for (int64_t s = 0; s < index->shape[1] - 64; s++)
            seen[b * index->stride[0] + s] = -1;
    return eager_cpu.eager(call, err);
}

static tn_status wrong_append(const tn_call *call, tn_error *err)
{
    int32_t *slot = call->in[1].data;
    for (int64_t i = 0, n = tn_tensor_count(&call->in[1]); i < n; i++)
        slot[i] = slot[i] < 0 ? 0 : slot[i];
    return eager_cpu.eager(call, err);
}

static tn_status wrong_embedding(const tn_call *call, tn_error *err)
{
    int64_t *ids = call->in[0].data, last = call->site->param[TN_ROLE_WEIGHT].tensors[0].shape[0] - 1;
    for (int64_t i = 0, n = tn_tensor_count(&call->in[0]); i < n; i++)
        ids[i] -= ids[i] == last;
    return eager_cpu.eager(call, err);
}

static tn_status wrong_result(const tn_call *call, tn_error *err)
{
    tn_status status = eager_cpu.eager(call, err);
    const tn_tensor *out = &call->out[0];
    int64_t n = tn_tensor_count(out);
    if (now == LINEAR_ENDS_AT_64 || now == LINEAR_ENDS_AT_256 || now == LINEAR_ENDS_AT_512)
        clear_rows(out, now == LINEAR_ENDS_AT_64 ? 64 : now == LINEAR_ENDS_AT_256 ? 256 : 512);
    else if (now == LINEAR_WRITES_WHOLE_BLOCKS && out->stride[0] == out->shape[1] && out->shape[0] == 19)
        memset(floats(out, 19), 0, 16 * sizeof(float)); /* as if there were a twentieth row          */
    else if (now == ROPE_CHANGES_TABLES)
        ((float *)call->in[2].data)[0] += 1;
    else if (now == NORM_WRITES_GAPS && out->ndim == 2 && out->stride[0] > out->shape[1])
        floats(out, 0)[out->shape[1]] = 0;
    else if (now == SOFTCAP_IS_LINEAR)
        memcpy(out->data, call->in[0].data, (size_t)n * sizeof(float));
    else if (now == ROUTE_SWAPS_WEIGHTS)
        for (int64_t row = 0; row < out->shape[0]; row++) {
            float first = floats(out, row)[0];
            floats(out, row)[0] = floats(out, row)[1];
            floats(out, row)[1] = first;
        }
    return status;
}

static tn_op op_of(fault f)
{
    static const tn_op ops[] = {[ADD_SUBTRACTS] = TN_OP_ADD,
                                [LINEAR_ENDS_AT_64] = TN_OP_LINEAR,
                                [LINEAR_ENDS_AT_256] = TN_OP_LINEAR,
                                [ATTENTION_FORGETS_OLD_KEYS] = TN_OP_ATTENTION,
                                [NORM_CLEARS_FIRST] = TN_OP_RMS_NORM,
                                [CACHE_KEEPS_DROPPED] = TN_OP_CACHE_APPEND,
                                [EMBEDDING_LACKS_LAST_ROW] = TN_OP_EMBEDDING,
                                [SOFTCAP_IS_LINEAR] = TN_OP_SOFTCAP,
                                [EXPERTS_IGNORE_WEIGHTS] = TN_OP_MOE_EXPERTS,
                                [ROUTE_SWAPS_WEIGHTS] = TN_OP_MOE_ROUTE,
                                [ROPE_ROTATES_BACK] = TN_OP_ROPE,
                                [GLU_FORGETS_UP] = TN_OP_GLU,
                                [FAILS_AT_MANY_ROWS] = TN_OP_LINEAR,
                                [NORM_HAS_LARGE_EPS] = TN_OP_RMS_NORM,
                                [LINEAR_ENDS_AT_512] = TN_OP_LINEAR,
                                [LINEAR_KEEPS_WEIGHTS] = TN_OP_LINEAR,
                                [GLU_IGNORES_STRIDES] = TN_OP_GLU,
                                [ATTENTION_IGNORES_CAPACITY] = TN_OP_ATTENTION,
                                [NORM_WRITES_GAPS] = TN_OP_RMS_NORM,
                                [LINEAR_WRITES_WHOLE_BLOCKS] = TN_OP_LINEAR,
                                [ROPE_CHANGES_TABLES] = TN_OP_ROPE};
    return f < sizeof ops / sizeof *ops ? ops[f] : TN_OP_NONE;
}

static tn_status wrong_eager(const tn_call *call, tn_error *err)
{
    tn_call changed = *call;
    if (now == EAGER_DOES_NOTHING)
        return TN_OK;
    if (call->op != op_of(now))
        return eager_cpu.eager(call, err);
    switch (now) {
    case ADD_SUBTRACTS:
        return wrong_add(call);
    case ATTENTION_FORGETS_OLD_KEYS:
        return wrong_attention(call, err);
    case CACHE_KEEPS_DROPPED:
        return wrong_append(call, err);
    case EMBEDDING_LACKS_LAST_ROW:
        return wrong_embedding(call, err);
    case NORM_CLEARS_FIRST:
        memset(call->out[0].data, 0, (size_t)tn_tensor_count(&call->out[0]) * sizeof(float));
        return eager_cpu.eager(call, err);
    case EXPERTS_IGNORE_WEIGHTS:
        for (int64_t i = 0, n = tn_tensor_count(&call->in[1]); i < n; i++)
            ((float *)call->in[1].data)[i] = 1;
        return eager_cpu.eager(call, err);
    case ROPE_ROTATES_BACK:
        for (int64_t i = 0, n = tn_tensor_count(&call->in[3]); i < n; i++)
            ((float *)call->in[3].data)[i] *= -1;
        return eager_cpu.eager(call, err);
    case GLU_FORGETS_UP:
        changed.in[1] = changed.in[0];
        return eager_cpu.eager(&changed, err);
    case FAILS_AT_MANY_ROWS:
        if (call->in[0].shape[0] > 128)
            return tn_fail(err, TN_DECLINED, NULL, "more than 128 rows");
        return eager_cpu.eager(call, err);
    case LINEAR_KEEPS_WEIGHTS: { /* of the first site of a shape, "converted once"              */
        static tn_tensor kept[64];
        tn_site site = *call->site;
        const tn_tensor *w = site.param[TN_ROLE_WEIGHT].tensors;
        tn_tensor *k = &kept[(w->shape[0] * 7 + w->shape[1]) % 64];
        if (!k->data)
            *k = *w;
        if (k->shape[0] == w->shape[0] && k->shape[1] == w->shape[1])
            site.param[TN_ROLE_WEIGHT].tensors = k;
        changed.site = &site;
        return eager_cpu.eager(&changed, err);
    }
    case GLU_IGNORES_STRIDES:
        changed.in[0].stride[0] = changed.in[0].shape[1];
        return eager_cpu.eager(&changed, err);
    case ATTENTION_IGNORES_CAPACITY:
        for (int i = 1; i <= 2; i++)
            changed.in[i].stride[0] = changed.in[i].shape[1] * changed.in[i].stride[1];
        return eager_cpu.eager(&changed, err);
    case NORM_HAS_LARGE_EPS: { /* shows with small rows only */
        tn_site site = *call->site;
        site.num[TN_NUM_EPS] = 1e-3;
        changed.site = &site;
        return eager_cpu.eager(&changed, err);
    }
    default:
        return wrong_result(call, err);
    }
}

static tn_status wrong_backward(const tn_call *call, tn_error *err)
{
    const tn_tensor *dx = &call->grads->in[0];
    if (now == GRADIENTS_NOT_WRITTEN && call->op == TN_OP_LINEAR)
        return TN_OK;
    tn_status status = eager_cpu.backward(call, err);
    for (int64_t i = 0, n = tn_tensor_count(dx); now == GRADIENTS_ADDED && dx->data && i < n; i++)
        ((float *)dx->data)[i] += 0.25f;
    return status;
}

/* ---- copies and units ------------------------------------------------------------------------------------------- */

static tn_status wrong_upload(tn_queue *queue, void *to, const void *host, size_t bytes, tn_error *err)
{
    (void)queue, (void)err;
    if (now == COPIES_SWAPPED)
        memcpy((void *)host, to, bytes);
    else if (now != UPLOAD_DOES_NOTHING)
        memcpy(to, host, now == UPLOAD_LACKS_LAST_BYTE && bytes % 2 ? bytes - 1 : bytes);
    if (now == UPLOAD_CHANGES_SOURCE && bytes > 100)
        ((char *)host)[100] ^= 1;
    return TN_OK;
}

static tn_status wrong_download(tn_queue *queue, void *host, const void *from, size_t bytes, tn_error *err)
{
    (void)queue, (void)err;
    if (now == COPIES_SWAPPED)
        memcpy((void *)from, host, bytes);
    else
        memcpy(host, from, now == DOWNLOAD_ENDS_AT_4_MIB && bytes > 4 << 20 ? 4 << 20 : bytes);
    if (now == DOWNLOAD_WRITES_MORE && bytes % 2)
        ((char *)host)[bytes] = 0;
    return TN_OK;
}

static tn_status wrong_alloc(tn_queue *queue, size_t bytes, void **out, tn_error *err)
{
    tn_status status = eager_cpu.alloc(queue, bytes, out, err);
    if (now == MEMORY_IS_NOT_ZERO && status == TN_OK && bytes > 0)
        ((char *)*out)[bytes - 1] = 1;
    return status;
}

static tn_status wrong_open(int32_t ordinal, tn_queue **queue, tn_error *err)
{
    (void)queue;
    return ordinal == 0 || now == ORDINAL_IGNORED ? TN_OK : tn_fail(err, TN_E_USAGE, NULL, "there is one");
}

static tn_status wrong_sync(tn_queue *queue, tn_error *err)
{
    (void)queue;
    return now == SYNC_FAILS ? tn_fail(err, TN_E_INTERNAL, NULL, "the machine has gone") : TN_OK;
}

static tn_status register_as(const char *name, tn_error *err)
{
    const tn_device device = {.size = sizeof device,
                              .name = name,
                              .host_memory = true,
                              .open = wrong_open,
                              .alloc = wrong_alloc,
                              .free = eager_cpu.free,
                              .upload = wrong_upload,
                              .download = wrong_download,
                              .sync = wrong_sync,
                              .scratch = eager_cpu.scratch,
                              .eager = wrong_eager,
                              .backward_scratch = eager_cpu.backward_scratch,
                              .backward = wrong_backward};
    tn_plugin plugin = {
        .size = sizeof plugin, .abi_major = TN_ABI_MAJOR, .name = "odd", .version = "1.0.0", .device = &device};
    descriptor *d = descriptor_read(&plugin, NULL, "odd", err);
    tn_status status = d ? registry_add(d, "odd", err) : err->code;
    if (d && status != TN_OK)
        descriptor_free(d);
    return status;
}

static void add_device(void)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(register_as("odd", &err) == TN_OK, "%s", err.message);
}

/* ---- tests ------------------------------------------------------------------------------------------------------ */

static tn_model *open_on(const char *name, bool training, tn_error *err)
{
    char path[256];
    snprintf(path, sizeof path, "tests/data/models/%s", name);
    tn_model_options o = {.size = sizeof o, .dtype = "f32", .device = "odd", .training = training};
    return tn_model_open(path, &o, err);
}

static const struct {
    fault fault;
    const char *model, *where, *says[3];
} faults[] = {
    {EAGER_DOES_NOTHING, "llama", "model.embed_tokens", {"device odd performs EMBEDDING wrong (1 token)", "never"}},
    {ADD_SUBTRACTS, "llama", "model.layers.0.post_attention_layernorm", {"performs ADD wrong", "eager has"}},
    {LINEAR_ENDS_AT_64, "llama", "model.layers.0.self_attn.q_proj", {"performs LINEAR wrong (66 tokens)", "row 64"}},
    {LINEAR_ENDS_AT_256, "llama", "model.layers.0.self_attn.q_proj", {"performs LINEAR wrong (600 tokens)", "row 25"}},
    {ATTENTION_FORGETS_OLD_KEYS, "llama", "model.layers.0.self_attn", {"performs ATTENTION wrong (600 tokens)"}},
    {NORM_CLEARS_FIRST, "llama", "model.layers.0.input_layernorm", {"performs RMS_NORM wrong", "in place"}},
    {CACHE_KEEPS_DROPPED, "llama", "model.layers.0.self_attn", {"performs CACHE_APPEND wrong"}},
    {EMBEDDING_LACKS_LAST_ROW, "qwen3", "model.embed_tokens", {"performs EMBEDDING wrong"}},
    {SOFTCAP_IS_LINEAR, "gemma2", "lm_head", {"performs SOFTCAP wrong"}},
    {EXPERTS_IGNORE_WEIGHTS, "qwen3_moe", "model.layers.0.mlp.experts", {"performs MOE_EXPERTS wrong"}},
    {ROUTE_SWAPS_WEIGHTS, "qwen3_moe", "model.layers.0.mlp.gate", {"performs MOE_ROUTE wrong"}},
    {ROPE_ROTATES_BACK, "llama", "modeling_llama.apply_rotary_pos_emb", {"performs ROPE wrong (1 token)"}},
    {GLU_FORGETS_UP, "llama", "model.layers.0.mlp", {"performs GLU wrong"}},
    {FAILS_AT_MANY_ROWS, "llama", "model.layers.0.self_attn.q_proj", {"600 tokens", "more than 128 rows"}},
    {NORM_HAS_LARGE_EPS, "llama", "model.layers.0.input_layernorm", {"performs RMS_NORM wrong"}},
    {LINEAR_ENDS_AT_512, "llama", "model.layers.0.self_attn.q_proj", {"performs LINEAR wrong (600 tokens)", "row 5"}},
    {LINEAR_KEEPS_WEIGHTS, "llama", "", {"performs LINEAR wrong (19 tokens)"}},
    {GLU_IGNORES_STRIDES, "llama", "model.layers.0.mlp", {"performs GLU wrong", "rows apart"}},
    {ATTENTION_IGNORES_CAPACITY, "llama", "model.layers.0.self_attn", {"ATTENTION wrong (66 tokens, rows apart)"}},
    {NORM_WRITES_GAPS, "llama", "model.layers.0.input_layernorm", {"rows apart): it writes outside of its results"}},
    {LINEAR_WRITES_WHOLE_BLOCKS, "llama", "model.layers.0.self_attn.q_proj", {"(19 tokens): it writes outside"}},
    {ROPE_CHANGES_TABLES, "llama", "modeling_llama.apply_rotary_pos_emb", {"it writes outside of its results"}},
    {GRADIENTS_ADDED, "llama", "model.layers.0.self_attn", {"wrong gradients of ATTENTION (66 tokens)", "eager has"}},
    {GRADIENTS_NOT_WRITTEN, "qwen3_moe", "model.layers.0.self_attn.q_proj", {"wrong gradients of LINEAR", "never"}},
    {COPIES_SWAPPED, "llama", "device", {"odd ", "byte 0 of 64"}},
    {UPLOAD_DOES_NOTHING, "llama", "device", {"odd does not give back what was copied to it: byte "}},
    {UPLOAD_LACKS_LAST_BYTE, "llama", "device", {"byte 4096 of 4097"}},
    {DOWNLOAD_ENDS_AT_4_MIB, "llama", "device", {"byte 4194304 of 5242881"}},
    {DOWNLOAD_WRITES_MORE, "llama", "device", {"odd copies more than it is asked for"}},
    {UPLOAD_CHANGES_SOURCE, "llama", "device", {"odd changes what it copies from: byte 100 "}},
    {MEMORY_IS_NOT_ZERO, "llama", "device", {"odd gives memory that is not zero: byte 63 of 64 is 1 and not 0"}},
    {ORDINAL_IGNORED, "llama", "device", {"odd opens unit 2147483647", "does not look at the number"}},
    {SYNC_FAILS, "llama", "device odd", {"the machine has gone"}},
};
enum { FAULTS = sizeof faults / sizeof *faults };

START_TEST(a_wrong_device_is_refused_by_name)
{
    tn_error err = TN_ERROR_INIT;
    now = faults[_i].fault;
    add_device();
    ck_assert_ptr_null(open_on(faults[_i].model, now == GRADIENTS_ADDED || now == GRADIENTS_NOT_WRITTEN, &err));
    ck_assert_int_eq(err.code, TN_E_KERNEL);
    if (now == LINEAR_KEEPS_WEIGHTS) /* which of the sites that share a shape comes first does not matter */
        ck_assert_msg(strncmp(err.where, "model.layers.", 13) == 0, "%s", err.where);
    else
        ck_assert_str_eq(err.where, faults[_i].where);
    for (int i = 0; i < 3 && faults[_i].says[i]; i++)
        ck_assert_msg(strstr(err.message, faults[_i].says[i]) != NULL, "no '%s' in: %s", faults[_i].says[i],
                      err.message);
}
END_TEST

static const char *const models[] = {"llama", "qwen3", "qwen3_moe", "gemma2", "mixtral", "qwen2_sliding"};

START_TEST(the_same_device_without_a_fault_is_accepted)
{
    tn_error err = TN_ERROR_INIT;
    add_device();
    tn_model *m = open_on(models[_i], true, &err);
    ck_assert_msg(m != NULL, "%s: %s", err.where, err.message);
    tn_model_close(m);
}
END_TEST

/* It is there, it would win any comparison of names or priorities, and nobody asked for it. */
START_TEST(nobody_computes_on_a_device_that_was_not_asked_for)
{
    tn_error err = TN_ERROR_INIT;
    now = EAGER_DOES_NOTHING;
    add_device();
    const char *const ways[] = {NULL, "auto", "cpu"};
    for (int i = 0; i < 3; i++) {
        tn_model_options o = {.size = sizeof o, .device = ways[i]};
        tn_model_info info = {.size = sizeof info};
        tn_model *m = tn_model_open("tests/data/models/llama", &o, &err);
        ck_assert_msg(m != NULL, "%s", err.message);
        ck_assert_int_eq(tn_model_get_info(m, &info), TN_OK);
        ck_assert_str_eq(info.device, "cpu");
        tn_model_close(m);
    }
}
END_TEST

/* Names that mean the CPU cannot be taken, so nobody gets a plugin's device who asks for that. */
START_TEST(names_of_the_cpu_are_its_own)
{
    static const char *const names[] = {"cpu", "auto"};
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(register_as(names[_i], &err), TN_E_KERNEL);
    suite_expect_in(err.message, names[_i]);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("devices that are wrong", 120);
    tcase_add_loop_test(tc, a_wrong_device_is_refused_by_name, 0, FAULTS);
    tcase_add_loop_test(tc, the_same_device_without_a_fault_is_accepted, 0, (int)(sizeof models / sizeof *models));
    suite_add(tc, nobody_computes_on_a_device_that_was_not_asked_for);
    tcase_add_loop_test(tc, names_of_the_cpu_are_its_own, 0, 2);
    return suite_run();
}
