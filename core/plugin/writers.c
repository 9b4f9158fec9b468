/* Who may write where code comes from: whoever can, decides what runs here. */
#include "plugin/writers.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

tn_status writers_check(const struct stat *st, const char *path, tn_error *err)
{
    if (st->st_uid != 0 && st->st_uid != geteuid())
        return tn_fail(err, TN_E_KERNEL, path,
                       "owned by user %ld, not by root or you; plugins from there are not loaded", (long)st->st_uid);
    if (st->st_mode & (S_IWGRP | S_IWOTH))
        return tn_fail(err, TN_E_KERNEL, path, "writable by %s; run chmod go-w on it",
                       st->st_mode & S_IWOTH ? "everyone" : "its group");
    return TN_OK;
}

tn_status writers_check_library(const char *path, tn_error *err)
{
    struct stat st;
    char folder[PATH_MAX];
    if (stat(path, &st) != 0)
        return tn_fail(err, TN_E_KERNEL, path, "cannot be read: %s", strerror(errno));
    tn_status status = writers_check(&st, path, err);
    if (status != TN_OK)
        return status;
    int n = snprintf(folder, sizeof folder, "%s", path);
    char *slash = n > 0 && (size_t)n < sizeof folder ? strrchr(folder, '/') : NULL;
    if (!slash)
        return tn_fail(err, TN_E_KERNEL, path, "not an absolute path");
    slash[slash == folder] = '\0';
    if (stat(folder, &st) != 0)
        return tn_fail(err, TN_E_KERNEL, folder, "cannot be read: %s", strerror(errno));
    return writers_check(&st, folder, err);
}

bool writers_is_system(const char *path, const char *folder)
{
    static const char *const folders[] = {"/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/"};
    size_t own = folder ? strlen(folder) : 0;
    struct stat st;
    if (stat(path, &st) != 0 || st.st_uid != 0 || (own && strncmp(path, folder, own) == 0 && path[own] == '/'))
        return false;
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        if (strncmp(path, folders[i], strlen(folders[i])) == 0)
            return true;
    return false;
}
