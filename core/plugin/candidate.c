/* The steps of loading one file, which load.c takes in order. */
#include "plugin/candidate.h"

#include "base/notices.h"
#include "base/text.h"
#include "plugin/detach.h"
#include "plugin/kernels_config.h"
#include "plugin/lock_code.h"
#include "plugin/plugins.h"
#include "base/sha256.h"
#include "plugin/writers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES_MAX ((off_t)256 << 20)

candidate *candidate_new(const char *folder, const char *name)
{
    candidate *c = calloc(1, sizeof *c);
    int n = c ? snprintf(c->file, sizeof c->file, "%s%s%s", folder ? folder : "", folder ? "/" : "", name) : -1;
    if (n < 0 || (size_t)n >= sizeof c->file) {
        free(c);
        return NULL;
    }
    text_escape(c->shown, sizeof c->shown, c->file);
    c->folder = folder;
    c->name = strrchr(c->file, '/') + 1;
    c->state = TN_PLUGIN_REFUSED;
    return c;
}

void candidate_free(candidate *c)
{
    if (!c)
        return;
    needs_free(&c->need);
    trial_free(&c->verdict);
    free(c);
}

/* ---- content ---------------------------------------------------------------------------------------------------- */

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

tn_status candidate_read(candidate *c, char **content, tn_error *err)
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
        status = writers_check(&c->st, c->file, err);
    if (status == TN_OK)
        status = read_all(fd, c, content, err);
    close(fd);
    if (status == TN_OK && !sha256_hex(*content, (size_t)c->st.st_size, c->sha256))
        status = tn_fail(err, TN_E_INTERNAL, c->file, "libcrypto cannot compute SHA-256");
    return status;
}

/* ---- pins ------------------------------------------------------------------------------------------------------- */

tn_status candidate_check_pin(const candidate *c, const tn_config *config, tn_error *err)
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

tn_status candidate_check_library_pins(const candidate *c, objects_list *libraries, const tn_config *config,
                                       tn_error *err)
{
    for (size_t i = 0; i < libraries->count && !c->named && kernels_config_has_pins(config); i++) {
        objects_file *file = &libraries->files[i];
        const char *name = strrchr(file->path, '/') + 1, *pin = kernels_config_pin(config, name);
        plugins_add_library(name);
        if (!pin && writers_is_system(file->path, c->folder))
            continue;
        if (!objects_hash(file))
            return tn_fail(err, TN_E_KERNEL, c->file, "it loads %s, which cannot be read", file->path);
        if (!pin)
            return tn_fail(err, TN_E_KERNEL, c->file,
                           "it loads %s, which is not pinned; to allow it add \"%s\": \"sha256:%s\" to pins",
                           file->path, name, file->sha256);
        if (strncmp(pin, "sha256:", 7) != 0 || strcasecmp(pin + 7, file->sha256) != 0)
            return tn_fail(err, TN_E_KERNEL, c->file, "it loads %s: pin mismatch: expected %s, got sha256:%s",
                           file->path, pin, file->sha256);
    }
    return TN_OK;
}

tn_status candidate_check_lock(candidate *c, const tn_config *config, tn_error *err)
{
    const lockfile *lock = c->named ? NULL : kernels_config_lock(config);
    tn_status status = lock ? lock_code_find(lock, &lock->plugins, c->file, c->name, c->sha256, err) : TN_OK;
    c->locked_out = status != TN_OK;
    return status;
}

tn_status candidate_check_library_lock(candidate *c, objects_list *libraries, const tn_config *config, tn_error *err)
{
    const lockfile *lock = c->named ? NULL : kernels_config_lock(config);
    tn_status status = TN_OK;
    for (size_t i = 0; lock && i < libraries->count && status == TN_OK; i++) {
        objects_file *file = &libraries->files[i];
        if (writers_is_system(file->path, c->folder))
            continue;
        tn_error why = TN_ERROR_INIT;
        if (!objects_hash(file))
            status = tn_fail(err, TN_E_KERNEL, c->file, "it loads %s, which cannot be read", file->path);
        else if (lock_code_find(lock, &lock->libraries, "", strrchr(file->path, '/') + 1, file->sha256, &why) != TN_OK)
            status = tn_fail(err, TN_E_KERNEL, c->file, "it loads %s, which %s", file->path, why.message);
        c->locked_out = status != TN_OK;
    }
    return status;
}

/* ---- the trial -------------------------------------------------------------------------------------------------- */

tn_status candidate_check_unchanged(const candidate *c, tn_error *err)
{
    struct stat now;
    if (stat(c->path, &now) != 0 || now.st_dev != c->st.st_dev || now.st_ino != c->st.st_ino ||
        now.st_size != c->st.st_size || now.st_ctim.tv_sec != c->st.st_ctim.tv_sec ||
        now.st_ctim.tv_nsec != c->st.st_ctim.tv_nsec)
        return tn_fail(err, TN_E_KERNEL, c->file, "it changed while it was being examined; scan again");
    if (!objects_unchanged(&c->need.found) || !objects_unchanged(&c->verdict.objects))
        return tn_fail(err, TN_E_KERNEL, c->file,
                       "a library that it needs changed while it was being examined; scan again");
    return TN_OK;
}

tn_status candidate_try(candidate *c, tn_error *err)
{
    trial_verdict *v = &c->verdict;
    if (c->named || !verdict_load(c->sha256, &c->need, v)) {
        trial_run(c->path, &c->note, &c->need, c->named, v);
        if (candidate_check_unchanged(c, err) != TN_OK)
            return TN_E_KERNEL;
        verdict_store(c->sha256, v);
    }
    c->state = v->state;
    return v->state == TN_PLUGIN_LOADED ? TN_OK : tn_fail(err, TN_E_KERNEL, c->file, "%s", v->reason);
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

/* What was mapped is what was tried. */
static tn_status check_opened(const candidate *c, tn_error *err)
{
    objects_file own = {.path = (char *)(uintptr_t)c->path};
    char seen[65];
    objects_surroundings(seen); /* from now on as these files are                                     */
    objects_describe(&c->st, own.identity);
    memcpy(own.sha256, c->sha256, sizeof own.sha256);
    bool same = objects_is_same(&own);
    for (size_t i = 0; i < c->verdict.objects.count && same; i++)
        same = objects_is_same(&c->verdict.objects.files[i]);
    return same ? TN_OK : tn_fail(err, TN_E_KERNEL, c->file, "it changed while it was being opened; start again");
}

tn_status candidate_take_pages(const candidate *c, const objects_loaded *before, size_t threads, tn_error *err)
{
    char folder[PATH_MAX];
    tn_error why = TN_ERROR_INIT;
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(c->path, '/') - c->path), c->path);
    tn_status status = detach_new(before, folder, threads == 0, &why);
    if (status == TN_E_MEMORY)
        return tn_fail(err, status, c->file, "not opened: %s", why.message);
    if (check_opened(c, err) != TN_OK)
        return TN_E_KERNEL;
    if (status != TN_OK)
        notices_add("%s stays in its file (%s), which is not to be written to while it is in use", c->shown,
                    why.message);
    return TN_OK;
}

tn_status candidate_record(const candidate *c, tn_error *err)
{
    if (c->known)
        return TN_OK;
    plugins_entry entry = {.info = {.file = c->shown,
                                    .name = c->note.name,
                                    .version = c->note.version,
                                    .state = c->state,
                                    .reason = c->state == TN_PLUGIN_LOADED ? c->warning : c->why.message},
                           .dev = (uint64_t)c->st.st_dev,
                           .ino = (uint64_t)c->st.st_ino,
                           .locked_out = c->locked_out};
    memcpy(entry.info.sha256, c->sha256, sizeof c->sha256);
    objects_describe(&c->st, entry.identity);
    return plugins_record(&entry, err);
}
