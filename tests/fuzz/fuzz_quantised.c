/* Any bytes as a config.json and, behind a NUL, a .safetensors file: a quantised folder. What is accepted can be read
 * row by row, and its parts fit. */
#include "fuzz.h"
#include "fuzz_folder.h"
#include "fuzz_safetensors.h"
#include "base/blocks.h"
#include "checkpoint/checkpoint.h"
#include "op/weight.h"

FUZZ_ENTRY(fuzz_quantised)

#ifdef TN_FUZZER
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    const uint8_t *rest;
    size_t rest_size, first = fuzz_parts(data, size, &rest, &rest_size) + 1;
    if (!rest || seed % 4 == 0)
        return LLVMFuzzerMutate(data, size, max_size);
    return first + fuzz_mutate_header(data + first, rest_size, max_size - first, seed / 4);
}
#endif

static void run_all(int64_t count, int64_t grain, void (*body)(void *ctx, int64_t begin, int64_t end, int32_t thread),
                    void *ctx)
{
    (void)grain;
    if (count > 0)
        body(ctx, 0, count, 0);
}

static const tn_tensor *or_null(const tn_tensor *t)
{
    return t->dtype ? t : NULL;
}

/* Every value of a matrix of codes, and each of its parts is of its size. */
static void read_matrix(const tn_tensor *t, const shards_parts *p)
{
    fuzz_require(t->ndim == 2 && t->shape[0] > 0 && t->shape[1] > 0, "codes are no matrix");
    fuzz_require(p->scale.ndim == 2 && p->scale.shape[0] == t->shape[0], "scales have other rows than their codes");
    fuzz_require(p->zero.ndim != 2 || p->zero.shape[1] == p->scale.shape[1], "zero points have other groups");
    fuzz_require(!p->group.dtype || p->group.shape[0] == t->shape[1], "groups have other columns");
    weight w = weight_make(t, &p->scale, or_null(&p->zero), or_null(&p->group));
    fuzz_require(w.group || w.group_columns > 0, "groups cannot be deduced");
    float *row = malloc((size_t)t->shape[1] * sizeof *row);
    for (int64_t i = 0; row && i < t->shape[0]; i++)
        weight_read(&w, i, 0, t->shape[1], TN_F32, row);
    free(row);
}

static void read_all(const shards *set)
{
    tn_tensor t;
    for (size_t i = 0; i < shards_count(set); i++) {
        shards_parts parts = shards_parts_of(set, shards_name(set, i));
        if (shards_get(set, shards_name(set, i), &t) && blocks_is_quantised(t.dtype) && parts.scale.dtype)
            read_matrix(&t, &parts);
    }
}

static void resolve(const char *folder, const config_file *file, tn_error *err)
{
    tn_status status = TN_OK;
    shards *set = shards_open(folder, err);
    fuzz_agree(set != NULL, err);
    if (!set)
        return;
    config_reader root = config_root(file, &status, err);
    quantised_resolve(set, &root, run_all, err);
    fuzz_agree(status == TN_OK, err);
    if (status == TN_OK)
        read_all(set);
    shards_close(set);
}

int fuzz_quantised(const uint8_t *data, size_t size)
{
    const uint8_t *rest;
    size_t rest_size, first = fuzz_parts(data, size, &rest, &rest_size);
    char path[64];
    fuzz_folder_write("model.safetensors", rest, rest_size);
    int fd = fuzz_file(data, first, path);
    tn_error err = TN_ERROR_INIT;
    config_file *file = config_open(path, &err);
    close(fd);
    if (file)
        resolve(fuzz_folder(), file, &err);
    config_close(file);
    return 0;
}
