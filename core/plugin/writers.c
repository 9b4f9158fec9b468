/* Who may write where code comes from: whoever can, decides what runs here. */
#include "plugin/writers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
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

/* Whoever may write to a folder can put another in the place of what it holds, unless it is one like /tmp, where only
 * owners rename and remove: what lies there is looked at, too. */
static tn_status check_parent(const char *parent, const char *folder, tn_error *err)
{
    struct stat st;
    tn_error why = TN_ERROR_INIT;
    if (stat(parent, &st) != 0)
        return tn_fail(err, TN_E_KERNEL, folder, "%s above it cannot be looked at: %s", parent, strerror(errno));
    if (st.st_mode & S_ISVTX)
        st.st_mode &= ~(mode_t)(S_IWGRP | S_IWOTH);
    if (writers_check(&st, parent, &why) != TN_OK)
        return tn_fail(err, TN_E_KERNEL, folder, "%s above it is %s", parent, why.message);
    return TN_OK;
}

/* Every folder above path, which is absolute and is cut. shown: what it is to be called. */
static tn_status check_above(char *path, const char *shown, tn_error *err)
{
    tn_status status = TN_OK;
    for (char *slash; status == TN_OK && path[0] && path[1] && (slash = strrchr(path, '/'));) {
        slash[slash == path] = '\0';
        status = check_parent(path, shown, err);
    }
    return status;
}

/* As it is named and as it is without links: the names of links lie in folders, too. */
tn_status writers_check_folder(const char *folder, tn_error *err)
{
    struct stat st;
    char *named = strdup(folder), *real = realpath(folder, NULL);
    tn_status status;
    if (!named || !real || stat(real, &st) != 0)
        status = tn_fail(err, TN_E_KERNEL, folder, "cannot be read: %s", strerror(errno));
    else
        status = writers_check(&st, folder, err);
    if (status == TN_OK)
        status = check_above(named, folder, err);
    if (status == TN_OK)
        status = check_above(real, folder, err);
    free(named);
    free(real);
    return status;
}

/* The folder that holds path, which is cut. */
static tn_status check_holder(char *path, tn_error *err)
{
    char *slash = strrchr(path, '/');
    if (!slash)
        return tn_fail(err, TN_E_KERNEL, path, "not an absolute path");
    slash[slash == path] = '\0';
    return writers_check_folder(path, err);
}

tn_status writers_check_library(const char *path, tn_error *err)
{
    struct stat st;
    char *named = strdup(path), *real = realpath(path, NULL);
    tn_status status;
    if (!named || !real || stat(real, &st) != 0)
        status = tn_fail(err, TN_E_KERNEL, path, "cannot be read: %s", strerror(errno));
    else
        status = writers_check(&st, path, err);
    if (status == TN_OK)
        status = check_holder(named, err);
    if (status == TN_OK)
        status = check_holder(real, err);
    free(named);
    free(real);
    return status;
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
