/* Files of the cache folder. */
#include "plugin/cachefile.h"

#include <tenon/tenon.h>

#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Only this user may write there: whoever can write a verdict of a trial can have any plugin opened untried. */
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

void cachefile_host(char *line, size_t size)
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

char *cachefile_line(char **at, const char *key)
{
    char *line = *at, *end = strchr(line, '\n');
    size_t n = strlen(key);
    if (!end || strncmp(line, key, n) != 0 || line[n] != ' ')
        return NULL;
    *end = '\0';
    *at = end + 1;
    return line + n + 1;
}

char *cachefile_load(const char *name, size_t most, char *folder_path, size_t folder_size)
{
    char path[1024], *text = NULL;
    int folder = open_folder(false, path, sizeof path);
    if (folder < 0)
        return NULL;
    struct stat st;
    int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (file >= 0 && fstat(file, &st) == 0 && S_ISREG(st.st_mode) && is_private(&st))
        text = malloc(most + 1);
    ssize_t n = text ? read(file, text, most) : -1;
    if (file >= 0)
        close(file);
    close(folder);
    if (text)
        text[n > 0 ? n : 0] = '\0';
    if (text && folder_path)
        snprintf(folder_path, folder_size, "%s", path);
    return text;
}

void cachefile_store(const char *name, const char *text, size_t bytes)
{
    char path[1024], unfinished[300];
    int folder = open_folder(true, path, sizeof path);
    if (folder < 0)
        return;
    snprintf(unfinished, sizeof unfinished, ".%.200s.%ld", name, (long)getpid());
    unlinkat(folder, unfinished, 0); /* left by a process that had this number */
    int file = openat(folder, unfinished, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file >= 0) {
        bool written = write(file, text, bytes) == (ssize_t)bytes;
        if (close(file) != 0 || !written || renameat(folder, unfinished, folder, name) != 0)
            unlinkat(folder, unfinished, 0);
    }
    close(folder);
}
