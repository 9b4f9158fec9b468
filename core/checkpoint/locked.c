/* Digests of a checkpoint's files, in pieces and in threads. */
#include "checkpoint/locked.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- pieces --------------------------------------------------------------------------------------------- */

typedef struct piece {
    bool wanted;
    char sha256[SHA256_HEX];
} piece;

/* The bytes of one file, and what becomes of them. */
typedef struct job {
    const char *path, *data;
    int64_t bytes;
    piece *pieces;
    atomic_bool failed;
} job;

static void digest_pieces(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    job *j = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int64_t at = i * LOCKFILE_PIECE, left = j->bytes - at;
        if (j->pieces[i].wanted &&
            !sha256_hex(j->data + at, (size_t)(left < LOCKFILE_PIECE ? left : LOCKFILE_PIECE), j->pieces[i].sha256))
            atomic_store(&j->failed, true);
    }
}

typedef struct range {
    job *job;
    int64_t first;
} range;

static void digest_range(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const range *r = ctx;
    digest_pieces(r->job, r->first + begin, r->first + end, thread);
}

/* Some pieces at a time, so that progress is told. */
static tn_status digest(job *j, const locked_work *work, tn_error *err)
{
    enum { SOME = 32 };
    int64_t count = (int64_t)lockfile_pieces(j->bytes);
    range r = {.job = j};
    for (; r.first < count; r.first += SOME) {
        int64_t some = count - r.first < SOME ? count - r.first : SOME, done = (r.first + some) * LOCKFILE_PIECE;
        work->loop(some, 1, digest_range, &r);
        if (atomic_load(&j->failed))
            return tn_fail(err, TN_E_MEMORY, j->path, "out of memory for its digests");
        if (work->progress && work->progress(work->ctx, "digests", done < j->bytes ? done : j->bytes, j->bytes))
            return tn_fail(err, TN_E_CANCELLED, j->path, "was cancelled");
    }
    return TN_OK;
}

/* read: of its pieces those to look at; NULL: all. */
static tn_status begin(job *j, const bool *read, tn_error *err)
{
    size_t count = lockfile_pieces(j->bytes);
    j->pieces = calloc(count + 1, sizeof *j->pieces);
    for (size_t i = 0; j->pieces && i < count; i++)
        j->pieces[i].wanted = !read || read[i];
    return j->pieces ? TN_OK : tn_fail(err, TN_E_MEMORY, j->path, "out of memory for %zu digests", count);
}

/* ---- files beside the weights ------------------------------------------------------------------------------ */

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), n = strlen(end);
    return length > n && strcmp(name + length - n, end) == 0;
}

static const char templates[] = "additional_chat_templates";

static bool is_beside(const char *name)
{
    static const char *const ends[] = {".json", ".jinja", ".model", ".txt", ".gz"};
    bool is = false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        is = is || ends_with(name, ends[i]);
    return is && name[0] != '.' && strcmp(name, "lock.json") != 0 && !ends_with(name, ".lock.json");
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* below: "" or a folder in it, with a slash behind. */
static tn_status add_names(const char *folder, const char *below, text_list *names, tn_error *err)
{
    char name[NAME_MAX + sizeof templates + 2];
    char *path = file_join(folder, below);
    DIR *entries = path ? opendir(path) : NULL;
    tn_status status = path ? TN_OK : tn_fail(err, TN_E_MEMORY, folder, "out of memory");
    if (path && !entries && (!below[0] || errno != ENOENT))
        status = tn_fail(err, errno == ENOMEM ? TN_E_MEMORY : TN_E_INPUT, path, "cannot be read: %s", strerror(errno));
    for (const struct dirent *e; entries && status == TN_OK && (errno = 0, e = readdir(entries));) {
        text_cut(name, sizeof name, "%s%s", below, e->d_name);
        if (is_beside(e->d_name) && !text_list_add(names, name))
            status = tn_fail(err, TN_E_MEMORY, folder, "out of memory");
    }
    if (entries && status == TN_OK && errno != 0) /* a list cut short would hide a file                       */
        status = tn_fail(err, TN_E_INPUT, path, "cannot be read: %s", strerror(errno));
    if (entries)
        closedir(entries);
    free(path);
    return status;
}

tn_status locked_names(const char *folder, text_list *names, tn_error *err)
{
    char below[sizeof templates + 1];
    text_cut(below, sizeof below, "%s/", templates);
    tn_status status = add_names(folder, "", names, err);
    if (status == TN_OK)
        status = add_names(folder, below, names, err);
    if (status == TN_OK && names->count)
        qsort(names->items, names->count, sizeof *names->items, compare_texts);
    return status;
}

/* A file mapped for its digests. An empty one has none. */
typedef struct mapped_file {
    char *path;
    mapped *map;
    job job;
} mapped_file;

static tn_status open_file(mapped_file *f, const char *folder, const char *name, tn_error *err)
{
    struct stat st;
    size_t size = 0;
    *f = (mapped_file){.path = file_join(folder, name)};
    if (!f->path)
        return tn_fail(err, TN_E_MEMORY, folder, "out of memory");
    if (stat(f->path, &st) != 0 || st.st_size > 0 || !S_ISREG(st.st_mode)) {
        tn_error why = TN_ERROR_INIT;
        if (!(f->map = file_map(f->path, &size, &why)))
            return tn_fail(err, why.code, why.where, "%s", why.message);
    }
    f->job.path = f->path;
    f->job.data = f->map ? mapped_data(f->map) : NULL;
    f->job.bytes = (int64_t)size;
    return begin(&f->job, NULL, err);
}

/* Whatever was found, it counts only where the file stayed as it was. */
static tn_status close_file(mapped_file *f, tn_status status, tn_error *why, tn_error *err)
{
    if (f->map && mapped_check(f->map, err) != TN_OK)
        status = TN_E_INPUT;
    else if (status != TN_OK)
        tn_fail(err, why->code, why->where, "%s", why->message);
    mapped_close(f->map);
    free(f->job.pieces);
    free(f->path);
    return status;
}

/* ---- telling ----------------------------------------------------------------------------------------------- */

static void tell(const job *j, const char *name, bool first, text *out)
{
    size_t count = lockfile_pieces(j->bytes);
    text_add(out, "%s    {\n      \"name\": ", first ? "\n" : ",\n");
    text_add_quoted(out, name);
    text_add(out, ",\n      \"bytes\": %lld,\n      \"sha256\": [", (long long)j->bytes);
    for (size_t i = 0; i < count; i++)
        text_add(out, "%s\n        \"%s\"", i ? "," : "", j->pieces[i].sha256);
    text_add(out, "%s]\n    }", count ? "\n      " : "");
}

tn_status locked_tell(const char *folder, const char *name, const locked_work *work, bool first, text *out,
                      tn_error *err)
{
    mapped_file f;
    tn_error why = TN_ERROR_INIT;
    tn_status status = open_file(&f, folder, name, &why);
    if (status == TN_OK)
        status = digest(&f.job, work, &why);
    if (status == TN_OK)
        tell(&f.job, name, first, out);
    return close_file(&f, status, &why, err);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

tn_status locked_tell_weights(const shards *set, const locked_work *work, bool first, text *out, tn_error *err)
{
    shards_file file;
    tn_status status = TN_OK;
    for (size_t i = 0; status == TN_OK && shards_file_at(set, i, &file); i++) {
        job j = {.path = file.path, .data = file.data, .bytes = file.bytes};
        status = begin(&j, NULL, err);
        if (status == TN_OK)
            status = digest(&j, work, err);
        if (status == TN_OK)
            tell(&j, base_name(file.path), first && i == 0, out);
        free(j.pieces);
    }
    return status == TN_OK ? shards_check(set, err) : status;
}

/* ---- comparing ------------------------------------------------------------------------------------------------ */

static tn_status fail_absent(const char *path, const lockfile *lock, tn_error *err)
{
    return tn_fail(err, TN_E_INPUT, path, "is not in the lock %s; remove it, or write the lock anew with tenon lock",
                   lock->path);
}

static tn_status fail_size(const char *path, int64_t bytes, const lockfile_entry *entry, const lockfile *lock,
                           tn_error *err)
{
    return tn_fail(err, TN_E_INPUT, path, "has %lld bytes, %lld in the lock %s; fetch it again", (long long)bytes,
                   (long long)entry->bytes, lock->path);
}

static tn_status compare(job *j, const char *name, const lockfile *lock, const locked_work *work, tn_error *err)
{
    const lockfile_entry *entry = lockfile_find(lock, name);
    if (!entry)
        return fail_absent(j->path, lock, err);
    if (entry->bytes != j->bytes)
        return fail_size(j->path, j->bytes, entry, lock, err);
    tn_status status = digest(j, work, err);
    for (size_t i = 0; i < lockfile_pieces(j->bytes) && status == TN_OK; i++) {
        int64_t at = (int64_t)i * LOCKFILE_PIECE, left = j->bytes - at;
        if (j->pieces[i].wanted && strcmp(j->pieces[i].sha256, lockfile_piece(entry, i)) != 0)
            status = tn_fail(err, TN_E_INPUT, j->path,
                             "bytes %lld to %lld are not those of the lock %s; fetch the file again", (long long)at,
                             (long long)(at + (left < LOCKFILE_PIECE ? left : LOCKFILE_PIECE) - 1), lock->path);
    }
    return status;
}

static tn_status check_file(const char *folder, const char *name, const lockfile *lock, const locked_work *work,
                            tn_error *err)
{
    mapped_file f;
    tn_error why = TN_ERROR_INIT;
    tn_status status = open_file(&f, folder, name, &why);
    if (status == TN_OK)
        status = compare(&f.job, name, lock, work, &why);
    return close_file(&f, status, &why, err);
}

static tn_status fail_missing(const char *folder, const char *name, const lockfile *lock, tn_error *err)
{
    return tn_fail(err, TN_E_INPUT, folder, "has no '%s', which is in the lock %s; fetch it again", name, lock->path);
}

static bool holds(const text_list *names, const char *name)
{
    return names->count && bsearch(&name, names->items, names->count, sizeof *names->items, compare_texts);
}

/* Weights are opened later; one of another size would be an error of whoever reads its header. */
static tn_status check_size(const char *folder, const lockfile_entry *entry, const lockfile *lock, tn_error *err)
{
    struct stat st;
    char *path = file_join(folder, entry->name);
    tn_status status = path ? TN_OK : tn_fail(err, TN_E_MEMORY, folder, "out of memory");
    if (path && stat(path, &st) != 0)
        status = fail_missing(folder, entry->name, lock, err);
    else if (path && st.st_size != entry->bytes)
        status = fail_size(path, (int64_t)st.st_size, entry, lock, err);
    free(path);
    return status;
}

tn_status locked_check(const char *folder, bool beside, const lockfile *lock, const locked_work *work, tn_error *err)
{
    text_list names = {0};
    tn_status status = beside ? locked_names(folder, &names, err) : TN_OK;
    for (size_t i = 0; i < lock->file_count && status == TN_OK; i++)
        if (!is_beside(base_name(lock->files[i].name)))
            status = beside ? check_size(folder, &lock->files[i], lock, err) : TN_OK;
        else if (!holds(&names, lock->files[i].name))
            status = fail_missing(folder, lock->files[i].name, lock, err);
    for (size_t i = 0; i < names.count && status == TN_OK; i++)
        status = check_file(folder, names.items[i], lock, work, err);
    text_list_clear(&names);
    return status;
}

static bool has_file(const shards *set, const char *name)
{
    shards_file file;
    for (size_t i = 0; shards_file_at(set, i, &file); i++)
        if (strcmp(base_name(file.path), name) == 0)
            return true;
    return false;
}

tn_status locked_check_weights(const shards *set, const lockfile *lock, const locked_work *work, tn_error *err)
{
    shards_file file;
    tn_status status = TN_OK;
    for (size_t i = 0; i < lock->file_count && status == TN_OK; i++)
        if (!is_beside(base_name(lock->files[i].name)) && !has_file(set, lock->files[i].name))
            status = fail_missing(shards_folder(set), lock->files[i].name, lock, err);
    for (size_t i = 0; status == TN_OK && shards_file_at(set, i, &file); i++) {
        job j = {.path = file.path, .data = file.data, .bytes = file.bytes};
        status = begin(&j, file.read, err);
        if (status == TN_OK)
            status = compare(&j, base_name(file.path), lock, work, err);
        free(j.pieces);
    }
    return status;
}
