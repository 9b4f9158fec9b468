/* The header of a .gguf: keys, and what tensors follow. */
#include "quantize/quantize.h"

#include <stdlib.h>
#include <string.h>

enum { U32 = 4, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9 };

static void put_u32(text *t, uint32_t value)
{
    char bytes[4];
    for (int i = 0; i < 4; i++)
        bytes[i] = (char)(value >> 8 * i);
    text_add_n(t, bytes, sizeof bytes);
}

static void put_u64(text *t, uint64_t value)
{
    put_u32(t, (uint32_t)value);
    put_u32(t, (uint32_t)(value >> 32));
}

static void put_f32(text *t, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_u32(t, bits);
}

static void put_string(text *t, const char *value, size_t length)
{
    put_u64(t, length);
    text_add_n(t, value, length);
}

static void begin(quantize_plan *p, const char *key, uint32_t type)
{
    p->key_count++;
    put_string(&p->keys, key, strlen(key));
    put_u32(&p->keys, type);
}

void quantize_put_string(quantize_plan *p, const char *key, const char *value, size_t length)
{
    begin(p, key, STRING);
    put_string(&p->keys, value, length);
}

void quantize_put_text(quantize_plan *p, const char *key, const char *value)
{
    quantize_put_string(p, key, value, strlen(value));
}

void quantize_put_integer(quantize_plan *p, const char *key, int64_t value)
{
    begin(p, key, U32);
    put_u32(&p->keys, (uint32_t)value);
}

void quantize_put_number(quantize_plan *p, const char *key, double value)
{
    begin(p, key, F32);
    put_f32(&p->keys, (float)value);
}

void quantize_put_flag(quantize_plan *p, const char *key, bool value)
{
    char byte = (char)value;
    begin(p, key, BOOL);
    text_add_n(&p->keys, &byte, 1);
}

void quantize_put_list(quantize_plan *p, const char *key, quantize_element element, uint64_t count)
{
    begin(p, key, ARRAY);
    put_u32(&p->keys, element);
    put_u64(&p->keys, count);
}

void quantize_add_string(quantize_plan *p, const char *value, size_t length)
{
    put_string(&p->keys, value, length);
}

void quantize_add_i32(quantize_plan *p, int32_t value)
{
    put_u32(&p->keys, (uint32_t)value);
}

void quantize_add_f32(quantize_plan *p, float value)
{
    put_f32(&p->keys, value);
}

size_t quantize_padded(size_t bytes)
{
    return (bytes + QUANTIZE_ALIGN - 1) / QUANTIZE_ALIGN * QUANTIZE_ALIGN;
}

/* The number that the format has for a type. */
static uint32_t type_number(tn_dtype dtype)
{
    static const struct {
        tn_dtype dtype;
        uint32_t number;
    } types[] = {{TN_F16, 1},   {TN_Q4_0, 2},  {TN_Q5_0, 6},    {TN_Q5_1, 7},  {TN_Q8_0, 8},  {TN_Q4_K, 12},
                 {TN_Q5_K, 13}, {TN_Q6_K, 14}, {TN_IQ4_NL, 20}, {TN_BF16, 30}, {TN_MXFP4, 39}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].dtype == dtype)
            return types[i].number;
    return 0; /* f32 */
}

/* Dimensions, the length of a row first. */
static void put_tensor(text *t, const quantize_tensor *tensor, uint64_t offset)
{
    const int64_t dims[3] = {tensor->columns, tensor->rows, tensor->matrices};
    put_string(t, tensor->name, strlen(tensor->name));
    put_u32(t, (uint32_t)tensor->ndim);
    for (int32_t i = 0; i < tensor->ndim; i++)
        put_u64(t, (uint64_t)dims[i]);
    put_u32(t, type_number(tensor->to));
    put_u64(t, offset);
}

char *quantize_header(quantize_plan *p, size_t *size)
{
    text t = {0};
    static const char zeros[QUANTIZE_ALIGN];
    uint64_t offset = 0;
    text_add_n(&t, "GGUF", 4);
    put_u32(&t, 3);
    put_u64(&t, p->count);
    put_u64(&t, p->key_count);
    text_add_n(&t, p->keys.data, p->keys.length);
    for (size_t i = 0; i < p->count; i++) {
        put_tensor(&t, &p->tensors[i], offset);
        offset += quantize_padded(p->tensors[i].bytes);
    }
    text_add_n(&t, zeros, quantize_padded(t.length) - t.length);
    if (t.failed || p->keys.failed) {
        free(t.data);
        return NULL;
    }
    *size = t.length;
    return t.data;
}
