/* Reading what `tenon lock` wrote. */
#include "base/lockfile.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/json_memory.h"
#include "base/text.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { FORM = 1, KEY = 96 };

/* Digests of a checkpoint of 10 TB are 43 MB of text. */
#define MOST_BYTES ((size_t)64 << 20)
#define MOST_FILE ((json_int_t)1 << 53)

typedef struct reader {
    lockfile *lock;
    tn_status status;
    tn_error *err;
} reader;

static void fail(reader *r, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void fail(reader *r, const char *key, const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (r->status == TN_OK)
        r->status =
            tn_fail(r->err, TN_E_INPUT, r->lock->path, "key '%s': %s; write it anew with tenon lock", key, what);
}

static void fail_memory(reader *r)
{
    if (r->status == TN_OK)
        r->status = tn_fail(r->err, TN_E_MEMORY, r->lock->path, "out of memory");
}

/* An object with exactly these keys; NULL ends them. */
static void check_keys(reader *r, const char *at, json_t *object, const char *const *keys)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object)) {
        fail(r, at, "is no object");
        return;
    }
    for (const char *const *k = keys; *k; k++)
        if (!json_object_get(object, *k))
            fail(r, at, "has no '%s'", *k);
    json_object_foreach (object, key, value) {
        const char *const *k = keys;
        while (*k && strcmp(*k, key) != 0)
            k++;
        if (!*k)
            fail(r, at, "has '%.40s', which is not known", key);
    }
}

static bool is_digest(const json_t *value)
{
    const char *text = json_string_value(value);
    return text && strlen(text) == SHA256_HEX - 1 && strspn(text, "0123456789abcdef") == SHA256_HEX - 1;
}

static const char *read_digest(reader *r, const char *at, const json_t *value)
{
    if (!is_digest(value))
        fail(r, at, "is no SHA-256 of 64 digits from 0 to f");
    return json_string_value(value);
}

/* The name of a file in a folder, without what a terminal cannot bear. */
static bool is_plain(const char *name, size_t length)
{
    bool dots = (length == 1 && name[0] == '.') || (length == 2 && name[0] == '.' && name[1] == '.');
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)name[i] < ' ' || name[i] == 0x7f || name[i] == '/')
            return false;
    return length > 0 && length < 256 && !dots;
}

/* The same with at most one folder before it. */
static bool is_below(const char *name)
{
    const char *slash = strchr(name, '/');
    return slash ? is_plain(name, (size_t)(slash - name)) && is_plain(slash + 1, strlen(slash + 1))
                 : is_plain(name, strlen(name));
}

/* Room for what the list holds; 0: it is no list. */
static size_t begin_list(reader *r, const char *key, const json_t *list, size_t size, void **memory, names *index)
{
    size_t count = json_array_size(list);
    if (r->status != TN_OK)
        return 0;
    if (!json_is_array(list)) {
        fail(r, key, "is no list");
        return 0;
    }
    *memory = calloc(count + 1, size);
    if (!*memory || !names_init(index, count))
        fail_memory(r);
    return r->status == TN_OK ? count : 0;
}

static void read_code(reader *r, const char *key, const json_t *list, lockfile_codes *codes)
{
    char at[KEY];
    size_t count = begin_list(r, key, list, sizeof *codes->list, (void **)&codes->list, &codes->index);
    for (size_t i = 0; i < count && r->status == TN_OK; i++) {
        json_t *item = json_array_get(list, i);
        text_cut(at, sizeof at, "%s[%zu]", key, i);
        check_keys(r, at, item, (const char *const[]){"file", "sha256", NULL});
        const char *file = json_string_value(json_object_get(item, "file"));
        if (!file || !is_plain(file, strlen(file)))
            fail(r, at, "'file' is no name of a file without a folder");
        codes->list[i] = (lockfile_code){file, read_digest(r, at, json_object_get(item, "sha256"))};
        if (r->status == TN_OK && !names_add(&codes->index, file, i))
            fail(r, at, "'%.80s' is there twice", file);
        codes->count += r->status == TN_OK;
    }
}

static void read_pieces(reader *r, const char *at, const lockfile_entry *entry)
{
    size_t count = lockfile_pieces(entry->bytes);
    if (!json_is_array(entry->pieces) || json_array_size(entry->pieces) != count)
        fail(r, at, "'sha256' is no list of %zu digests, one for each 16 MiB", count);
    for (size_t i = 0; i < count && r->status == TN_OK; i++)
        if (!is_digest(json_array_get(entry->pieces, i)))
            fail(r, at, "'sha256', digest %zu, is no SHA-256 of 64 digits from 0 to f", i);
}

static void read_files(reader *r, const json_t *list)
{
    char at[KEY];
    lockfile *lock = r->lock;
    size_t count = begin_list(r, "files", list, sizeof *lock->files, (void **)&lock->files, &lock->index);
    for (size_t i = 0; i < count && r->status == TN_OK; i++) {
        json_t *item = json_array_get(list, i), *bytes = json_object_get(item, "bytes");
        const char *name = json_string_value(json_object_get(item, "name"));
        text_cut(at, sizeof at, "files[%zu]", i);
        check_keys(r, at, item, (const char *const[]){"name", "bytes", "sha256", NULL});
        if (!name || !is_below(name))
            fail(r, at, "'name' is no name of a file in the model's folder");
        if (!json_is_integer(bytes) || json_integer_value(bytes) < 0 || json_integer_value(bytes) > MOST_FILE)
            fail(r, at, "'bytes' is no size of a file");
        lock->files[i] = (lockfile_entry){name, json_integer_value(bytes), json_object_get(item, "sha256")};
        if (r->status == TN_OK)
            read_pieces(r, at, &lock->files[i]);
        if (r->status == TN_OK && !names_add(&lock->index, name, i))
            fail(r, at, "'%.80s' is there twice", name);
        lock->file_count += r->status == TN_OK;
    }
}

static void read_all(reader *r, json_t *root)
{
    static const char *const keys[] = {"tenon_lock", "version",     "library", "plugins",
                                       "libraries",  "piece_bytes", "files",   NULL};
    const json_t *form = json_object_get(root, "tenon_lock"), *piece = json_object_get(root, "piece_bytes");
    if (!json_is_integer(form))
        fail(r, "tenon_lock", "is missing; is this a lock?");
    else if (json_integer_value(form) != FORM)
        fail(r, "tenon_lock", "is %lld, this version reads %d", (long long)json_integer_value(form), FORM);
    check_keys(r, "", root, keys);
    if (!json_is_integer(piece) || json_integer_value(piece) != LOCKFILE_PIECE)
        fail(r, "piece_bytes", "is not %lld", (long long)LOCKFILE_PIECE);
    r->lock->version = json_string_value(json_object_get(root, "version"));
    if (!r->lock->version || strlen(r->lock->version) > 64)
        fail(r, "version", "is no version");
    r->lock->library = read_digest(r, "library", json_object_get(root, "library"));
    read_code(r, "plugins", json_object_get(root, "plugins"), &r->lock->plugins);
    read_code(r, "libraries", json_object_get(root, "libraries"), &r->lock->libraries);
    read_files(r, json_object_get(root, "files"));
}

static tn_status parse(reader *r)
{
    char *text = NULL;
    size_t size = 0;
    json_error_t at;
    if ((r->status = file_read(r->lock->path, MOST_BYTES, &text, &size, r->err)) != TN_OK)
        return r->status;
    r->lock->hash = hash_bytes(HASH_START, text, size);
    json_memory_watch();
    json_t *root = r->lock->root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &at);
    free(text);
    if (json_memory_failed())
        fail_memory(r);
    else if (!root)
        r->status = tn_fail(r->err, TN_E_INPUT, r->lock->path, "is not valid JSON: line %d, column %d: %s", at.line,
                            at.column, at.text);
    else
        read_all(r, root);
    return r->status;
}

lockfile *lockfile_read(const char *path, tn_error *err)
{
    lockfile *lock = calloc(1, sizeof *lock);
    reader r = {.lock = lock, .err = err};
    if (lock && (lock->path = strdup(path))) {
        if (parse(&r) == TN_OK)
            return lock;
    } else {
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
    }
    lockfile_close(lock);
    return NULL;
}

static void free_codes(lockfile_codes *codes)
{
    names_close(&codes->index);
    free(codes->list);
}

void lockfile_close(lockfile *lock)
{
    if (!lock)
        return;
    free_codes(&lock->plugins);
    free_codes(&lock->libraries);
    names_close(&lock->index);
    free(lock->files);
    json_decref(lock->root);
    free(lock->path);
    free(lock);
}

const lockfile_entry *lockfile_find(const lockfile *lock, const char *name)
{
    size_t i;
    return names_find(&lock->index, name, &i) ? &lock->files[i] : NULL;
}

const char *lockfile_digest(const lockfile_codes *codes, const char *file)
{
    size_t i;
    return names_find(&codes->index, file, &i) ? codes->list[i].sha256 : NULL;
}

size_t lockfile_pieces(int64_t bytes)
{
    return (size_t)((bytes + LOCKFILE_PIECE - 1) / LOCKFILE_PIECE);
}

const char *lockfile_piece(const lockfile_entry *entry, size_t index)
{
    return json_string_value(json_array_get(entry->pieces, index));
}
