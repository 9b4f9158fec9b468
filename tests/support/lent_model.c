/* Models over lent memory. */
#include "lent_model.h"

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "suite.h"
#include "test_models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void release(void *what)
{
    lent_model *l = what;
    for (size_t i = 0; i < l->memory_count; i++)
        free(l->memory[i]);
    free(l->config);
    free(l);
}

void *lent_keep(lent_model *l, size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes / 64 + 1) * 64);
    ck_assert_ptr_nonnull(memory);
    ck_assert_uint_lt(l->memory_count, LENT_MOST);
    return l->memory[l->memory_count++] = memory;
}

lent_model *lent_of(const char *folder)
{
    char path[512];
    size_t size;
    tn_error err = TN_ERROR_INIT;
    lent_model *l = calloc(1, sizeof *l);
    suite_keep(l, release);
    snprintf(path, sizeof path, "tests/data/models/%s", folder);
    shards *set = shards_open(path, &err);
    ck_assert_msg(set != NULL, "%s: %s", err.where, err.message);
    snprintf(path, sizeof path, "tests/data/models/%s/config.json", folder);
    ck_assert_int_eq(file_read(path, 1 << 24, &l->config, &size, &err), TN_OK);
    ck_assert_uint_lt(shards_count(set), LENT_MOST / 2);
    for (; l->count < shards_count(set); l->count++) {
        const char *name = shards_name(set, l->count);
        tn_tensor *t = &l->tensors[l->count];
        ck_assert(shards_get(set, name, t));
        size_t bytes = tn_dtype_bytes(t->dtype, tn_tensor_count(t));
        t->data = memcpy(lent_keep(l, bytes), t->data, bytes);
        l->names[l->count] = strcpy(lent_keep(l, strlen(name) + 1), name);
    }
    shards_close(set);
    return l;
}

tn_tensor *lent_at(lent_model *l, const char *name)
{
    size_t i = 0;
    while (i < l->count && strcmp(l->names[i], name) != 0)
        i++;
    ck_assert_msg(i < l->count, "no tensor %s", name);
    return &l->tensors[i];
}

void lent_add(lent_model *l, const char *name, tn_tensor tensor)
{
    ck_assert_uint_lt(l->count, LENT_MOST);
    l->names[l->count] = strcpy(lent_keep(l, strlen(name) + 1), name);
    l->tensors[l->count++] = tensor;
}

void lent_without(lent_model *l, const char *name)
{
    size_t i = (size_t)(lent_at(l, name) - l->tensors);
    l->count--;
    l->tensors[i] = l->tensors[l->count];
    l->names[i] = l->names[l->count];
}

void lent_rewrite(lent_model *l, const char *from, const char *to)
{
    char *at = strstr(l->config, from), *made = calloc(1, strlen(l->config) + strlen(to) + 1);
    ck_assert_msg(at && made, "config has no %s", from);
    sprintf(made, "%.*s%s%s", (int)(at - l->config), l->config, to, at + strlen(from));
    free(l->config);
    l->config = made;
}

static void close_model(void *model)
{
    tn_model_close(model);
}

tn_model *lent_open_as(const lent_model *l, const tn_model_options *options)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = tn_model_borrow(l->config, l->names, l->tensors, l->count, options, &err);
    ck_assert_msg(m != NULL, "%s: %s", err.where, err.message);
    suite_keep(m, close_model);
    return m;
}
