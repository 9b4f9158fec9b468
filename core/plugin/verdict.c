/* Verdicts of earlier trials: one small file each in $XDG_CACHE_HOME/tenon or ~/.cache/tenon, named after the content
 * of the plugin. A verdict holds for the library and the machine that made it, both named in the file. Nothing here
 * is ever an error: without a cache every start tries every plugin. */
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

enum { VERDICT_BYTES = 2048 };

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
static const char *take_line(char **at, const char *key)
{
    char *line = *at, *end = strchr(line, '\n');
    size_t n = strlen(key);
    if (!end || strncmp(line, key, n) != 0 || line[n] != ' ')
        return NULL;
    *end = '\0';
    *at = end + 1;
    return line + n + 1;
}

static bool parse(char *text, const char *sha256, trial_verdict *verdict)
{
    char host[256];
    host_line(host, sizeof host);
    const char *form = take_line(&text, "tenon-verdict"), *of = form ? take_line(&text, "host") : NULL;
    const char *sha = of ? take_line(&text, "sha256") : NULL, *state = sha ? take_line(&text, "state") : NULL;
    const char *reason = state ? take_line(&text, "reason") : NULL;
    if (!reason || *text || strcmp(form, "1") != 0 || strcmp(of, host) != 0 || strcmp(sha, sha256) != 0)
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

bool verdict_load(const char *sha256, trial_verdict *verdict)
{
    *verdict = (trial_verdict){.state = TN_PLUGIN_QUARANTINED};
    char path[1024], text[VERDICT_BYTES + 1];
    int folder = open_folder(false, path, sizeof path);
    if (folder < 0)
        return false;
    struct stat st;
    int file = openat(folder, sha256, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = -1;
    if (file >= 0 && fstat(file, &st) == 0 && S_ISREG(st.st_mode) && is_private(&st))
        n = read(file, text, VERDICT_BYTES);
    if (file >= 0)
        close(file);
    close(folder);
    if (n <= 0)
        return false;
    text[n] = '\0';
    if (!parse(text, sha256, verdict))
        return false;
    if (verdict->state == TN_PLUGIN_QUARANTINED) {
        size_t used = strlen(verdict->reason);
        snprintf(verdict->reason + used, sizeof verdict->reason - used, " earlier; to try it again delete %s/%s", path,
                 sha256);
    }
    return true;
}

void verdict_store(const char *sha256, const trial_verdict *verdict)
{
    char path[1024], name[128], text[VERDICT_BYTES], host[256];
    if (!verdict->lasting || strchr(verdict->reason, '\n'))
        return;
    int folder = open_folder(true, path, sizeof path);
    if (folder < 0)
        return;
    host_line(host, sizeof host);
    int n = snprintf(text, sizeof text, "tenon-verdict 1\nhost %s\nsha256 %s\nstate %s\nreason %s\n", host, sha256,
                     verdict->state == TN_PLUGIN_LOADED ? "good" : "quarantined", verdict->reason);
    snprintf(name, sizeof name, ".%s.%ld", sha256, (long)getpid());
    unlinkat(folder, name, 0); /* left by a process that had this number */
    int file = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file >= 0) {
        bool written = n > 0 && (size_t)n < sizeof text && write(file, text, (size_t)n) == n;
        if (close(file) != 0 || !written || renameat(folder, name, folder, sha256) != 0)
            unlinkat(folder, name, 0);
    }
    close(folder);
}
