/* The cache folder as a whole: what is in it, and what may stay. Only files whose names are ours are looked at and
 * removed, never what a link leads to; what another process removes or writes meanwhile is no error. */
#include "plugin/cachefile.h"

#include "base/structs.h"

#include <tenon/cache.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* What is remembered: the names of a kind's files are these words and so many hexadecimal digits. */
static const struct {
    const char *name, *summary, *prefix;
    size_t digits;
} kinds[] = {
    {"trials", "verdicts on plugins", "", 64},
    {"hangs", "plugins that kept the program waiting", "hung-", 16},
    {"checks", "kernels that passed the check of a first use", "checked-", 16},
    {"times", "how long kernels take, and what would happen without them", "measured-", 16},
};
enum { KINDS = sizeof kinds / sizeof *kinds, ALL_KINDS = -1 };

/* What the library keeps to. A store that finds more leaves some room, so that the next do not find as much again. */
enum { MOST_DAYS = 90, MOST_FILES = 4096, MOST_BYTES = 16 << 20, ROOM = 8 };

/* Written for so long, it never will be: its process ended. */
enum { UNFINISHED_SECONDS = 60 * 60, DAY_SECONDS = 24 * 60 * 60 };

typedef struct cache_file {
    char name[112];
    int kind;
    bool unfinished; /* ".NAME.PROCESS", which becomes NAME                                           */
    int64_t used, bytes;
} cache_file;

typedef struct cache_files {
    cache_file *items;
    size_t count, capacity;
} cache_files;

/* ---- what is there ------------------------------------------------------------------------------------------- */

/* Is the beginning of name one of the kind, to its end or to a dot? Returns its length, or 0. */
static size_t match_kind(const char *name, int kind)
{
    size_t prefix = strlen(kinds[kind].prefix);
    if (strncmp(name, kinds[kind].prefix, prefix) != 0)
        return 0;
    size_t digits = strspn(name + prefix, "0123456789abcdef");
    return digits == kinds[kind].digits ? prefix + digits : 0;
}

/* false: the name is not one of ours. */
static bool parse_name(const char *name, cache_file *file)
{
    file->unfinished = name[0] == '.';
    const char *begin = name + file->unfinished;
    for (file->kind = 0; file->kind < KINDS; file->kind++) {
        size_t length = match_kind(begin, file->kind);
        const char *end = begin + length;
        size_t process = *end == '.' ? strspn(end + 1, "0123456789") : 0;
        if (length > 0 && (file->unfinished ? process > 0 && !end[1 + process] : !*end))
            return strlen(name) < sizeof file->name;
    }
    return false;
}

bool cachefile_is_ours(const char *name)
{
    cache_file file;
    return parse_name(name, &file);
}

static bool add_file(cache_files *files, const cache_file *file)
{
    if (files->count == files->capacity) {
        size_t capacity = files->capacity ? 2 * files->capacity : 64;
        cache_file *items = realloc(files->items, capacity * sizeof *items);
        if (!items)
            return false;
        files->items = items;
        files->capacity = capacity;
    }
    files->items[files->count++] = *file;
    return true;
}

/* Ours in the folder, those of a kind or of all. false: no memory, or it cannot be read. */
static bool read_folder(int folder, int kind, cache_files *files)
{
    int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = again >= 0 ? fdopendir(again) : NULL;
    bool fine = entries != NULL;
    if (again >= 0 && !entries)
        close(again);
    for (struct dirent *entry; fine && (entry = readdir(entries));) {
        cache_file file;
        struct stat st;
        if (!parse_name(entry->d_name, &file) || (kind != ALL_KINDS && file.kind != kind) ||
            fstatat(folder, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode) ||
            st.st_uid != geteuid())
            continue;
        strcpy(file.name, entry->d_name); // NOLINT(clang-analyzer-security.insecureAPI.strcpy): parse_name looked
        file.used = st.st_mtim.tv_sec;
        file.bytes = st.st_size;
        fine = add_file(files, &file);
    }
    if (entries)
        closedir(entries);
    return fine;
}

/* ---- what may stay ------------------------------------------------------------------------------------------- */

typedef struct cache_bounds {
    int64_t seconds, files, bytes; /* unused for so long; all together                                 */
} cache_bounds;

static int by_use(const void *a, const void *b)
{
    const cache_file *x = a, *y = b;
    return (x->used > y->used) - (x->used < y->used);
}

static void remove_file(int folder, const cache_file *file, tn_cache_removed *removed)
{
    if (unlinkat(folder, file->name, 0) != 0)
        return;
    removed->files++;
    removed->bytes += file->bytes;
}

/* The longest unused go first. */
static void remove_beyond(int folder, cache_files *files, const cache_bounds *most, tn_cache_removed *removed)
{
    int64_t now = time(NULL), count = 0, bytes = 0;
    if (files->count > 0)
        qsort(files->items, files->count, sizeof *files->items, by_use);
    for (size_t i = 0; i < files->count; i++) {
        count += !files->items[i].unfinished;
        bytes += files->items[i].bytes;
    }
    for (size_t i = 0; i < files->count; i++) {
        const cache_file *file = &files->items[i];
        int64_t unused = now - file->used;
        if (file->unfinished ? unused <= UNFINISHED_SECONDS
                             : unused <= most->seconds && count <= most->files && bytes <= most->bytes)
            continue;
        remove_file(folder, file, removed);
        count -= !file->unfinished;
        bytes -= file->bytes;
    }
}

static bool is_beyond(const cache_files *files, const cache_bounds *most)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < files->count; i++)
        bytes += files->items[i].bytes;
    return (int64_t)files->count > most->files || bytes > most->bytes;
}

void cachefile_bound(int folder)
{
    cache_files files = {0};
    tn_cache_removed removed = {.size = sizeof removed};
    cache_bounds most = {MOST_DAYS * DAY_SECONDS, MOST_FILES, MOST_BYTES};
    if (read_folder(folder, ALL_KINDS, &files)) {
        if (is_beyond(&files, &most)) {
            most.files -= most.files / ROOM;
            most.bytes -= most.bytes / ROOM;
        }
        remove_beyond(folder, &files, &most, &removed);
    }
    free(files.items);
}

/* ---- the interface --------------------------------------------------------------------------------------------- */

static tn_status no_memory(tn_error *err)
{
    return tn_fail(err, TN_E_MEMORY, "cache", "out of memory; close other programs");
}

char *tn_cache_folder(tn_error *err)
{
    char path[CACHEFILE_PATH];
    const char *why;
    int folder = cachefile_open(false, path, sizeof path, &why);
    if (folder >= 0)
        close(folder);
    if (!path[0]) {
        tn_fail(err, TN_E_INPUT, "cache", "there is no folder for it: %s; set one of them", why);
        return NULL;
    }
    char *copy = strdup(path);
    if (!copy)
        no_memory(err);
    return copy;
}

/* What is in the folder, whose descriptor is -1 where it is missing. */
static tn_status open_files(int kind, int *folder, cache_files *files, tn_error *err)
{
    char path[CACHEFILE_PATH];
    const char *why;
    *folder = cachefile_open(false, path, sizeof path, &why);
    if (*folder < 0 && why)
        return tn_fail(err, TN_E_INPUT, path[0] ? path : "cache", "the cache cannot be used: %s; see XDG_CACHE_HOME",
                       why);
    if (*folder >= 0 && !read_folder(*folder, kind, files))
        return tn_fail(err, TN_E_MEMORY, path, "the cache cannot be read; free some memory");
    return TN_OK;
}

static void close_files(int folder, cache_files *files)
{
    free(files->items);
    if (folder >= 0)
        close(folder);
}

static void count_file(const cache_file *file, tn_cache_kind *kind)
{
    kind->files++;
    kind->bytes += file->bytes;
    kind->oldest = kind->oldest == 0 || file->used < kind->oldest ? file->used : kind->oldest;
    kind->newest = file->used > kind->newest ? file->used : kind->newest;
}

tn_status tn_cache_list(tn_cache_kind ***list, size_t *count, tn_error *err)
{
    cache_files files = {0};
    int folder;
    if (!list || !count)
        return structs_missing(list ? "count" : "list", err);
    *list = NULL;
    *count = 0;
    tn_status status = open_files(ALL_KINDS, &folder, &files, err);
    tn_cache_kind **made = status == TN_OK ? structs_list(KINDS, sizeof **made) : NULL;
    if (status == TN_OK && !made)
        status = no_memory(err);
    for (int i = 0; made && i < KINDS; i++) {
        made[i]->name = kinds[i].name;
        made[i]->summary = kinds[i].summary;
    }
    for (size_t i = 0; made && i < files.count; i++)
        count_file(&files.items[i], made[files.items[i].kind]);
    *list = made;
    *count = made ? KINDS : 0;
    close_files(folder, &files);
    return status;
}

/* ALL_KINDS for NULL. */
static tn_status find_kind(const char *name, int *kind, tn_error *err)
{
    char all[256] = "";
    *kind = ALL_KINDS;
    for (int i = 0; name && i < KINDS; i++) {
        if (!strcmp(name, kinds[i].name))
            *kind = i;
        strcat(strcat(all, i ? ", " : ""), kinds[i].name);
    }
    if (name && *kind == ALL_KINDS)
        return tn_fail(err, TN_E_USAGE, "cache", "there is no kind '%s'; choose one of %s", name, all);
    return TN_OK;
}

/* bounds NULL: everything goes. */
static tn_status remove_files(const char *name, const cache_bounds *bounds, tn_cache_removed *given, tn_error *err)
{
    cache_files files = {0};
    tn_cache_removed removed = {.size = sizeof removed};
    int kind, folder = -1;
    tn_status status = given ? structs_check(given, "tn_cache_removed", err) : TN_OK;
    if (status == TN_OK)
        status = find_kind(name, &kind, err);
    if (status == TN_OK)
        status = open_files(kind, &folder, &files, err);
    if (status == TN_OK && bounds)
        remove_beyond(folder, &files, bounds, &removed);
    for (size_t i = 0; status == TN_OK && !bounds && i < files.count; i++)
        remove_file(folder, &files.items[i], &removed);
    close_files(folder, &files);
    if (status == TN_OK && given)
        status = structs_give(given, &removed, sizeof removed, "tn_cache_removed", err);
    return status;
}

tn_status tn_cache_clear(const char *kind, tn_cache_removed *removed, tn_error *err)
{
    return remove_files(kind, NULL, removed, err);
}

static int64_t limit_or(int64_t limit, int64_t otherwise)
{
    return limit > 0 ? limit : otherwise;
}

tn_status tn_cache_prune(const tn_cache_limits *given, tn_cache_removed *removed, tn_error *err)
{
    tn_cache_limits limits = {.size = sizeof limits};
    tn_status status = given ? structs_take(&limits, sizeof limits, given, "tn_cache_limits", err) : TN_OK;
    if (status != TN_OK)
        return status;
    if (limits.max_age_days < 0 || limits.max_bytes < 0 || limits.max_files < 0)
        return tn_fail(err, TN_E_USAGE, "cache", "a limit below 0; give a larger one, or 0 for the usual");
    int64_t days = limit_or(limits.max_age_days, MOST_DAYS);
    cache_bounds most = {days < INT64_MAX / DAY_SECONDS ? days * DAY_SECONDS : INT64_MAX,
                         limit_or(limits.max_files, MOST_FILES), limit_or(limits.max_bytes, MOST_BYTES)};
    return remove_files(limits.kind, &most, removed, err);
}
