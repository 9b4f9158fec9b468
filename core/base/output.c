/* Files that appear whole or not at all. */
#include "base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where the data go in the end: a link is followed, so that it stays one. Anything but a file is left alone: renaming
 * over a device would replace it. */
static tn_status resolve(const char *path, char **resolved, tn_error *err)
{
    struct stat st;
    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && stat(path, &st) == 0)
        *resolved = realpath(path, NULL);
    else
        *resolved = strdup(path);
    if (!*resolved)
        return tn_fail(err, TN_E_MEMORY, path, "out of memory");
    if (stat(*resolved, &st) == 0 && !S_ISREG(st.st_mode))
        return tn_fail(err, TN_E_INPUT, path, "exists and is not a regular file; choose another name");
    return TN_OK;
}

/* A name beside the file that is free: made by one of the two below, which return false with errno. */
static bool name_temporary(output *out, bool (*make)(output *))
{
    size_t size = strlen(out->path) + 48;
    out->temporary = malloc(size);
    errno = ENOMEM;
    for (int i = 0; i < 100 && out->temporary; i++) {
        snprintf(out->temporary, size, "%s.%ld.%d.tmp", out->path, (long)getpid(), i);
        if (make(out))
            return true;
        if (errno != EEXIST)
            break;
    }
    int why = errno;
    free(out->temporary);
    out->temporary = NULL; /* not ours to remove */
    errno = why;
    return false;
}

/* O_EXCL with the usual mode rather than mkstemp: the result gets the permissions that the umask grants. */
static bool make_named(output *out)
{
    out->fd = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return out->fd >= 0;
}

/* Where the file's descriptor has a name for linkat. */
static const char *descriptor_path(const output *out, char text[40])
{
    snprintf(text, 40, "/proc/self/fd/%d", out->fd);
    return text;
}

static bool link_to(const output *out, const char *name)
{
    char from[40];
    return linkat(AT_FDCWD, descriptor_path(out, from), AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0;
}

static bool make_linked(output *out)
{
    return link_to(out, out->temporary);
}

/* A file without a name leaves nothing behind, whatever ends the process. -1 where the file system has no such files,
 * or there is no way to give it a name later. */
static int open_unnamed(const output *out)
{
    char *copy = strdup(out->path), from[40];
    int fd = copy ? open(dirname(copy), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666) : -1;
    free(copy);
    if (fd >= 0 && access(descriptor_path(&(output){.fd = fd}, from), F_OK) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

tn_status output_open(output *out, const char *path, tn_error *err)
{
    tn_status status = resolve(path, &out->path, err);
    if (status != TN_OK)
        return status;
    out->fd = open_unnamed(out);
    out->unnamed = out->fd >= 0;
    if (out->unnamed || name_temporary(out, make_named))
        return TN_OK;
    return tn_fail(err, errno == ENOMEM ? TN_E_MEMORY : TN_E_INPUT, path, "cannot write: %s", strerror(errno));
}

tn_status output_write(output *out, const void *data, size_t size, tn_error *err)
{
    for (const char *p = data; size;) {
        ssize_t n = write(out->fd, p, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return tn_fail(err, TN_E_INPUT, out->path, "cannot write: %s", strerror(errno));
        p += n;
        size -= (size_t)n;
    }
    return TN_OK;
}

/* The file at its name, in the place of what is there. A link does not replace a file, a rename does; between the two
 * no signal ends the process, so that none leaves the other name. errno, or 0. */
static int put_in_place(output *out)
{
    sigset_t all, before;
    if (out->unnamed && link_to(out, out->path))
        return 0;
    if (out->unnamed && errno != EEXIST)
        return errno;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool done = (!out->unnamed || name_temporary(out, make_linked)) && rename(out->temporary, out->path) == 0;
    int failed = done ? 0 : errno;
    if (done) {
        free(out->temporary);
        out->temporary = NULL;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

/* The data reach the disk before the name does, so that a crash leaves the old file or the new one. */
tn_status output_commit(output *out, tn_error *err)
{
    int failed = fsync(out->fd) != 0 ? errno : put_in_place(out);
    close(out->fd); /* has nothing to add: fsync said that all is there, and the name is given */
    out->fd = -1;
    if (failed)
        return tn_fail(err, TN_E_INPUT, out->path, "cannot write: %s", strerror(failed));
    int folder = open(dirname(out->path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        fsync(folder);
        close(folder);
    }
    return TN_OK;
}

void output_close(output *out)
{
    if (out->fd >= 0)
        close(out->fd);
    if (out->temporary)
        unlink(out->temporary);
    free(out->temporary);
    free(out->path);
}
