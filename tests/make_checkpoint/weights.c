/* Random weights, written as a stream: matrices are pieces of one pool of values, read from an offset that moves on, so
 * that gigabytes take seconds. The pool's size is a prime, so no row of a matrix is the same as another. */
#include "weights.h"
#include "base/random.h"
#include "eager/eager.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POOL_COUNT 16777213 /* the largest prime below 2^24 */
#define POOL_STEP 7919      /* between tensors */
#define MATRIX_SCALE 0.02f  /* initializer_range */

typedef struct pool {
    char *data;
    size_t element; /* bytes */
    int64_t at;
    random_state random;
    tn_dtype dtype;
} pool;

/* The sum of eight uniform numbers, nearly normal, with mean 0 and variance 1. Integers keep it the same on every
 * machine. */
static float next_normal(random_state *r)
{
    int32_t sum = 0;
    for (int i = 0; i < 2; i++)
        for (uint64_t word = random_bits(r), k = 0; k < 4; k++, word >>= 16)
            sum += (int32_t)(word & 0xffff);
    /* 8 * (2^32 - 1) / 12 is the variance of the sum; its root is 53509.9. */
    return ((float)sum - 4 * 65535.0f) * (1 / 53509.9f);
}

static void fill_normal(pool *p, tn_dtype dtype, char *out, int64_t count, float mean, float scale)
{
    float block[1024];
    for (int64_t i = 0; i < count; i += 1024) {
        int64_t n = count - i < 1024 ? count - i : 1024;
        for (int64_t k = 0; k < n; k++)
            block[k] = mean + scale * next_normal(&p->random);
        convert_from_f32(block, dtype, out + (size_t)i * tn_dtype_size(dtype), n);
    }
}

static bool pool_init(pool *p, tn_dtype dtype, uint64_t seed)
{
    *p = (pool){.dtype = dtype, .element = tn_dtype_size(dtype), .random = {seed}};
    p->data = malloc(POOL_COUNT * p->element);
    if (p->data)
        fill_normal(p, dtype, p->data, POOL_COUNT, 0, MATRIX_SCALE);
    return p->data != NULL;
}

static int64_t element_count(const weights_tensor *t)
{
    int64_t count = 1;
    for (int32_t i = 0; i < t->ndim; i++)
        count *= t->shape[i];
    return count;
}

static int64_t byte_count(const weights_tensor *t)
{
    return element_count(t) * (int64_t)tn_dtype_size(t->dtype);
}

static bool write_matrix(FILE *f, pool *p, int64_t count)
{
    while (count) {
        int64_t n = POOL_COUNT - p->at < count ? POOL_COUNT - p->at : count;
        if (fwrite(p->data + (size_t)p->at * p->element, p->element, (size_t)n, f) != (size_t)n)
            return false;
        p->at = (p->at + n) % POOL_COUNT;
        count -= n;
    }
    p->at = (p->at + POOL_STEP) % POOL_COUNT;
    return true;
}

/* Values of its own. */
static bool write_values(FILE *f, pool *p, const weights_tensor *t)
{
    char block[4096];
    size_t element = tn_dtype_size(t->dtype);
    int64_t most = (int64_t)(sizeof block / element);
    for (int64_t i = 0, n, count = element_count(t); i < count; i += n) {
        n = count - i < most ? count - i : most;
        fill_normal(p, t->dtype, block, n, t->vector ? t->mean : 0, t->vector ? t->scale : MATRIX_SCALE);
        if (fwrite(block, element, (size_t)n, f) != (size_t)n)
            return false;
    }
    return true;
}

/* The header, padded to a multiple of eight; in a string, since its length comes first. */
static bool write_header(FILE *f, const weights_tensor *tensors, size_t count)
{
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    if (!memory)
        return false;
    int64_t at = 0;
    fprintf(memory, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < count; i++) {
        const weights_tensor *t = &tensors[i];
        int64_t end = at + byte_count(t);
        fprintf(memory, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name,
                t->dtype == TN_F32   ? "F32"
                : t->dtype == TN_F16 ? "F16"
                                     : "BF16");
        for (int32_t d = 0; d < t->ndim; d++)
            fprintf(memory, "%s%lld", d ? "," : "", (long long)t->shape[d]);
        fprintf(memory, "],\"data_offsets\":[%lld,%lld]}", (long long)at, (long long)end);
        at = end;
    }
    fprintf(memory, "}");
    for (long n = ftell(memory); n % 8; n++)
        fputc(' ', memory);
    bool ok = fclose(memory) == 0;
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)size >> (8 * i));
    ok = ok && fwrite(length, 1, 8, f) == 8 && fwrite(text, 1, size, f) == size;
    free(text);
    return ok;
}

static bool write_file(const char *folder, const char *name, const weights_tensor *tensors, size_t count, pool *p)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    bool ok = f && write_header(f, tensors, count);
    for (size_t i = 0; ok && i < count; i++) {
        bool own = tensors[i].vector || tensors[i].dtype != p->dtype;
        ok = own ? write_values(f, p, &tensors[i]) : write_matrix(f, p, element_count(&tensors[i]));
    }
    if (f && fclose(f) != 0)
        ok = false;
    if (!ok)
        fprintf(stderr, "make_checkpoint: %s: cannot write: %s\n", path, strerror(errno));
    return ok;
}

/* first[f] .. first[f + 1] are the tensors of file f. */
static size_t split(const weights_tensor *tensors, size_t count, int64_t shard_bytes, size_t *first)
{
    size_t files = 0;
    int64_t size = 0;
    first[0] = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t bytes = byte_count(&tensors[i]);
        if (size && size + bytes > shard_bytes) {
            first[++files] = i;
            size = 0;
        }
        size += bytes;
    }
    first[++files] = count;
    return files;
}

static void name_file(char *out, size_t size, size_t file, size_t files)
{
    if (files == 1)
        snprintf(out, size, "model.safetensors");
    else
        snprintf(out, size, "model-%05zu-of-%05zu.safetensors", file + 1, files);
}

static bool write_index(const char *folder, const weights_tensor *tensors, const size_t *first, size_t files,
                        int64_t bytes)
{
    char path[4096], name[64];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    FILE *f = fopen(path, "w");
    bool ok = f != NULL;
    if (ok) {
        fprintf(f, "{\n  \"metadata\": {\"total_size\": %lld},\n  \"weight_map\": {", (long long)bytes);
        for (size_t file = 0; file < files; file++) {
            name_file(name, sizeof name, file, files);
            for (size_t i = first[file]; i < first[file + 1]; i++)
                fprintf(f, "%s\n    \"%s\": \"%s\"", i ? "," : "", tensors[i].name, name);
        }
        fprintf(f, "\n  }\n}\n");
        ok = !ferror(f);
        ok = fclose(f) == 0 && ok;
    }
    if (!ok)
        fprintf(stderr, "make_checkpoint: %s: cannot write: %s\n", path, strerror(errno));
    return ok;
}

/* The matrices', as most tensors are. */
static tn_dtype pool_dtype(const weights_tensor *tensors, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!tensors[i].vector)
            return tensors[i].dtype;
    return TN_BF16;
}

bool weights_write(const weights_tensor *tensors, size_t count, uint64_t seed, int64_t shard_bytes, const char *folder,
                   weights_summary *summary)
{
    pool p;
    size_t *first = malloc((count + 1) * sizeof *first);
    bool ok = pool_init(&p, pool_dtype(tensors, count), seed) && first;
    if (!ok)
        fprintf(stderr, "make_checkpoint: out of memory\n");
    *summary = (weights_summary){0};
    for (size_t i = 0; i < count; i++) {
        summary->parameters += element_count(&tensors[i]);
        summary->bytes += byte_count(&tensors[i]);
    }
    if (ok)
        summary->files = split(tensors, count, shard_bytes, first);
    for (size_t file = 0; ok && file < summary->files; file++) {
        char name[64];
        name_file(name, sizeof name, file, summary->files);
        ok = write_file(folder, name, tensors + first[file], first[file + 1] - first[file], &p);
    }
    if (ok && summary->files > 1)
        ok = write_index(folder, tensors, first, summary->files, summary->bytes);
    free(first);
    free(p.data);
    return ok;
}
