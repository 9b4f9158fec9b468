/* Digests of the code that computes, for locks. */
#include "plugin/lock_code.h"

#include "base/file.h"
#include "plugin/objects.h"
#include "plugin/plugins.h"
#include "plugin/writers.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* ---- what there is --------------------------------------------------------------------------------------- */

/* By number, of those that are loaded from a file; false: there are no more. */
static bool next_plugin(size_t *index, tn_plugin_info *info)
{
    for (; *info = (tn_plugin_info){.size = sizeof *info}, tn_plugin_get(*index, info) == TN_OK; (*index)++)
        if (info->state == TN_PLUGIN_LOADED && info->sha256[0]) {
            (*index)++;
            return true;
        }
    return false;
}

static bool is_plugin(const char *sha256)
{
    tn_plugin_info info;
    for (size_t i = 0; next_plugin(&i, &info);)
        if (strcmp(info.sha256, sha256) == 0)
            return true;
    return false;
}

/* A library of the system's (where that is not known: no, with errno), and not below a folder of plugins, which may be
 * installed there. */
static bool is_system(const char *path)
{
    tn_plugin_info info;
    for (size_t i = 0; next_plugin(&i, &info);) {
        size_t folder = (size_t)(base_name(info.file) - info.file);
        if (strncmp(path, info.file, folder) == 0)
            return false;
    }
    return writers_is_system(path, NULL);
}

static tn_status hash(objects_file *file, tn_error *err)
{
    errno = 0;
    if (objects_hash(file))
        return TN_OK;
    return tn_fail(err, errno == ENOMEM ? TN_E_MEMORY : TN_E_KERNEL, file->path,
                   "cannot be read, or changed since it was opened");
}

/* The file that this very code lies in; of a program that holds the library itself that is the program. */
static tn_status own_library(objects_list *list, tn_error *err)
{
    Dl_info info;
    static const char program[] = "/proc/self/exe";
    struct link_map *map = NULL;
    bool found = dladdr1((const void *)(uintptr_t)&lock_code_check, &info, (void **)&map, RTLD_DL_LINKMAP) && map;
    tn_status status = objects_add(list, found && map->l_name[0] ? map->l_name : program, err);
    return status == TN_OK ? hash(&list->files[0], err) : status;
}

typedef struct listing {
    objects_list *list;
    tn_error *err;
    tn_status status;
} listing;

static int add_object(struct dl_phdr_info *info, size_t size, void *arg)
{
    listing *l = arg;
    (void)size;
    if (info->dlpi_name && strchr(info->dlpi_name, '/')) /* not the program, nor the kernel's own one        */
        l->status = objects_add(l->list, info->dlpi_name, l->err);
    return l->status != TN_OK;
}

static bool is_library(const char *name)
{
    size_t n = strlen(name);
    return n > 3 && strcmp(name + n - 3, ".so") == 0;
}

/* What a plugin opens by itself when it is used lies in a folder of its name beside it. */
static tn_status add_helpers(objects_list *list, const char *plugin, tn_error *err)
{
    char folder[PATH_MAX];
    if (!is_library(plugin) || strlen(plugin) >= sizeof folder)
        return TN_OK;
    text_cut(folder, sizeof folder, "%.*s", (int)strlen(plugin) - 3, plugin);
    DIR *entries = opendir(folder);
    tn_status status = TN_OK;
    if (!entries && errno != ENOENT && errno != ENOTDIR)
        status =
            tn_fail(err, errno == ENOMEM ? TN_E_MEMORY : TN_E_KERNEL, folder, "cannot be read: %s", strerror(errno));
    for (const struct dirent *e; entries && status == TN_OK && (e = readdir(entries));) {
        char *path = is_library(e->d_name) ? file_join(folder, e->d_name) : NULL;
        if (path)
            status = objects_add(list, path, err);
        else if (is_library(e->d_name))
            status = tn_fail(err, TN_E_MEMORY, folder, "out of memory");
        free(path);
    }
    if (entries)
        closedir(entries);
    return status;
}

/* The libraries of the process that a lock has, with their digests; the first is this one. */
static tn_status find_libraries(objects_list *list, bool helpers, tn_error *err)
{
    tn_plugin_info info;
    tn_status status = own_library(list, err);
    listing all = {.list = list, .err = err, .status = status};
    if (status == TN_OK)
        dl_iterate_phdr(add_object, &all);
    status = all.status;
    for (size_t i = 0; helpers && status == TN_OK && next_plugin(&i, &info);)
        status = add_helpers(list, info.file, err);
    size_t kept = 1;
    for (size_t i = 1; i < list->count; i++) {
        objects_file *file = &list->files[i];
        errno = 0;
        bool wanted = status == TN_OK && !is_system(file->path);
        if (wanted && errno != 0)
            status = tn_fail(err, TN_E_KERNEL, file->path, "cannot be looked at: %s", strerror(errno));
        else if (wanted)
            status = hash(file, err);
        if (wanted && status == TN_OK && !is_plugin(file->sha256)) {
            objects_file keep = *file; /* behind those that were kept the others stay, to be freed          */
            *file = list->files[kept];
            list->files[kept++] = keep;
        }
    }
    for (size_t i = kept; i < list->count; i++)
        free(list->files[i].path);
    list->count = list->count ? kept : 0;
    return status;
}

/* ---- telling ----------------------------------------------------------------------------------------------- */

typedef struct code {
    char name[256], sha256[SHA256_HEX];
} code;

static int compare_codes(const void *a, const void *b)
{
    const code *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : strcmp(x->sha256, y->sha256);
}

static void set_code(code *c, const char *file, const char *sha256)
{
    text_cut(c->name, sizeof c->name, "%s", base_name(file));
    memcpy(c->sha256, sha256, sizeof c->sha256);
}

/* A name stands for one content. */
static tn_status tell(const char *key, code *codes, size_t count, text *out, tn_error *err)
{
    tn_status status = TN_OK;
    bool any = false;
    if (count)
        qsort(codes, count, sizeof *codes, compare_codes);
    text_add(out, "  \"%s\": [", key);
    for (size_t i = 0; i < count && status == TN_OK; i++) {
        if (i && compare_codes(&codes[i], &codes[i - 1]) == 0)
            continue;
        if (i && strcmp(codes[i].name, codes[i - 1].name) == 0)
            status = tn_fail(err, TN_E_KERNEL, codes[i].name,
                             "is the name of two files, and a lock knows them by their names; rename one");
        text_add(out, "%s\n    {\"file\": ", any ? "," : "");
        text_add_quoted(out, codes[i].name);
        text_add(out, ", \"sha256\": \"%s\"}", codes[i].sha256);
        any = true;
    }
    text_add(out, "%s],\n", any ? "\n  " : "");
    return status;
}

static tn_status tell_plugins(text *out, tn_error *err)
{
    size_t room = tn_plugin_count(), count = 0;
    tn_plugin_info info;
    code *codes = calloc(room + 1, sizeof *codes);
    if (!codes)
        return tn_fail(err, TN_E_MEMORY, "plugins", "out of memory");
    for (size_t i = 0; count < room && next_plugin(&i, &info); count++)
        set_code(&codes[count], info.file, info.sha256);
    tn_status status = tell("plugins", codes, count, out, err);
    free(codes);
    return status;
}

static tn_status tell_libraries(const objects_list *list, text *out, tn_error *err)
{
    code *codes = calloc(list->count, sizeof *codes);
    if (!codes)
        return tn_fail(err, TN_E_MEMORY, "libraries", "out of memory");
    for (size_t i = 1; i < list->count; i++)
        set_code(&codes[i - 1], list->files[i].path, list->files[i].sha256);
    tn_status status = tell("libraries", codes, list->count - 1, out, err);
    free(codes);
    return status;
}

/* A lock without a plugin that could not be used would refuse it where it can. */
static tn_status check_refused(tn_error *err)
{
    tn_plugin_info info = {.size = sizeof info};
    for (size_t i = 0; tn_plugin_get(i, &info) == TN_OK; i++)
        if (info.state == TN_PLUGIN_REFUSED || info.state == TN_PLUGIN_QUARANTINED)
            return tn_fail(err, TN_E_KERNEL, info.file,
                           "%s; a lock wants plugins that can be used: remove it, or name "
                           "other folders",
                           info.reason);
    return TN_OK;
}

tn_status lock_code_tell(text *out, tn_error *err)
{
    objects_list list = {0};
    tn_status status = check_refused(err);
    if (status == TN_OK)
        status = find_libraries(&list, true, err);
    if (status == TN_OK)
        text_add(out, "  \"version\": \"%s\",\n  \"library\": \"%s\",\n", TN_VERSION, list.files[0].sha256);
    if (status == TN_OK)
        status = tell_plugins(out, err);
    if (status == TN_OK)
        status = tell_libraries(&list, out, err);
    objects_free(&list);
    return status;
}

/* ---- comparing ------------------------------------------------------------------------------------------------ */

tn_status lock_code_find(const lockfile *lock, const lockfile_codes *codes, const char *where, const char *name,
                         const char *sha256, tn_error *err)
{
    const char *locked = lockfile_digest(codes, name);
    if (!locked)
        return tn_fail(err, TN_E_KERNEL, where, "is not in the lock %s; remove it, or write the lock anew", lock->path);
    if (strcmp(locked, sha256) != 0)
        return tn_fail(err, TN_E_KERNEL, where, "is sha256:%s, in the lock %s sha256:%s; restore the file", sha256,
                       lock->path, locked);
    return TN_OK;
}

tn_status lock_code_check(const lockfile *lock, tn_error *err)
{
    objects_list list = {0};
    tn_plugin_info info;
    if (strcmp(lock->version, TN_VERSION) != 0)
        return tn_fail(err, TN_E_KERNEL, "libtenon", "is version %s, in the lock %s %s; use that one, or lock anew",
                       TN_VERSION, lock->path, lock->version);
    tn_status status = plugins_check_locked_out(err);
    if (status == TN_OK)
        status = find_libraries(&list, false, err);
    if (status == TN_OK && strcmp(list.files[0].sha256, lock->library) != 0)
        status = tn_fail(err, TN_E_KERNEL, list.files[0].path,
                         "is sha256:%s, in the lock %s sha256:%s; use that build, or lock anew", list.files[0].sha256,
                         lock->path, lock->library);
    for (size_t i = 0; status == TN_OK && next_plugin(&i, &info);)
        status = lock_code_find(lock, &lock->plugins, info.file, base_name(info.file), info.sha256, err);
    for (size_t i = 1; status == TN_OK && i < list.count; i++)
        status = lock_code_find(lock, &lock->libraries, list.files[i].path, base_name(list.files[i].path),
                                list.files[i].sha256, err);
    objects_free(&list);
    return status;
}

static tn_status add_missing(const lockfile *lock, const lockfile_code *code, tn_error *err)
{
    char reason[512];
    text_cut(reason, sizeof reason, "is in the lock %s, and no such plugin was loaded; see tenon kernels, or lock anew",
             lock->path);
    const plugins_entry entry = {
        .info = {.file = code->file, .name = "", .version = "", .state = TN_PLUGIN_REFUSED, .reason = reason},
        .locked_out = true};
    return plugins_record(&entry, err);
}

tn_status lock_code_complete(const lockfile *lock, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < lock->plugins.count && status == TN_OK; i++)
        if (!is_plugin(lock->plugins.list[i].sha256))
            status = add_missing(lock, &lock->plugins.list[i], err);
    return status;
}
