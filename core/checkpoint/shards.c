/* The tensors of a checkpoint folder, whether they lie in one file or in many that an index names. */
#include "checkpoint/shards.h"
#include "base/file.h"
#include "base/json_memory.h"
#include "base/reserved.h"
#include "checkpoint/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"
#define MAX_INDEX 100000000 /* as for a file's header: the index of the largest models has a few MB */

#define ZEROS ((size_t)1 << 36) /* the largest tensor of a record: addresses, no memory             */
/* The most tensors of a record, which no file bounds; published models have up to some 100,000. */
#define PROMISED ((size_t)1 << 18)

/* Maps one file and appends it. */
static tn_status open_file(shards *set, const char *name, tn_error *err)
{
    char *path = file_join(set->folder, name);
    if (!path)
        return tn_fail(err, TN_E_MEMORY, set->folder, "out of memory");
    tn_error why = TN_ERROR_INIT;
    tn_safetensors *file = tn_safetensors_open(path, &why);
    tn_status status = why.code;
    if (file)
        set->files[set->file_count++] = file;
    else
        tn_fail(err, status, why.where, "%s", why.message);
    free(path);
    return file ? TN_OK : status;
}

/* weight_map: the index's object, or NULL for a single file. A tensor that the index does not mention is kept, as
 * transformers does; one that it places in another file is not. */
static tn_status collect(shards *set, const json_t *weight_map, char **file_names, tn_error *err)
{
    size_t total = 0;
    for (size_t f = 0; f < set->file_count; f++)
        total += tn_safetensors_count(set->files[f]);
    set->capacity = total ? total : 1;
    set->tensors = calloc(set->capacity, sizeof *set->tensors);
    if (!set->tensors || !names_init(&set->index, total))
        return tn_fail(err, TN_E_MEMORY, set->folder, "out of memory for %zu tensors", total);
    for (size_t f = 0; f < set->file_count; f++) {
        size_t count = tn_safetensors_count(set->files[f]);
        for (size_t i = 0; i < count; i++) {
            located *t = &set->tensors[set->count];
            safetensors_at(set->files[f], i, &t->name, &t->tensor);
            const char *home = weight_map ? json_string_value(json_object_get(weight_map, t->name)) : NULL;
            if (home && strcmp(home, file_names[f]) != 0)
                continue;
            if (!names_add(&set->index, t->name, set->count))
                return tn_fail(err, TN_E_INPUT, safetensors_path(set->files[f]),
                               "tensor '%s' is in another file too and %s does not say which counts", t->name, INDEX);
            t->file = safetensors_path(set->files[f]);
            set->bytes += (int64_t)tn_dtype_bytes(t->tensor.dtype, tn_tensor_count(&t->tensor));
            set->count++;
        }
    }
    return TN_OK;
}

/* A shard lies in the model's own folder: an index must not reach for other files. */
static bool is_plain_name(const char *name)
{
    return name[0] && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The distinct file names of weight_map, sorted, borrowed from it. list is owned: free(). */
static tn_status list_files(const char *path, json_t *weight_map, char ***list, size_t *count, tn_error *err)
{
    size_t n = 0, distinct = 0;
    char **all = malloc((json_object_size(weight_map) + 1) * sizeof *all);
    if (!all)
        return tn_fail(err, TN_E_MEMORY, path, "out of memory");
    const char *tensor;
    json_t *value;
    json_object_foreach (weight_map, tensor, value) {
        const char *file = json_string_value(value);
        if (!file || !is_plain_name(file)) {
            free(all);
            if (!file)
                return tn_fail(err, TN_E_INPUT, path, "weight_map: tensor '%s' does not name a file", tensor);
            return tn_fail(err, TN_E_INPUT, path,
                           "weight_map: tensor '%s' lies in '%s', not a file name of this folder", tensor, file);
        }
        all[n++] = (char *)file;
    }
    qsort(all, n, sizeof *all, compare_names);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(all[i], all[distinct - 1]) != 0)
            all[distinct++] = all[i];
    *list = all;
    *count = distinct;
    return TN_OK;
}

/* Every tensor that the index promises must be where it says. */
static tn_status check_promises(const shards *set, const char *path, json_t *weight_map, tn_error *err)
{
    const char *tensor;
    json_t *value;
    size_t i;
    json_object_foreach (weight_map, tensor, value)
        if (!names_find(&set->index, tensor, &i))
            return tn_fail(err, TN_E_INPUT, path, "tensor '%s' is not in '%s', where weight_map places it", tensor,
                           json_string_value(value));
    return TN_OK;
}

static tn_status open_listed(shards *set, const char *path, json_t *weight_map, tn_error *err)
{
    char **names = NULL;
    size_t count = 0;
    tn_status status = list_files(path, weight_map, &names, &count, err);
    if (status != TN_OK)
        return status;
    set->files = calloc(count ? count : 1, sizeof *set->files);
    if (!set->files)
        status = tn_fail(err, TN_E_MEMORY, path, "out of memory");
    for (size_t i = 0; i < count && status == TN_OK; i++)
        status = open_file(set, names[i], err);
    if (status == TN_OK)
        status = collect(set, weight_map, names, err);
    if (status == TN_OK)
        status = check_promises(set, path, weight_map, err);
    free(names);
    return status;
}

static tn_status open_index(shards *set, const char *path, tn_error *err)
{
    char *text = NULL;
    size_t size = 0;
    tn_status status = file_read(path, MAX_INDEX, &text, &size, err);
    if (status != TN_OK)
        return status;
    json_error_t at;
    json_memory_watch();
    json_t *index = json_loadb(text, size, 0, &at);
    free(text);
    if (json_memory_failed()) {
        json_decref(index);
        return tn_fail(err, TN_E_MEMORY, path, "out of memory");
    }
    if (!index)
        return tn_fail(err, TN_E_INPUT, path, "is not valid JSON: line %d, column %d: %s", at.line, at.column, at.text);
    json_t *weight_map = json_object_get(index, "weight_map");
    status = json_is_object(weight_map) && json_object_size(weight_map)
                 ? open_listed(set, path, weight_map, err)
                 : tn_fail(err, TN_E_INPUT, path, "key 'weight_map' is missing, empty or not an object");
    json_decref(index);
    return status;
}

static tn_status open_single(shards *set, tn_error *err)
{
    set->files = calloc(1, sizeof *set->files);
    if (!set->files)
        return tn_fail(err, TN_E_MEMORY, set->folder, "out of memory");
    tn_status status = open_file(set, SINGLE, err);
    return status == TN_OK ? collect(set, NULL, NULL, err) : status;
}

/* A single file wins over an index, as in transformers. */
static tn_status open_folder(shards *set, tn_error *err)
{
    char *single = file_join(set->folder, SINGLE), *index = file_join(set->folder, INDEX);
    tn_status status;
    if (!single || !index)
        status = tn_fail(err, TN_E_MEMORY, set->folder, "out of memory");
    else if (access(single, F_OK) == 0)
        status = open_single(set, err);
    else if (access(index, F_OK) == 0)
        status = open_index(set, index, err);
    else
        status = tn_fail(err, TN_E_INPUT, single, "is not there, nor is " INDEX "; give a folder with a checkpoint");
    free(single);
    free(index);
    return status;
}

shards *shards_open(const char *folder, tn_error *err)
{
    shards *set = calloc(1, sizeof *set);
    if (set && (set->folder = strdup(folder))) {
        if (open_folder(set, err) == TN_OK)
            return set;
    } else {
        tn_fail(err, TN_E_MEMORY, folder, "out of memory");
    }
    shards_close(set);
    return NULL;
}

void shards_close(shards *set)
{
    if (!set)
        return;
    for (size_t i = 0; i < set->file_count; i++)
        tn_safetensors_close(set->files[i]);
    for (size_t i = 0; i < set->count; i++)
        free(set->tensors[i].path);
    reserved_free((void *)(uintptr_t)set->zeros, ZEROS);
    for (size_t i = 0; i < set->kept_count; i++)
        free(set->kept[i]);
    free(set->kept);
    gguf_close(set->gguf);
    names_close(&set->index);
    free(set->read);
    free(set->files);
    free(set->tensors);
    free(set->folder);
    free(set);
}

shards *shards_record(tn_dtype dtype, tn_error *err)
{
    shards *set = calloc(1, sizeof *set);
    char *folder = strdup("record");
    void *zeros = reserved_zeros(ZEROS);
    if (set && folder && zeros) {
        *set = (shards){.folder = folder, .zeros = zeros, .dtype = dtype};
        return set;
    }
    reserved_free(zeros, ZEROS);
    free(folder);
    free(set);
    tn_fail(err, TN_E_MEMORY, "record", "out of memory");
    return NULL;
}

bool shards_is_record(const shards *set)
{
    return set->zeros != NULL;
}

/* Room for one more. */
static bool grow(shards *set)
{
    if (set->count < set->capacity)
        return true;
    size_t capacity = set->capacity > 512 ? 2 * set->capacity : 1024;
    located *tensors = realloc(set->tensors, capacity * sizeof *tensors);
    if (!tensors)
        return false;
    set->tensors = tensors;
    names_close(&set->index);
    if (!names_init(&set->index, capacity))
        return false;
    for (size_t i = 0; i < set->count; i++)
        names_add(&set->index, tensors[i].name, i);
    set->capacity = capacity;
    return true;
}

bool shards_promise(shards *set, const char *name, const char *path, tn_tensor *tensor)
{
    size_t bytes = (size_t)tn_tensor_count(tensor) * tn_dtype_size(tensor->dtype), at = strlen(path) + 1;
    size_t name_size = strlen(name) + 1;
    char *names = malloc(at + name_size);
    if (!set->zeros || set->count == PROMISED || bytes > ZEROS || !names || !grow(set)) {
        free(names);
        return false;
    }
    memcpy(names, path, at);
    memcpy(names + at, name, name_size);
    *tensor = tn_tensor_dense((void *)(uintptr_t)set->zeros, tensor->dtype, tensor->ndim, tensor->shape);
    set->tensors[set->count] = (located){.name = names + at, .path = names, .tensor = *tensor};
    set->bytes += (int64_t)bytes;
    return names_add(&set->index, names + at, set->count++);
}

const char *shards_path(const shards *set, size_t index)
{
    return index < set->count && set->zeros ? set->tensors[index].path : NULL;
}

shards *shards_empty(const char *folder, struct gguf *file, tn_error *err)
{
    shards *set = calloc(1, sizeof *set);
    char *copy = strdup(folder);
    if (set && copy) {
        *set = (shards){.folder = copy, .gguf = file};
        return set;
    }
    free(copy);
    free(set);
    tn_fail(err, TN_E_MEMORY, folder, "out of memory");
    gguf_close(file);
    return NULL;
}

/* A place for a new name, which is copied; NULL: out of memory. */
static located *append(shards *set, const char *name)
{
    char *copy = strdup(name);
    if (!copy || !grow(set)) {
        free(copy);
        return NULL;
    }
    names_add(&set->index, copy, set->count);
    located *t = &set->tensors[set->count++];
    *t = (located){.name = copy, .path = copy};
    return t;
}

tn_status shards_add(shards *set, const char *name, const char *file, const tn_tensor *tensor,
                     const shards_parts *parts, tn_error *err)
{
    size_t at;
    if (names_find(&set->index, name, &at) && !set->tensors[at].hidden)
        return tn_fail(err, TN_E_INPUT, file, "tensor '%s' is there twice", name);
    located *t = names_find(&set->index, name, &at) ? &set->tensors[at] : append(set, name);
    if (!t)
        return tn_fail(err, TN_E_MEMORY, file, "out of memory for tensor '%s'", name);
    *t = (located){.name = t->name, .path = t->path, .file = file, .tensor = *tensor};
    if (parts)
        t->parts = *parts;
    set->bytes += (int64_t)tn_dtype_bytes(tensor->dtype, tn_tensor_count(tensor));
    return TN_OK;
}

void shards_hide(shards *set, const char *name)
{
    size_t i;
    if (!names_find(&set->index, name, &i) || set->tensors[i].hidden)
        return;
    located *t = &set->tensors[i];
    t->hidden = t->taken = true;
    set->bytes -= (int64_t)tn_dtype_bytes(t->tensor.dtype, tn_tensor_count(&t->tensor));
}

const char *shards_folder(const shards *set)
{
    return set->folder;
}

void *shards_keep(shards *set, size_t bytes)
{
    void **kept = realloc(set->kept, (set->kept_count + 1) * sizeof *kept);
    void *memory = kept ? aligned_alloc(64, (bytes / 64 + 1) * 64) : NULL;
    if (kept)
        set->kept = kept;
    if (memory) {
        kept[set->kept_count++] = memory;
        set->kept_bytes += (int64_t)bytes;
    }
    return memory;
}

int64_t shards_kept_bytes(const shards *set)
{
    return set->kept_bytes;
}

shards_parts shards_parts_of(const shards *set, const char *name)
{
    size_t i;
    return names_find(&set->index, name, &i) ? set->tensors[i].parts : (shards_parts){0};
}

bool shards_get(const shards *set, const char *name, tn_tensor *tensor)
{
    size_t i;
    if (!names_find(&set->index, name, &i) || set->tensors[i].hidden)
        return false;
    *tensor = set->tensors[i].tensor;
    return true;
}

void shards_take(shards *set, const char *name, const void *data, tn_dtype dtype)
{
    size_t i;
    if (!names_find(&set->index, name, &i))
        return;
    set->tensors[i].taken = true;
    set->tensors[i].used = data;
    set->tensors[i].used_as = dtype;
}

const void *shards_used(const shards *set, const char *name, tn_dtype dtype)
{
    size_t i;
    bool found = names_find(&set->index, name, &i) && (!dtype || set->tensors[i].used_as == dtype);
    return found ? set->tensors[i].used : NULL;
}

bool shards_taken(const shards *set, size_t index)
{
    return index < set->count && set->tensors[index].taken;
}

size_t shards_count(const shards *set)
{
    return set->count;
}

const char *shards_name(const shards *set, size_t index)
{
    return index < set->count ? set->tensors[index].name : NULL;
}

int64_t shards_bytes(const shards *set)
{
    return set->bytes;
}

const char *shards_file_of(const shards *set, const char *name)
{
    size_t i;
    if (!names_find(&set->index, name, &i))
        return NULL;
    return set->zeros ? set->folder : set->tensors[i].file;
}

static bool is_quantised(const located *t)
{
    return t->parts.scale.dtype != TN_DTYPE_NONE || tn_dtype_block_elements(t->tensor.dtype) > 1;
}

tn_dtype shards_dtype(const shards *set)
{
    for (size_t i = 0; i < set->count; i++)
        if (is_quantised(&set->tensors[i]))
            return TN_BF16;
    for (size_t i = 0; i < set->count; i++) {
        tn_dtype dtype = set->tensors[i].tensor.dtype;
        if (dtype == TN_F32 || dtype == TN_BF16 || dtype == TN_F16 || dtype == TN_F64)
            return dtype;
    }
    return set->zeros ? set->dtype : TN_DTYPE_NONE;
}
