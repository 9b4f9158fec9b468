/* A library for LD_PRELOAD that lets calls of the system fail, one at a time, as they would: errno is set, and nothing
 * else happens. It counts from the first line of main on, since what fails before is the loader's to report.
 *   TENON_FAULT=KIND:N       the N-th call of this kind fails; KIND:N+ that one and all after it; proc: every look
 * below /proc, as where nothing is mounted there TENON_FAULT_CHILDREN=yes calls of forked children count and fail, too;
 * otherwise only those of the program itself TENON_FAULT_REPORT=FILE  the numbers of calls, one 64-bit word a kind, in
 * the order of fault_names; FILE has room for them. They are there however the program ends. */
#include "faults.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

static _Atomic uint64_t own_counts[FAULT_KINDS];
static _Atomic uint64_t *counts = own_counts;
static uint64_t first;
static int chosen = -1;
static bool on, lasting, children, without_proc;
static pid_t program;

/* The next definition of a function behind this library's. */
#define NEXT(type, name, ...)                                                                                          \
    static type (*next)(__VA_ARGS__);                                                                                  \
    if (!next)                                                                                                         \
    next = (type(*)(__VA_ARGS__))(uintptr_t)dlsym(RTLD_NEXT, name)

static bool fails(fault_kind kind, int error)
{
    if (!on || (!children && getpid() != program))
        return false;
    uint64_t number = atomic_fetch_add(&counts[kind], 1) + 1;
    if ((int)kind != chosen || number < first || (number > first && !lasting))
        return false;
    errno = error;
    return true;
}

static bool hidden(const char *path)
{
    if (!on || !without_proc || !path || strncmp(path, "/proc", 5) != 0 || (path[5] && path[5] != '/'))
        return false;
    errno = ENOENT;
    return true;
}

static void read_orders(void)
{
    const char *fault = getenv("TENON_FAULT"), *report = getenv("TENON_FAULT_REPORT");
    children = getenv("TENON_FAULT_CHILDREN") != NULL;
    program = getpid();
    for (int kind = 0; fault && kind < FAULT_KINDS; kind++) {
        size_t length = strlen(fault_names[kind]);
        char *end;
        if (strncmp(fault, fault_names[kind], length) != 0 || fault[length] != ':')
            continue;
        chosen = kind;
        first = strtoull(fault + length + 1, &end, 10);
        lasting = *end == '+';
    }
    without_proc = fault && strcmp(fault, "proc") == 0;
    int file = report ? open(report, O_RDWR | O_CLOEXEC) : -1;
    void *shared = mmap(NULL, sizeof own_counts, PROT_READ | PROT_WRITE,
                        file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, file, 0);
    if (shared != MAP_FAILED)
        counts = shared;
    if (file >= 0)
        close(file);
    on = true;
}

/* ---- the start ---------------------------------------------------------------------------------- */

static int (*real_main)(int, char **, char **);

static int counted_main(int argc, char **argv, char **environment)
{
    read_orders();
    return real_main(argc, argv, environment);
}

SHOWN int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void),
                            void (*fini)(void), void (*rtld_fini)(void), void *stack_end)
{
    NEXT(int, "__libc_start_main", int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void),
         void (*)(void), void *);
    real_main = main;
    return next(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}

/* ---- memory --------------------------------------------------------------------------------------- */

SHOWN void *malloc(size_t size)
{
    NEXT(void *, "malloc", size_t);
    return fails(FAULT_MALLOC, ENOMEM) ? NULL : next(size);
}

SHOWN void *calloc(size_t count, size_t size)
{
    NEXT(void *, "calloc", size_t, size_t);
    return fails(FAULT_MALLOC, ENOMEM) ? NULL : next(count, size);
}

SHOWN void *realloc(void *old, size_t size)
{
    NEXT(void *, "realloc", void *, size_t);
    return fails(FAULT_MALLOC, ENOMEM) ? NULL : next(old, size);
}

SHOWN void *aligned_alloc(size_t alignment, size_t size)
{
    NEXT(void *, "aligned_alloc", size_t, size_t);
    return fails(FAULT_MALLOC, ENOMEM) ? NULL : next(alignment, size);
}

SHOWN int posix_memalign(void **out, size_t alignment, size_t size)
{
    NEXT(int, "posix_memalign", void **, size_t, size_t);
    return fails(FAULT_MALLOC, ENOMEM) ? ENOMEM : next(out, alignment, size);
}

SHOWN void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    NEXT(void *, "mmap", void *, size_t, int, int, int, off_t);
    return fails(FAULT_MMAP, ENOMEM) ? MAP_FAILED : next(at, size, protection, flags, fd, offset);
}

SHOWN void *mmap64(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    return mmap(at, size, protection, flags, fd, offset);
}

SHOWN int mprotect(void *at, size_t size, int protection)
{
    NEXT(int, "mprotect", void *, size_t, int);
    return fails(FAULT_MPROTECT, ENOMEM) ? -1 : next(at, size, protection);
}

/* ---- files ------------------------------------------------------------------------------------------ */

static mode_t mode_of(int flags, va_list arguments)
{
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, mode_t) : 0;
}

SHOWN int open(const char *path, int flags, ...)
{
    NEXT(int, "open", const char *, int, ...);
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return hidden(path) || fails(FAULT_OPEN, EMFILE) ? -1 : next(path, flags, mode);
}

SHOWN int open64(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return open(path, flags, mode);
}

SHOWN int openat(int folder, const char *path, int flags, ...)
{
    NEXT(int, "openat", int, const char *, int, ...);
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return hidden(path) || fails(FAULT_OPEN, EMFILE) ? -1 : next(folder, path, flags, mode);
}

/* The C library opens these without a call that could be taken over. */
SHOWN FILE *fopen(const char *path, const char *mode)
{
    NEXT(FILE *, "fopen", const char *, const char *);
    return hidden(path) || fails(FAULT_OPEN, EMFILE) ? NULL : next(path, mode);
}

SHOWN FILE *fopen64(const char *path, const char *mode)
{
    return fopen(path, mode);
}

SHOWN DIR *opendir(const char *path)
{
    NEXT(DIR *, "opendir", const char *);
    return hidden(path) || fails(FAULT_OPEN, EMFILE) ? NULL : next(path);
}

SHOWN ssize_t readlink(const char *path, char *text, size_t size)
{
    NEXT(ssize_t, "readlink", const char *, char *, size_t);
    return hidden(path) ? -1 : next(path, text, size);
}

SHOWN int access(const char *path, int mode)
{
    NEXT(int, "access", const char *, int);
    return hidden(path) ? -1 : next(path, mode);
}

SHOWN ssize_t read(int fd, void *data, size_t size)
{
    NEXT(ssize_t, "read", int, void *, size_t);
    return fails(FAULT_READ, EIO) ? -1 : next(fd, data, size);
}

SHOWN ssize_t pread(int fd, void *data, size_t size, off_t offset)
{
    NEXT(ssize_t, "pread", int, void *, size_t, off_t);
    return fails(FAULT_READ, EIO) ? -1 : next(fd, data, size, offset);
}

SHOWN ssize_t pread64(int fd, void *data, size_t size, off_t offset)
{
    return pread(fd, data, size, offset);
}

SHOWN ssize_t write(int fd, const void *data, size_t size)
{
    NEXT(ssize_t, "write", int, const void *, size_t);
    return fails(FAULT_WRITE, ENOSPC) ? -1 : next(fd, data, size);
}

SHOWN int stat(const char *path, struct stat *out)
{
    NEXT(int, "stat", const char *, struct stat *);
    return hidden(path) || fails(FAULT_STAT, EACCES) ? -1 : next(path, out);
}

SHOWN int lstat(const char *path, struct stat *out)
{
    NEXT(int, "lstat", const char *, struct stat *);
    return hidden(path) || fails(FAULT_STAT, EACCES) ? -1 : next(path, out);
}

SHOWN int fstat(int fd, struct stat *out)
{
    NEXT(int, "fstat", int, struct stat *);
    return fails(FAULT_STAT, EIO) ? -1 : next(fd, out);
}

SHOWN int fstatat(int folder, const char *path, struct stat *out, int flags)
{
    NEXT(int, "fstatat", int, const char *, struct stat *, int);
    return hidden(path) || fails(FAULT_STAT, EACCES) ? -1 : next(folder, path, out, flags);
}

SHOWN char *realpath(const char *path, char *out)
{
    NEXT(char *, "realpath", const char *, char *);
    return hidden(path) ? NULL : next(path, out);
}

/* ---- processes and threads ------------------------------------------------------------------------ */

SHOWN pid_t fork(void)
{
    NEXT(pid_t, "fork", void);
    return fails(FAULT_FORK, EAGAIN) ? -1 : next();
}

SHOWN int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument)
{
    NEXT(int, "pthread_create", pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    return fails(FAULT_THREAD, EAGAIN) ? EAGAIN : next(thread, attributes, start, argument);
}
