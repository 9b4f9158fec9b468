/* Scanning folders for plugins. Every file ends as one entry of plugins.c: loaded, or with the reason why not. All
 * files are examined before the first is opened here: what a plugin does to this process cannot spoil the trial of
 * another. */
#include "plugin/folders.h"

#include "base/notices.h"
#include "base/text.h"
#include "plugin/kernels_config.h"
#include "plugin/load.h"
#include "plugin/lock_code.h"
#include "plugin/plugins.h"
#include "plugin/stage.h"
#include "plugin/writers.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Opening a library is one thread's work at a time: libltdl keeps its list without a lock. */
static pthread_mutex_t scanning = PTHREAD_MUTEX_INITIALIZER;

/* ---- one file ---------------------------------------------------------------------------------------------------- */

/* The name that a loaded file is listed under: another one when the same content was loaded from elsewhere. */
static const char *name_of(const candidate *c)
{
    tn_plugin_info info = {.size = sizeof info};
    for (size_t i = 0; i < tn_plugin_count(); i++)
        if (tn_plugin_get(i, &info) == TN_OK && info.state == TN_PLUGIN_LOADED &&
            (!strcmp(info.file, c->shown) || !strcmp(info.sha256, c->sha256)))
            return info.file;
    return NULL;
}

static tn_status load_named(candidate *c, const char **file, tn_error *err)
{
    tn_status status = TN_OK;
    if (!plugins_is_loaded(c->shown, 0, 0, NULL)) {
        load_examine(c, NULL);
        load_open(c);
        status = candidate_record(c, err);
        if (status == TN_OK && c->state != TN_PLUGIN_LOADED)
            status = tn_fail(err, TN_E_KERNEL, c->file, "no usable plugin: %s", c->why.message);
    } else if (plugins_is_outdated(c->shown, c->file)) {
        status = tn_fail(err, TN_E_KERNEL, c->file,
                         "it changed since it was opened, and what was opened stays in use; start again");
    }
    if (status == TN_OK && !(*file = name_of(c)))
        status = tn_fail(err, TN_E_INTERNAL, c->file, "it was loaded and is not listed");
    return status;
}

tn_status folders_load_file(const char *path, const char **file, tn_error *err)
{
    char *real = realpath(path, NULL);
    candidate *c = real ? candidate_new(NULL, real) : NULL;
    tn_status status = TN_OK;
    if (!real)
        status = tn_fail(err, TN_E_KERNEL, path, "cannot be read: %s", strerror(errno));
    else if (!c)
        status = tn_fail(err, TN_E_MEMORY, path, "out of memory");
    if (status == TN_OK) {
        c->named = true;
        pthread_mutex_lock(&scanning);
        status = load_named(c, file, err);
        pthread_mutex_unlock(&scanning);
    }
    candidate_free(c);
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

/* What a scan has found so far, in the order in which it is to be opened. */
typedef struct findings {
    candidate *first, **last;
} findings;

static tn_status find_file(const char *folder, const char *name, findings *found, tn_error *err)
{
    candidate *c = candidate_new(folder, name);
    if (!c)
        return tn_fail(err, TN_E_MEMORY, folder, "out of memory");
    if (plugins_is_loaded(c->shown, 0, 0, NULL)) {
        if (plugins_is_outdated(c->shown, c->file))
            notices_add("%s changed since it was opened; what was opened stays in use until the program ends",
                        c->shown);
        candidate_free(c);
        return TN_OK;
    }
    *found->last = c;
    found->last = &c->next;
    return TN_OK;
}

/* Is it a folder that only root and the user write to? real receives its name without links. Owned. */
static tn_status check_folder(const char *folder, char **real, tn_error *err)
{
    struct stat st;
    if (folder[0] != '/')
        return tn_fail(err, TN_E_KERNEL, folder, "not an absolute path; plugin folders are given from the root");
    *real = realpath(folder, NULL);
    if (!*real || stat(*real, &st) != 0)
        return tn_fail(err, TN_E_KERNEL, folder, "plugin folder cannot be opened: %s; correct or remove it",
                       strerror(errno));
    return S_ISDIR(st.st_mode) ? writers_check_folder(folder, err)
                               : tn_fail(err, TN_E_KERNEL, folder, "not a folder; give the plugins' folder");
}

/* real receives the folder's name without links, which candidates borrow. Owned. */
static tn_status find_in_folder(const char *folder, char **real, findings *found, tn_error *err)
{
    tn_status status = check_folder(folder, real, err);
    struct dirent **entries = NULL;
    int n = status == TN_OK ? scandir(*real, &entries, is_library, by_name) : 0;
    if (n < 0)
        status = tn_fail(err, TN_E_KERNEL, folder, "plugin folder cannot be read: %s", strerror(errno));
    for (int i = 0; i < n; i++) {
        if (status == TN_OK)
            status = find_file(*real, entries[i]->d_name, found, err);
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* Examines all, then opens all. */
static tn_status take_findings(findings *found, const tn_config *config, tn_error *err)
{
    tn_status status = TN_OK;
    for (candidate *c = found->first; c; c = c->next)
        load_examine(c, config);
    for (candidate *c = found->first, *next; c; c = next) {
        next = c->next;
        load_open(c);
        if (status == TN_OK)
            status = candidate_record(c, err);
        candidate_free(c);
    }
    return status;
}

static tn_status scan_folders(const tn_config *config, tn_error *err)
{
    size_t count = config ? kernels_config_folders(config) : 0;
    findings found = {.last = &found.first};
    tn_status status = TN_OK;
    char **folders = calloc(count + 1, sizeof *folders);
    if (!folders)
        return tn_fail(err, TN_E_MEMORY, "plugins", "out of memory");
    for (size_t i = 0; i < count; i++) {
        tn_status one = find_in_folder(kernels_config_folder(config, i), &folders[i], &found, err);
        status = status == TN_OK ? one : status;
    }
    tn_status taken = take_findings(&found, config, err);
    for (size_t i = 0; i < count; i++)
        free(folders[i]);
    free(folders);
    return status == TN_OK ? taken : status;
}

/* Registers a plugin that is part of the program: nothing to try, but the same rules for its descriptor. */
static tn_status take_one(const tn_plugin *plugin, const char *file, size_t number, tn_error *err)
{
    char name[PATH_MAX + 32], shown[PATH_MAX];
    struct stat st = {0};
    (void)!stat(file, &st);
    char *real = realpath(file, NULL);
    text_escape(shown, sizeof shown, real ? real : file);
    snprintf(name, sizeof name, "%s (linked plugin %zu)", shown, number);
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

/* What registered after a plugin was opened, and not because of an open of ours: listed, and left alone. */
static tn_status report_late(tn_error *err)
{
    static size_t reported; /* under the scan's lock                                                 */
    tn_status status = TN_OK;
    for (; reported < stage_late_count() && status == TN_OK; reported++) {
        char name[PATH_MAX + 64], file[PATH_MAX];
        text_escape(file, sizeof file, stage_late_file(reported));
        snprintf(name, sizeof name, "%s (late registration %zu)", file[0] ? file : "unknown library", reported + 1);
        plugins_entry entry = {
            .info = {.file = name,
                     .name = "",
                     .version = "",
                     .state = TN_PLUGIN_REFUSED,
                     .reason = "it registers when nobody opens it: from a thread, a later call, or a library that a "
                               "plugin opened; only what registers while tenon opens the file is taken"}};
        status = plugins_record(&entry, err);
    }
    return status;
}

tn_status tn_scan(const tn_config *config, tn_error *err)
{
    pthread_mutex_lock(&scanning);
    plugins_forget_locked_out();
    tn_status status = scan_folders(config, err), linked = take_foreign(err), late = report_late(err);
    if (status == TN_OK && kernels_config_lock(config))
        status = lock_code_complete(kernels_config_lock(config), err);
    pthread_mutex_unlock(&scanning);
    return status != TN_OK ? status : linked != TN_OK ? linked : late;
}

tn_status tn_check_folders(const tn_config *config, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; config && i < kernels_config_folders(config); i++) {
        char *real = NULL;
        tn_status one = check_folder(kernels_config_folder(config, i), &real, err);
        status = status == TN_OK ? one : status;
        free(real);
    }
    return status;
}
