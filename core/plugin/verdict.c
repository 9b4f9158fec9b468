/* Verdicts of earlier trials: one small file each in $XDG_CACHE_HOME/tenon or ~/.cache/tenon, named after the content
 * of the plugin. A verdict holds for the library and the machine that made it, for the surroundings in which the
 * dynamic linker looked for other libraries, and for every library that came in, each at its path with its inode, size
 * and times; all of them are named in the file. Nothing here is ever an error: without a cache every start tries every
 * plugin. */
#include "base/text.h"
#include "plugin/trial.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

enum { VERDICT_BYTES = 1 << 16 };

/* Only this user may write there: whoever can write a verdict can have any plugin opened untried. */
static bool is_private(const struct stat *st)
{
    return st->st_uid == geteuid() && (st->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* A descriptor of the cache folder, which is made when it is missing and make is set; -1 when there is none. */
static int open_folder(bool make, char *path, size_t size)
{
    const char *cache = secure_getenv("XDG_CACHE_HOME"), *home = secure_getenv("HOME");
    int n;
    if (cache && cache[0] == '/')
        n = snprintf(path, size, "%s/tenon", cache);
    else if (home && home[0] == '/')
        n = snprintf(path, size, "%s/.cache/tenon", home);
    else
        return -1;
    if (n < 0 || (size_t)n >= size)
        return -1;
    if (make) {
        char *slash = strrchr(path, '/');
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
        mkdir(path, 0700);
    }
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (folder >= 0 && (fstat(folder, &st) != 0 || !is_private(&st))) {
        close(folder);
        return -1;
    }
    return folder;
}

/* This library (its file's size and age change with every build) and this machine. */
static void host_line(char *line, size_t size)
{
    Dl_info info;
    struct stat st = {0};
    struct utsname machine = {0};
    if (dladdr((void *)(uintptr_t)tn_version, &info) && info.dli_fname)
        (void)!stat(info.dli_fname, &st);
    uname(&machine);
    snprintf(line, size, "%s %d.%d %lld %lld.%09ld %.64s", TN_VERSION, TN_ABI_MAJOR, TN_ABI_MINOR,
             (long long)st.st_size, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec, machine.nodename);
}

/* Takes the line "key value" off *at; NULL when it is not that. */
static char *take_line(char **at, const char *key)
{
    char *line = *at, *end = strchr(line, '\n');
    size_t n = strlen(key);
    if (!end || strncmp(line, key, n) != 0 || line[n] != ' ')
        return NULL;
    *end = '\0';
    *at = end + 1;
    return line + n + 1;
}

/* "IDENTITY SHA256 PATH" */
static bool parse_object(char *line, objects_list *list)
{
    objects_file *files = realloc(list->files, (list->count + 1) * sizeof *files);
    if (!files)
        return false;
    list->files = files;
    objects_file *file = &files[list->count];
    *file = (objects_file){0};
    char *hash = strchr(line, ' '), *path = hash ? strchr(hash + 1, ' ') : NULL;
    if (!path || hash - line >= (ptrdiff_t)sizeof file->identity || path - hash != sizeof file->sha256)
        return false;
    memcpy(file->identity, line, (size_t)(hash - line));
    memcpy(file->sha256, hash + 1, sizeof file->sha256 - 1);
    file->path = strdup(path + 1);
    list->count += file->path != NULL;
    return file->path != NULL;
}

static bool parse_objects(char **text, objects_list *list)
{
    char *line;
    while ((line = take_line(text, "object")))
        if (!parse_object(line, list))
            return false;
    return take_line(text, "end") && !**text;
}

static bool parse(char *text, const char *sha256, trial_verdict *verdict)
{
    char host[256], here[65];
    host_line(host, sizeof host);
    const char *form = take_line(&text, "tenon-verdict"), *of = form ? take_line(&text, "host") : NULL;
    const char *around = of ? take_line(&text, "surroundings") : NULL;
    const char *sha = around ? take_line(&text, "sha256") : NULL, *state = sha ? take_line(&text, "state") : NULL;
    const char *reason = state ? take_line(&text, "reason") : NULL;
    if (!reason || strcmp(form, "2") != 0 || strcmp(of, host) != 0 || strcmp(sha, sha256) != 0 ||
        !objects_surroundings(here) || strcmp(around, here) != 0 || !parse_objects(&text, &verdict->objects))
        return false;
    if (strcmp(state, "good") == 0)
        verdict->state = TN_PLUGIN_LOADED;
    else if (strcmp(state, "quarantined") == 0)
        verdict->state = TN_PLUGIN_QUARANTINED;
    else
        return false;
    snprintf(verdict->reason, sizeof verdict->reason, "%s", reason);
    return true;
}

/* Every library is still what it was, and what the plugin leads to is among them: a folder that is searched earlier may
 * have one of that name now. */
static bool holds(const trial_verdict *verdict, const needs *n)
{
    if (!objects_unchanged(&verdict->objects) || (verdict->state != TN_PLUGIN_LOADED && n->more))
        return false;
    for (size_t i = 0; i < n->found.count; i++)
        if (!objects_find(&verdict->objects, n->found.files[i].path))
            return false;
    return true;
}

/* The file's text with a NUL, or NULL. Owned. */
static char *read_verdict(int folder, const char *name)
{
    struct stat st;
    char *text = NULL;
    int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (file >= 0 && fstat(file, &st) == 0 && S_ISREG(st.st_mode) && is_private(&st))
        text = malloc(VERDICT_BYTES + 1);
    ssize_t n = text ? read(file, text, VERDICT_BYTES) : -1;
    if (file >= 0)
        close(file);
    if (text)
        text[n > 0 ? n : 0] = '\0';
    return text;
}

bool verdict_load(const char *sha256, const needs *n, trial_verdict *verdict)
{
    *verdict = (trial_verdict){.state = TN_PLUGIN_QUARANTINED};
    char path[1024];
    int folder = open_folder(false, path, sizeof path);
    if (folder < 0)
        return false;
    char *text = read_verdict(folder, sha256);
    close(folder);
    bool good = text && parse(text, sha256, verdict) && holds(verdict, n);
    free(text);
    if (!good) {
        trial_free(verdict);
        return false;
    }
    if (verdict->state == TN_PLUGIN_QUARANTINED) {
        size_t used = strlen(verdict->reason);
        snprintf(verdict->reason + used, sizeof verdict->reason - used, " earlier; to try it again delete %s/%s", path,
                 sha256);
    }
    return true;
}

/* The text to keep; false: something in it would not be read back as it was. Release out's data. */
static bool compose(const char *sha256, const trial_verdict *verdict, text *out)
{
    char host[256], here[65];
    host_line(host, sizeof host);
    if (strchr(verdict->reason, '\n') || !objects_surroundings(here) || !objects_unchanged(&verdict->objects))
        return false;
    text_add(out, "tenon-verdict 2\nhost %s\nsurroundings %s\nsha256 %s\nstate %s\nreason %s\n", host, here, sha256,
             verdict->state == TN_PLUGIN_LOADED ? "good" : "quarantined", verdict->reason);
    for (size_t i = 0; i < verdict->objects.count; i++) {
        const objects_file *file = &verdict->objects.files[i];
        if (strchr(file->path, '\n'))
            return false;
        text_add(out, "object %s %s %s\n", file->identity, file->sha256, file->path);
    }
    text_add(out, "end %zu\n", verdict->objects.count);
    return !out->failed && out->length < VERDICT_BYTES;
}

void verdict_store(const char *sha256, const trial_verdict *verdict)
{
    char path[1024], name[128];
    text all = {0};
    int folder = -1;
    if (verdict->lasting && compose(sha256, verdict, &all))
        folder = open_folder(true, path, sizeof path);
    if (folder >= 0) {
        snprintf(name, sizeof name, ".%s.%ld", sha256, (long)getpid());
        unlinkat(folder, name, 0); /* left by a process that had this number */
        int file = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        bool written = file >= 0 && write(file, all.data, all.length) == (ssize_t)all.length;
        if (file >= 0 && (close(file) != 0 || !written || renameat(folder, name, folder, sha256) != 0))
            unlinkat(folder, name, 0);
        close(folder);
    }
    free(all.data);
}
