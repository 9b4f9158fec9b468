/* The libraries that a process has loaded, and what comes in with a plugin. */
#include "plugin/objects.h"

#include "base/mapped.h"
#include "base/text.h"
#include "base/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- files ------------------------------------------------------------------------------------------------------ */

void objects_describe(const struct stat *st, char identity[128])
{
    snprintf(identity, 128, "%llu:%llu:%lld:%lld.%09ld:%lld.%09ld", (unsigned long long)st->st_dev,
             (unsigned long long)st->st_ino, (long long)st->st_size, (long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec,
             (long long)st->st_ctim.tv_sec, st->st_ctim.tv_nsec);
}

bool objects_identity(const char *path, char identity[128])
{
    struct stat st;
    if (stat(path, &st) != 0)
        return false;
    objects_describe(&st, identity);
    return true;
}

bool objects_unchanged(const objects_list *list)
{
    char identity[128];
    for (size_t i = 0; i < list->count; i++)
        if (!objects_identity(list->files[i].path, identity) || strcmp(identity, list->files[i].identity) != 0)
            return false;
    return true;
}

const objects_file *objects_find(const objects_list *list, const char *path)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->files[i].path, path) == 0)
            return &list->files[i];
    return NULL;
}

bool objects_hash(objects_file *file)
{
    int fd = file->sha256[0] ? -1 : open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    char identity[128];
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
        mapped *content = mapped_open(fd, file->path, (size_t)st.st_size, NULL);
        objects_describe(&st, identity);
        if (!content || strcmp(identity, file->identity) != 0 ||
            !sha256_hex(mapped_data(content), (size_t)st.st_size, file->sha256) || mapped_check(content, NULL) != TN_OK)
            file->sha256[0] = '\0';
        mapped_close(content);
    }
    if (fd >= 0)
        close(fd);
    return file->sha256[0] != '\0';
}

/* Times of files go in steps of some milliseconds. */
static bool changed_lately(const char *path)
{
    enum { SECONDS = 10 };
    struct stat st;
    time_t now = time(NULL);
    return stat(path, &st) != 0 || st.st_ctim.tv_sec > now - SECONDS;
}

bool objects_is_same(const objects_file *file)
{
    objects_file now = {.path = file->path};
    if (!objects_identity(file->path, now.identity) || strcmp(now.identity, file->identity) != 0)
        return false;
    return !changed_lately(file->path) || (objects_hash(&now) && strcmp(now.sha256, file->sha256) == 0);
}

tn_status objects_add(objects_list *list, const char *path, tn_error *err)
{
    objects_file file = {.path = realpath(path, NULL)};
    if (!file.path)
        return tn_fail(err, errno == ENOMEM ? TN_E_MEMORY : TN_E_KERNEL, path, "cannot be read: %s", strerror(errno));
    if (objects_find(list, file.path)) {
        free(file.path);
        return TN_OK;
    }
    objects_file *files = realloc(list->files, (list->count + 1) * sizeof *files);
    if (files)
        list->files = files;
    if (!files || !objects_identity(file.path, file.identity)) {
        free(file.path);
        return files ? tn_fail(err, TN_E_KERNEL, path, "cannot be read")
                     : tn_fail(err, TN_E_MEMORY, path, "out of memory");
    }
    list->files[list->count++] = file;
    return TN_OK;
}

void objects_free(objects_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->files[i].path);
    free(list->files);
    *list = (objects_list){0};
}

/* ---- of this process -------------------------------------------------------------------------------------------- */

bool objects_is_full(const objects_loaded *loaded)
{
    return loaded->count == sizeof loaded->headers / sizeof loaded->headers[0];
}

bool objects_is_new(const objects_loaded *before, const void *headers)
{
    for (size_t i = 0; i < before->count; i++)
        if (before->headers[i] == (uintptr_t)headers)
            return false;
    return true;
}

static int look(struct dl_phdr_info *info, size_t size, void *arg)
{
    objects_loaded *loaded = arg;
    (void)size;
    if (objects_is_full(loaded))
        return 1;
    loaded->headers[loaded->count++] = (uintptr_t)info->dlpi_phdr;
    return 0;
}

void objects_look(objects_loaded *loaded)
{
    loaded->count = 0;
    dl_iterate_phdr(look, loaded);
}

typedef struct naming {
    const objects_loaded *before;
    const char *own;
    char *names;
    size_t size, used, count;
    bool full;
} naming;

static int add_name(struct dl_phdr_info *info, size_t size, void *arg)
{
    naming *n = arg;
    const char *name = info->dlpi_name ? info->dlpi_name : "";
    size_t length = strlen(name) + 1;
    (void)size;
    if (!objects_is_new(n->before, info->dlpi_phdr) || strcmp(name, n->own) == 0)
        return 0;
    n->full = n->full || length > n->size - n->used;
    if (n->full)
        return 1;
    memcpy(n->names + n->used, name, length);
    n->used += length;
    n->count++;
    return 0;
}

bool objects_new_names(const objects_loaded *before, const char *own, char *names, size_t size, size_t *count)
{
    naming n = {.before = before, .own = own, .names = names, .size = size};
    dl_iterate_phdr(add_name, &n);
    *count = n.count;
    return !n.full && !objects_is_full(before);
}

/* ---- how they end ----------------------------------------------------------------------------------------------- */

typedef struct ending {
    const objects_loaded *before;
    struct {
        const ElfW(Dyn) * dynamic;
        uintptr_t base;
    } libraries[256];
    size_t count;
} ending;

static int add_ending(struct dl_phdr_info *info, size_t size, void *arg)
{
    ending *e = arg;
    (void)size;
    for (size_t i = 0; i < info->dlpi_phnum && e->count < sizeof e->libraries / sizeof e->libraries[0]; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC && objects_is_new(e->before, info->dlpi_phdr)) {
            uintptr_t at = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            e->libraries[e->count].dynamic = (const ElfW(Dyn) *)at;
            e->libraries[e->count++].base = info->dlpi_addr;
        }
    return 0;
}

/* The list backwards, then the older single function. */
static void finish(const ElfW(Dyn) * dynamic, uintptr_t base)
{
    void (**list)(void) = NULL, (*last)(void) = NULL;
    size_t bytes = 0;
    for (const ElfW(Dyn) *d = dynamic; d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_FINI_ARRAY)
            list = (void (**)(void))(base + d->d_un.d_ptr);
        if (d->d_tag == DT_FINI_ARRAYSZ)
            bytes = d->d_un.d_val;
        if (d->d_tag == DT_FINI)
            last = (void (*)(void))(base + d->d_un.d_ptr);
    }
    for (size_t i = list ? bytes / sizeof *list : 0; i > 0; i--)
        list[i - 1]();
    if (last)
        last();
}

void objects_finish(const objects_loaded *before)
{
    static ending e;
    e = (ending){.before = before};
    dl_iterate_phdr(add_ending, &e);
    /* The plugin comes before what it needs, in the list and at the end. */
    for (size_t i = 0; i < e.count; i++)
        finish(e.libraries[i].dynamic, e.libraries[i].base);
}

/* ---- what decides where they come from -------------------------------------------------------------------------- */

/* Every library that was ever seen here, with its identity of then: what lies at its path may be another by now. */
static struct {
    pthread_mutex_t lock;
    objects_loaded loaded;
    text lines;
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int see(struct dl_phdr_info *info, size_t size, void *arg)
{
    char identity[128] = "";
    const char *name = info->dlpi_name && info->dlpi_name[0] ? info->dlpi_name : "/proc/self/exe";
    (void)size, (void)arg;
    if (!objects_is_new(&seen.loaded, info->dlpi_phdr))
        return 0;
    if (objects_is_full(&seen.loaded))
        return 1;
    seen.loaded.headers[seen.loaded.count++] = (uintptr_t)info->dlpi_phdr;
    objects_identity(name, identity);
    text_add(&seen.lines, "%s %s\n", name, identity);
    return 0;
}

bool objects_surroundings(char sha256[65])
{
    text all = {0};
    char cache[128] = "";
    const char *path = getenv("LD_LIBRARY_PATH");
    objects_identity("/etc/ld.so.cache", cache);
    pthread_mutex_lock(&seen.lock);
    dl_iterate_phdr(see, NULL);
    bool whole = !seen.lines.failed && !objects_is_full(&seen.loaded);
    text_add(&all, "%s%s\n%s\n", whole ? seen.lines.data : "", path ? path : "", cache);
    pthread_mutex_unlock(&seen.lock);
    bool done = whole && !all.failed && sha256_hex(all.data, all.length, sha256);
    free(all.data);
    return done;
}
