/* The files that a set of tensors lies in: are they what they were, which are they, and which parts of them are read.
 */
#include "base/hash.h"
#include "base/lockfile.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shards.h"

#include <stdlib.h>
#include <sys/stat.h>

static size_t file_count(const shards *set)
{
    return set->gguf ? gguf_file_count(set->gguf) : set->file_count;
}

static const char *file_path(const shards *set, size_t index)
{
    return set->gguf ? gguf_path(set->gguf, index) : safetensors_path(set->files[index]);
}

tn_status shards_check(const shards *set, tn_error *err)
{
    tn_status status = set->gguf ? gguf_check(set->gguf, err) : TN_OK;
    for (size_t i = 0; i < set->file_count && status == TN_OK; i++)
        status = tn_safetensors_check(set->files[i], err);
    return status;
}

uint64_t shards_identity(const shards *set)
{
    uint64_t hash = HASH_START;
    size_t count = file_count(set);
    for (size_t i = 0; i < count; i++) {
        struct stat st;
        if (stat(file_path(set, i), &st) != 0)
            return 0;
        const int64_t facts[] = {(int64_t)st.st_dev, (int64_t)st.st_ino, (int64_t)st.st_size,
                                 (int64_t)st.st_mtim.tv_sec, (int64_t)st.st_mtim.tv_nsec};
        hash = hash_bytes(hash, facts, sizeof facts);
    }
    return count > 0 ? hash : 0;
}

bool shards_file_at(const shards *set, size_t index, shards_file *file)
{
    size_t bytes;
    if (index >= file_count(set))
        return false;
    file->path = file_path(set, index);
    file->data = set->gguf ? gguf_data(set->gguf, index, &bytes) : safetensors_data(set->files[index], &bytes);
    file->bytes = (int64_t)bytes;
    file->read = set->read ? set->read[index] : NULL;
    return true;
}

/* ---- which pieces are read -------------------------------------------------------------------------------- */

static void mark(bool *read, const shards_file *file, const char *begin, const char *end)
{
    int64_t first = (begin - file->data) / LOCKFILE_PIECE, last = (end - 1 - file->data) / LOCKFILE_PIECE;
    for (int64_t i = first; i <= last && begin < end; i++)
        read[i] = true;
}

void shards_mark(shards *set, const void *data, size_t bytes)
{
    const char *begin = data;
    shards_file file;
    for (size_t i = 0; set->read && bytes > 0 && shards_file_at(set, i, &file); i++)
        if (begin >= file.data && begin < file.data + file.bytes) {
            mark(file.read, &file, begin, begin + bytes);
            return;
        }
}

static bool tensor_at(const shards *set, size_t file, size_t index, tn_tensor *t)
{
    const char *name;
    if (set->gguf && index < gguf_tensor_count(set->gguf))
        gguf_tensor(set->gguf, index, t, &name);
    else if (!set->gguf && index < tn_safetensors_count(set->files[file]))
        safetensors_at(set->files[file], index, &name, t);
    else
        return false;
    return true;
}

/* What is read whoever has which part: all before the first tensor, and tensors that are small, such as factors and
 * what tells how others are quantised. */
static void mark_head(shards *set, size_t index)
{
    enum { SMALL = 1 << 20 };
    shards_file file;
    tn_tensor t;
    if (!shards_file_at(set, index, &file))
        return;
    const char *first = file.data + file.bytes;
    for (size_t i = 0; tensor_at(set, index, i, &t); i++) {
        const char *data = t.data;
        size_t bytes = tn_dtype_bytes(t.dtype, tn_tensor_count(&t));
        if (data < file.data || data >= file.data + file.bytes)
            continue; /* of another part of a .gguf                                                       */
        if (data < first)
            first = data;
        if (bytes <= SMALL)
            mark(file.read, &file, data, data + bytes);
    }
    mark(file.read, &file, file.data, first);
}

bool shards_watch(shards *set)
{
    size_t files = file_count(set), count = 0;
    shards_file file;
    if (set->kept_count > 0)
        return true; /* what was re-laid was read whole                                                    */
    for (size_t i = 0; shards_file_at(set, i, &file); i++)
        count += lockfile_pieces(file.bytes);
    bool **read = calloc(1, (files + 1) * sizeof *read + count);
    bool *flags = (bool *)(read + files + 1);
    for (size_t i = 0; read && shards_file_at(set, i, &file); i++) {
        read[i] = flags;
        flags += lockfile_pieces(file.bytes);
    }
    set->read = read;
    for (size_t i = 0; read && i < files; i++)
        mark_head(set, i);
    return read != NULL;
}
