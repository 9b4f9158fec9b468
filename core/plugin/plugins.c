/* The list of plugin files, loaded or not. Strings that callers have seen stay valid whatever later scans find. */
#include "plugin/plugins.h"

#include "base/structs.h"
#include "base/text.h"
#include "plugin/objects.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct {
    pthread_mutex_t lock;
    plugins_entry *entries;
    size_t count;
    char **strings; /* interned; never freed                                                      */
    size_t string_count;
    const char **libraries; /* that came in with plugins, by file name; interned                   */
    size_t library_count;
} list = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const char *intern_locked(const char *text)
{
    for (size_t i = 0; i < list.string_count; i++)
        if (strcmp(list.strings[i], text) == 0)
            return list.strings[i];
    char *copy = strdup(text);
    char **strings = copy ? realloc(list.strings, (list.string_count + 1) * sizeof *strings) : NULL;
    if (!strings) {
        free(copy);
        return NULL;
    }
    list.strings = strings;
    return list.strings[list.string_count++] = copy;
}

const char *plugins_intern(const char *text)
{
    pthread_mutex_lock(&list.lock);
    const char *interned = intern_locked(text);
    pthread_mutex_unlock(&list.lock);
    return interned;
}

static plugins_entry *find_locked(const char *file)
{
    for (size_t i = 0; i < list.count; i++)
        if (strcmp(list.entries[i].info.file, file) == 0)
            return &list.entries[i];
    return NULL;
}

static bool record_locked(const plugins_entry *entry)
{
    plugins_entry own = *entry;
    own.info.file = intern_locked(entry->info.file);
    own.info.name = intern_locked(entry->info.name);
    own.info.version = intern_locked(entry->info.version);
    own.info.reason = intern_locked(entry->info.reason);
    if (!own.info.file || !own.info.name || !own.info.version || !own.info.reason)
        return false;
    plugins_entry *at = find_locked(own.info.file);
    if (!at) {
        plugins_entry *entries = realloc(list.entries, (list.count + 1) * sizeof *entries);
        if (!entries)
            return false;
        list.entries = entries;
        at = &entries[list.count++];
    }
    *at = own;
    return true;
}

tn_status plugins_record(const plugins_entry *entry, tn_error *err)
{
    pthread_mutex_lock(&list.lock);
    bool done = record_locked(entry);
    pthread_mutex_unlock(&list.lock);
    return done ? TN_OK : tn_fail(err, TN_E_MEMORY, entry->info.file, "out of memory");
}

bool plugins_is_loaded(const char *file, uint64_t dev, uint64_t ino, const char *sha256)
{
    bool loaded = false;
    pthread_mutex_lock(&list.lock);
    for (size_t i = 0; i < list.count && !loaded; i++) {
        const plugins_entry *e = &list.entries[i];
        if (e->info.state == TN_PLUGIN_LOADED)
            loaded = (file && strcmp(e->info.file, file) == 0) || (ino != 0 && e->dev == dev && e->ino == ino) ||
                     (sha256 && sha256[0] && strcmp(e->info.sha256, sha256) == 0);
    }
    pthread_mutex_unlock(&list.lock);
    return loaded;
}

bool plugins_is_outdated(const char *file, const char *path)
{
    objects_file now = {.path = (char *)(uintptr_t)path};
    plugins_entry then = {0};
    pthread_mutex_lock(&list.lock);
    const plugins_entry *e = find_locked(file);
    if (e)
        then = *e;
    pthread_mutex_unlock(&list.lock);
    return then.identity[0] && objects_identity(path, now.identity) && strcmp(now.identity, then.identity) != 0 &&
           (!objects_hash(&now) || strcmp(now.sha256, then.info.sha256) != 0);
}

bool plugins_sha256(const char *file, char sha256[PLUGINS_SHA256])
{
    pthread_mutex_lock(&list.lock);
    const plugins_entry *e = find_locked(file);
    sha256[0] = '\0';
    if (e)
        memcpy(sha256, e->info.sha256, PLUGINS_SHA256);
    pthread_mutex_unlock(&list.lock);
    return sha256[0];
}

tn_status plugins_check_locked_out(tn_error *err)
{
    tn_status status = TN_OK;
    pthread_mutex_lock(&list.lock);
    for (size_t i = 0; i < list.count && status == TN_OK; i++)
        if (list.entries[i].locked_out)
            status = tn_fail(err, TN_E_KERNEL, list.entries[i].info.file, "%s", list.entries[i].info.reason);
    pthread_mutex_unlock(&list.lock);
    return status;
}

void plugins_forget_locked_out(void)
{
    pthread_mutex_lock(&list.lock);
    for (size_t i = 0; i < list.count; i++)
        list.entries[i].locked_out = false;
    pthread_mutex_unlock(&list.lock);
}

void plugins_tell_refused(char *text, size_t size)
{
    text[0] = '\0';
    pthread_mutex_lock(&list.lock);
    for (size_t i = 0; i < list.count && !text[0]; i++) {
        const tn_plugin_info *info = &list.entries[i].info;
        if (info->state == TN_PLUGIN_REFUSED || info->state == TN_PLUGIN_QUARANTINED)
            text_cut(text, size, "; %s was not taken: %s", info->file, info->reason);
    }
    pthread_mutex_unlock(&list.lock);
}

static bool has_library_locked(const char *name)
{
    for (size_t i = 0; i < list.library_count; i++)
        if (strcmp(list.libraries[i], name) == 0)
            return true;
    return false;
}

void plugins_add_library(const char *name)
{
    pthread_mutex_lock(&list.lock);
    const char **libraries = NULL, *own = has_library_locked(name) ? NULL : intern_locked(name);
    if (own && (libraries = realloc(list.libraries, (list.library_count + 1) * sizeof *libraries))) {
        list.libraries = libraries;
        libraries[list.library_count++] = own;
    }
    pthread_mutex_unlock(&list.lock);
}

bool plugins_has_library(const char *name)
{
    pthread_mutex_lock(&list.lock);
    bool has = has_library_locked(name);
    pthread_mutex_unlock(&list.lock);
    return has;
}

size_t tn_plugin_count(void)
{
    pthread_mutex_lock(&list.lock);
    size_t count = list.count;
    pthread_mutex_unlock(&list.lock);
    return count;
}

tn_status tn_plugin_get(size_t index, tn_plugin_info *info)
{
    pthread_mutex_lock(&list.lock);
    tn_status status = index < list.count ? TN_OK : TN_E_USAGE;
    if (status == TN_OK)
        status = structs_give(info, &list.entries[index].info, sizeof *info, "tn_plugin_info", NULL);
    pthread_mutex_unlock(&list.lock);
    return status;
}
