/* Folders with one quantised matrix. */
#include "quantised_folder.h"
#include "suite.h"
#include "tempdir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN "tests/data/quantised/quantised.safetensors"

static void *kept(size_t size)
{
    void *memory = malloc(size ? size : 1);
    ck_assert_ptr_nonnull(memory);
    suite_keep(memory, free);
    return memory;
}

static tn_tensor copy_of(const tn_tensor *t)
{
    size_t bytes = tn_dtype_bytes(t->dtype, tn_tensor_count(t));
    tn_tensor copy = *t;
    copy.data = memcpy(kept(bytes), t->data, bytes);
    return copy;
}

quantised_folder quantised_folder_of(const char *name, const char *stem)
{
    quantised_folder f = {0};
    tn_error err = TN_ERROR_INIT;
    tn_tensor t;
    size_t length = strlen(name);
    tn_safetensors *file = tn_safetensors_open(GOLDEN, &err);
    ck_assert_msg(file != NULL, "%s", err.message);
    for (size_t i = 0; i < tn_safetensors_count(file); i++) {
        const char *full = tn_safetensors_name(file, i);
        if (strncmp(full, name, length) != 0 || full[length] != '.')
            continue;
        ck_assert(f.count < FOLDER_TENSORS && tn_safetensors_get(file, full, &t));
        if (!strcmp(full + length, ".value")) {
            f.value = copy_of(&t);
            continue;
        }
        size_t size = strlen(stem) + strlen(full + length);
        char *own = kept(size);
        snprintf(own, size, "%s%s", stem, full + length + 1);
        f.tensors[f.count++] = (tn_named_tensor){own, copy_of(&t)};
    }
    tn_safetensors_close(file);
    ck_assert_msg(f.count > 0 && f.value.data, "%s: no such case", name);
    return f;
}

tn_tensor *quantised_folder_tensor(quantised_folder *f, const char *name)
{
    for (size_t i = 0; i < f->count; i++)
        if (!strcmp(f->tensors[i].name, name))
            return &f->tensors[i].tensor;
    return NULL;
}

static void close_shards(void *set)
{
    shards_close(set);
}

shards *quantised_folder_resolve(const quantised_folder *f, const char *config, tn_error *err)
{
    char *folder = tempdir_new();
    char *weights = tempdir_at(folder, "model.safetensors"), *path = tempdir_at(folder, "config.json");
    tn_status status = tn_safetensors_write(weights, f->tensors, f->count, err);
    ck_assert_msg(status == TN_OK, "%s", err->message);
    tempdir_put(folder, "config.json", f->settings ? "{}" : config);
    if (f->settings)
        tempdir_put(folder, f->settings, config);
    shards *set = shards_open(folder, err);
    ck_assert_msg(set != NULL, "%s", err->message);
    suite_keep(set, close_shards);
    config_file *file = config_open(path, err);
    ck_assert_msg(file != NULL, "%s", err->message);
    config_reader root = config_root(file, &status, err);
    quantised_resolve(set, &root, tn_parallel_for, err);
    config_close(file);
    return status == TN_OK ? set : NULL;
}
