/* Scanning folders for plugins. Every file ends as one entry of plugins.c: loaded, or with the reason why not. The
 * steps for one file, each of which can end it: who may write it, its pin, its note, its trial in a child, opening it
 * here, registering it. */
#include "plugin/loader.h"
#include "plugin/plugins.h"
#include "plugin/registry.h"
#include "plugin/sha256.h"
#include "plugin/trial.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BYTES_MAX ((off_t)256 << 20)

/* Opening a library is one thread's work at a time: libltdl keeps its list without a lock. */
static pthread_mutex_t scanning = PTHREAD_MUTEX_INITIALIZER;

/* One file on its way. */
typedef struct candidate {
    const char *folder;  /* absolute, without links                                               */
    const char *name;    /* in the folder                                                         */
    char file[PATH_MAX]; /* folder/name: how it is listed                                         */
    char path[PATH_MAX]; /* what is opened: a link's target                                       */
    struct stat st;
    elfnote note;
    char sha256[65];
    char warning[256]; /* what its constructor changed                                            */
    bool named;        /* the user named this very file: no rules for folders, no earlier verdict      */
} candidate;

/* ---- who may write there ------------------------------------------------------------------------------- */

static tn_status check_writers(const struct stat *st, const char *path, tn_error *err)
{
    if (st->st_uid != 0 && st->st_uid != geteuid())
        return tn_fail(err, TN_E_KERNEL, path,
                       "owned by user %ld, not by root or you; plugins from there are not loaded", (long)st->st_uid);
    if (st->st_mode & (S_IWGRP | S_IWOTH))
        return tn_fail(err, TN_E_KERNEL, path, "writable by %s; run chmod go-w on it",
                       st->st_mode & S_IWOTH ? "everyone" : "its group");
    return TN_OK;
}

/* Follows a link, which must stay in the folder. */
static tn_status resolve(candidate *c, tn_error *err)
{
    struct stat st;
    if (lstat(c->file, &st) != 0)
        return tn_fail(err, TN_E_KERNEL, c->file, "cannot be read: %s", strerror(errno));
    snprintf(c->path, sizeof c->path, "%s", c->file);
    if (!S_ISLNK(st.st_mode))
        return TN_OK;
    char *target = realpath(c->file, NULL);
    if (!target)
        return tn_fail(err, TN_E_KERNEL, c->file, "a link that leads nowhere: %s", strerror(errno));
    const char *slash = strrchr(target, '/');
    size_t n = (size_t)(slash - target);
    bool inside = strlen(c->folder) == n && strncmp(target, c->folder, n) == 0;
    tn_status status = TN_OK;
    if (!inside)
        status = tn_fail(err, TN_E_KERNEL, c->file, "a link out of its folder, to %s; copy the file instead", target);
    else
        snprintf(c->path, sizeof c->path, "%s", target);
    free(target);
    return status;
}

/* ---- content --------------------------------------------------------------------------------------------- */

static tn_status read_all(int fd, const candidate *c, char **content, tn_error *err)
{
    size_t size = (size_t)c->st.st_size, at = 0;
    *content = malloc(size ? size : 1);
    if (!*content)
        return tn_fail(err, TN_E_MEMORY, c->file, "out of memory");
    while (at < size) {
        ssize_t n = read(fd, *content + at, size - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            free(*content);
            *content = NULL;
            return tn_fail(err, TN_E_KERNEL, c->file, "cannot be read: %s", n < 0 ? strerror(errno) : "it shrank");
        }
        at += (size_t)n;
    }
    return TN_OK;
}

/* Opens, checks and reads the file. content is owned. */
static tn_status read_candidate(candidate *c, char **content, tn_error *err)
{
    tn_status status = resolve(c, err);
    if (status != TN_OK)
        return status;
    int fd = open(c->path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return tn_fail(err, TN_E_KERNEL, c->file, "cannot be read: %s", strerror(errno));
    if (fstat(fd, &c->st) != 0)
        status = tn_fail(err, TN_E_KERNEL, c->file, "cannot be read: %s", strerror(errno));
    else if (!S_ISREG(c->st.st_mode))
        status = tn_fail(err, TN_DECLINED, c->file, "not a regular file; not a plugin");
    else if (c->st.st_size > FILE_BYTES_MAX)
        status = tn_fail(err, TN_E_KERNEL, c->file, "larger than %lld MiB; plugins are not",
                         (long long)(FILE_BYTES_MAX >> 20));
    else if (!c->named)
        status = check_writers(&c->st, c->file, err);
    if (status == TN_OK)
        status = read_all(fd, c, content, err);
    close(fd);
    return status;
}

static tn_status check_pin(const candidate *c, const tn_config *config, tn_error *err)
{
    if (c->named || !kernels_config_has_pins(config))
        return TN_OK;
    const char *pin = kernels_config_pin(config, c->name);
    if (!pin)
        return tn_fail(err, TN_E_KERNEL, c->file,
                       "not pinned while other files are; to allow it add \"%s\": \"sha256:%s\" to pins", c->name,
                       c->sha256);
    if (strncmp(pin, "sha256:", 7) != 0 || strcasecmp(pin + 7, c->sha256) != 0)
        return tn_fail(err, TN_E_KERNEL, c->file,
                       "pin mismatch: expected %s, got sha256:%s; restore the file or its pin", pin, c->sha256);
    return TN_OK;
}

/* ---- opening ------------------------------------------------------------------------------------------------ */

/* The file that was read is still the one at its path: what is opened is what was tried. */
static tn_status check_unchanged(const candidate *c, tn_error *err)
{
    struct stat now;
    if (stat(c->path, &now) != 0 || now.st_dev != c->st.st_dev || now.st_ino != c->st.st_ino ||
        now.st_size != c->st.st_size || now.st_ctim.tv_sec != c->st.st_ctim.tv_sec ||
        now.st_ctim.tv_nsec != c->st.st_ctim.tv_nsec)
        return tn_fail(err, TN_E_KERNEL, c->file, "it changed while it was being examined; scan again");
    return TN_OK;
}

static tn_plugin_state try_in_child(const candidate *c, tn_error *err)
{
    trial_verdict verdict;
    if (c->named || !verdict_load(c->sha256, &verdict)) {
        trial_run(c->path, &c->note, trial_seconds(), &verdict);
        verdict_store(c->sha256, &verdict);
    }
    if (verdict.state != TN_PLUGIN_LOADED)
        tn_fail(err, TN_E_KERNEL, c->file, "%s", verdict.reason);
    return verdict.state;
}

static tn_status open_and_register(candidate *c, const tn_plugin *foreign, tn_error *err)
{
    stage staged;
    char changed[200];
    tn_status status = loader_open(c->path, &staged, changed, sizeof changed, err);
    if (changed[0])
        snprintf(c->warning, sizeof c->warning, "its constructor changed: %s; put back", changed);
    if (status != TN_OK)
        return status;
    if (staged.count == 0 && foreign)
        staged = (stage){.plugin = foreign, .count = 1};
    if (staged.count != 1)
        return tn_fail(err, TN_E_KERNEL, c->file, "it registered %zu times; once is needed", staged.count);
    descriptor *d = descriptor_read(staged.plugin, &c->note, c->file, err);
    if (!d)
        return TN_E_KERNEL;
    status = registry_add(d, c->file, err);
    if (status != TN_OK)
        descriptor_free(d);
    return status;
}

/* Takes the candidate as far as it goes. known: it is loaded already, under this or another name. */
static tn_plugin_state load(candidate *c, const tn_config *config, bool *known, tn_error *err)
{
    char *content = NULL;
    tn_status status = read_candidate(c, &content, err);
    if (status == TN_OK && !sha256_hex(content, (size_t)c->st.st_size, c->sha256))
        status = tn_fail(err, TN_E_INTERNAL, c->file, "libcrypto cannot compute SHA-256");
    if (status == TN_OK)
        status = check_pin(c, config, err);
    if (status == TN_OK)
        *known = plugins_is_loaded(NULL, (uint64_t)c->st.st_dev, (uint64_t)c->st.st_ino, c->sha256);
    if (status == TN_OK && !*known)
        status = elfnote_read(content, (size_t)c->st.st_size, c->file, &c->note, err);
    free(content);
    if (status != TN_OK || *known)
        return status == TN_DECLINED ? TN_PLUGIN_SKIPPED : TN_PLUGIN_REFUSED;
    /* What the program itself has opened already has nothing left to show in a trial. */
    const tn_plugin *foreign = stage_foreign_in((uint64_t)c->st.st_dev, (uint64_t)c->st.st_ino);
    if (!foreign) {
        tn_plugin_state tried = try_in_child(c, err);
        if (tried != TN_PLUGIN_LOADED)
            return tried;
    }
    if (check_unchanged(c, err) != TN_OK || open_and_register(c, foreign, err) != TN_OK)
        return TN_PLUGIN_REFUSED;
    stage_foreign_take(foreign);
    return TN_PLUGIN_LOADED;
}

/* Loads it and notes what became of it, unless it is known. */
static tn_status load_and_record(candidate *c, const tn_config *config, tn_plugin_state *state, tn_error *why,
                                 tn_error *err)
{
    bool known = false;
    *state = load(c, config, &known, why);
    plugins_entry entry = {.info = {.file = c->file,
                                    .name = c->note.name,
                                    .version = c->note.version,
                                    .state = *state,
                                    .reason = *state == TN_PLUGIN_LOADED ? c->warning : why->message},
                           .dev = (uint64_t)c->st.st_dev,
                           .ino = (uint64_t)c->st.st_ino};
    memcpy(entry.info.sha256, c->sha256, sizeof c->sha256);
    if (known)
        *state = TN_PLUGIN_LOADED;
    return known ? TN_OK : plugins_record(&entry, err);
}

static tn_status scan_file(const char *folder, const char *name, const tn_config *config, tn_error *err)
{
    candidate *c = calloc(1, sizeof *c);
    if (!c)
        return tn_fail(err, TN_E_MEMORY, folder, "out of memory");
    c->folder = folder;
    c->name = name;
    int n = snprintf(c->file, sizeof c->file, "%s/%s", folder, name);
    tn_status status = TN_OK;
    tn_plugin_state state;
    tn_error why = TN_ERROR_INIT;
    if (n >= 0 && (size_t)n < sizeof c->file && !plugins_is_loaded(c->file, 0, 0, NULL))
        status = load_and_record(c, config, &state, &why, err);
    free(c);
    return status;
}

/* ---- one file ---------------------------------------------------------------------------------------------------- */

/* The name that a loaded file is listed under: another one when the same content was loaded from elsewhere. */
static const char *name_of(const candidate *c)
{
    tn_plugin_info info = {.size = sizeof info};
    for (size_t i = 0; i < tn_plugin_count(); i++)
        if (tn_plugin_get(i, &info) == TN_OK && info.state == TN_PLUGIN_LOADED &&
            (!strcmp(info.file, c->file) || !strcmp(info.sha256, c->sha256)))
            return info.file;
    return NULL;
}

static tn_status load_named(candidate *c, const char **file, tn_error *err)
{
    tn_plugin_state state = TN_PLUGIN_LOADED;
    tn_error why = TN_ERROR_INIT;
    tn_status status = TN_OK;
    if (!plugins_is_loaded(c->file, 0, 0, NULL))
        status = load_and_record(c, NULL, &state, &why, err);
    if (status == TN_OK && state != TN_PLUGIN_LOADED)
        status = tn_fail(err, TN_E_KERNEL, c->file, "no usable plugin: %s", why.message);
    if (status == TN_OK && !(*file = name_of(c)))
        status = tn_fail(err, TN_E_INTERNAL, c->file, "it was loaded and is not listed");
    return status;
}

tn_status folders_load_file(const char *path, const char **file, tn_error *err)
{
    char *real = realpath(path, NULL);
    candidate *c = calloc(1, sizeof *c);
    tn_status status = TN_OK;
    if (!real)
        status = tn_fail(err, TN_E_KERNEL, path, "cannot be read: %s", strerror(errno));
    else if (!c)
        status = tn_fail(err, TN_E_MEMORY, path, "out of memory");
    if (status == TN_OK) {
        snprintf(c->file, sizeof c->file, "%s", real);
        c->name = strrchr(c->file, '/') + 1;
        c->named = true;
        pthread_mutex_lock(&scanning);
        status = load_named(c, file, err);
        pthread_mutex_unlock(&scanning);
    }
    free(c);
    free(real);
    return status;
}

/* ---- folders --------------------------------------------------------------------------------------------------- */

static int is_library(const struct dirent *entry)
{
    size_t n = strlen(entry->d_name);
    return entry->d_name[0] != '.' && n > 3 && strcmp(entry->d_name + n - 3, ".so") == 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static tn_status scan_folder(const char *folder, const tn_config *config, tn_error *err)
{
    struct stat st;
    if (folder[0] != '/')
        return tn_fail(err, TN_E_KERNEL, folder, "not an absolute path; plugin folders are given from the root");
    char *real = realpath(folder, NULL);
    if (!real || stat(real, &st) != 0) {
        free(real);
        return tn_fail(err, TN_E_KERNEL, folder, "plugin folder cannot be opened: %s; correct or remove it",
                       strerror(errno));
    }
    tn_status status = S_ISDIR(st.st_mode)
                           ? check_writers(&st, folder, err)
                           : tn_fail(err, TN_E_KERNEL, folder, "not a folder; give the plugins' folder");
    struct dirent **entries = NULL;
    int n = status == TN_OK ? scandir(real, &entries, is_library, by_name) : 0;
    if (n < 0)
        status = tn_fail(err, TN_E_KERNEL, folder, "plugin folder cannot be read: %s", strerror(errno));
    for (int i = 0; i < n; i++) {
        if (status == TN_OK)
            status = scan_file(real, entries[i]->d_name, config, err);
        free(entries[i]);
    }
    free(entries);
    free(real);
    return status;
}

/* Registers a plugin that is part of the program: nothing to try, but the same rules for its descriptor. */
static tn_status take_one(const tn_plugin *plugin, const char *file, size_t number, tn_error *err)
{
    char name[PATH_MAX + 32];
    struct stat st = {0};
    (void)!stat(file, &st);
    char *real = realpath(file, NULL);
    snprintf(name, sizeof name, "%s (linked plugin %zu)", real ? real : file, number);
    free(real);
    plugins_entry entry = {.info = {.file = name, .name = "", .version = "", .reason = ""},
                           .dev = (uint64_t)st.st_dev,
                           .ino = (uint64_t)st.st_ino};
    tn_error why = TN_ERROR_INIT;
    descriptor *d = descriptor_read(plugin, NULL, name, &why);
    if (d) {
        entry.info.name = d->plugin.name;
        entry.info.version = d->plugin.version;
    }
    bool refused = d && registry_add(d, name, &why) != TN_OK;
    entry.info.state = why.code == TN_OK ? TN_PLUGIN_LOADED : TN_PLUGIN_REFUSED;
    entry.info.reason = why.message;
    tn_status status = plugins_record(&entry, err);
    if (refused)
        descriptor_free(d); /* which holds the name                                               */
    return status;
}

static tn_status take_foreign(tn_error *err)
{
    const tn_plugin *plugin;
    const char *file;
    size_t index = 0;
    tn_status status = TN_OK;
    while (status == TN_OK && (plugin = stage_foreign_next(&index, &file))) {
        stage_foreign_take(plugin);
        status = take_one(plugin, file, index, err);
    }
    return status;
}

tn_status tn_scan(const tn_config *config, tn_error *err)
{
    tn_status status = TN_OK;
    pthread_mutex_lock(&scanning);
    for (size_t i = 0; config && i < kernels_config_folders(config); i++) {
        tn_status one = scan_folder(kernels_config_folder(config, i), config, err);
        status = status == TN_OK ? one : status;
    }
    tn_status linked = take_foreign(err);
    pthread_mutex_unlock(&scanning);
    return status == TN_OK ? linked : status;
}
