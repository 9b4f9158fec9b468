/* The cache folder. */
#include "plugin/cachefile.h"
#include "plugin/writers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whoever can write a verdict of a trial can have any plugin opened untried. */
bool cachefile_is_private(const struct stat *st)
{
    return st->st_uid == geteuid() && (st->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* Where the folder is or would be. */
static bool find_path(char *path, size_t size)
{
    const char *cache = secure_getenv("XDG_CACHE_HOME"), *home = secure_getenv("HOME");
    int n = -1;
    if (cache && cache[0] == '/')
        n = snprintf(path, size, "%s/tenon", cache);
    else if (home && home[0] == '/')
        n = snprintf(path, size, "%s/.cache/tenon", home);
    if (n >= 0 && (size_t)n < size)
        return true;
    path[0] = '\0';
    return false;
}

int cachefile_open(bool make, char *path, size_t size, const char **why)
{
    *why = NULL;
    if (!find_path(path, size)) {
        *why = "neither XDG_CACHE_HOME nor HOME is an absolute path of usual length";
        return -1;
    }
    if (make) {
        char *slash = strrchr(path, '/');
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
        mkdir(path, 0700);
    }
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    if (folder < 0)
        *why = errno == ENOENT ? NULL : strerror(errno);
    else if (fstat(folder, &st) != 0 || !cachefile_is_private(&st) || writers_check_folder(path, NULL) != TN_OK) {
        *why = "others than this user can write there or to a folder around it, so nothing in it is used";
        close(folder);
        return -1;
    }
    return folder;
}
