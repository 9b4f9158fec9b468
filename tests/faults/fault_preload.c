/* A library for LD_PRELOAD that lets calls of the system fail, one at a time, as they would: errno is set, and nothing
 * else happens. It counts from the first line of main on, since what fails before is the loader's to report.
 *   TENON_FAULT=KIND:N        the N-th call of this kind fails; KIND:N+ that one and all after it; proc: every look
 *                             below /proc, as where nothing is mounted there
 *   TENON_FAULT_CHILDREN=yes  calls of forked children count and fail, too; otherwise only those of the program itself
 *   TENON_FAULT_REPORT=FILE   the numbers of calls, one 64-bit word a kind, in the order of fault_names; FILE has room
 *                             for them. They are there however the program ends.
 *   TENON_FAULT_PATHS=FILE    by which path of calls each call was reached: a hash for each of the first
 *                             FAULT_PATHS_MAX calls of a kind, kind by kind; FILE has room for them, too. */
#include "faults.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <spawn.h>
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
static uint64_t (*paths)[FAULT_PATHS_MAX]; /* NULL: they are not asked for */
static _Thread_local bool looking __attribute__((tls_model("initial-exec")));

/* The next definition of a function behind this library's. */
#define NEXT(type, name, ...)                                                                                          \
    static type (*next)(__VA_ARGS__);                                                                                  \
    if (!next)                                                                                                         \
    next = (type(*)(__VA_ARGS__))(uintptr_t)dlsym(RTLD_NEXT, name)

/* Addresses are the same in a program and its forks, so that one path has one hash throughout a run. */
static void note_path(fault_kind kind, uint64_t number)
{
    void *callers[64];
    uint64_t hash = 0;
    if (number > FAULT_PATHS_MAX)
        return;
    looking = true;
    int depth = backtrace(callers, 64);
    looking = false;
    for (int i = 0; i < depth; i++)
        hash = (hash ^ (uintptr_t)callers[i]) * UINT64_C(0x9e3779b97f4a7c15);
    paths[kind][number - 1] = hash;
}

static bool fails(fault_kind kind, int error)
{
    if (!on || looking || (!children && getpid() != program))
        return false;
    uint64_t number = atomic_fetch_add(&counts[kind], 1) + 1;
    if (paths)
        note_path(kind, number);
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

/* Where oneDNN, the library of C++, which nothing else here uses, and the loader have their code. */
static struct {
    uintptr_t begin, end;
} foreign[4];
static size_t foreign_count;

static int note_foreign(struct dl_phdr_info *object, size_t size, void *nothing)
{
    (void)size;
    (void)nothing;
    const char *name = object->dlpi_name;
    bool wanted = strstr(name, "/libdnnl.so") || strstr(name, "/libstdc++.so") || strstr(name, "/ld-linux");
    for (int i = 0; wanted && i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && part->p_flags & PF_X && foreign_count < sizeof foreign / sizeof *foreign) {
            uintptr_t begin = object->dlpi_addr + part->p_vaddr;
            foreign[foreign_count].begin = begin;
            foreign[foreign_count++].end = begin + part->p_memsz;
        }
    }
    return 0;
}

/* The file that a variable names, for all processes to write to. NULL when there is none. */
static void *shared_file(const char *variable, size_t size)
{
    const char *path = getenv(variable);
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *shared = file < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    return shared == MAP_FAILED ? NULL : shared;
}

static void read_orders(void)
{
    const char *fault = getenv("TENON_FAULT");
    void *first_caller[1];
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
    void *shared = getenv("TENON_FAULT_REPORT")
                       ? shared_file("TENON_FAULT_REPORT", sizeof own_counts)
                       : mmap(NULL, sizeof own_counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared && shared != MAP_FAILED)
        counts = shared;
    dl_iterate_phdr(note_foreign, NULL);
    paths = shared_file("TENON_FAULT_PATHS", sizeof *paths * FAULT_KINDS);
    if (paths) /* the first look at a path loads a library */
        backtrace(first_caller, 1);
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

/* LeakSanitizer's, where it is loaded, too. */
extern void __lsan_ignore_object(const void *object) __attribute__((weak));

#define CALLER ((uintptr_t)__builtin_return_address(0))

/* A failure in the middle of oneDNN ends its work by a jump (core/base/edge.c), and what it held stays behind. So what
 * is allocated in there, also by the library of C++, is no leak. What the loader keeps is none, either, which
 * LeakSanitizer knows by the caller and does not see behind this library. */
static void *allowed(void *memory, uintptr_t caller)
{
    for (size_t i = 0; __lsan_ignore_object && memory && i < foreign_count; i++)
        if (caller >= foreign[i].begin && caller < foreign[i].end)
            __lsan_ignore_object(memory);
    return memory;
}

static void *take(size_t size, uintptr_t caller)
{
    NEXT(void *, "malloc", size_t);
    return fails(FAULT_MALLOC, ENOMEM) ? NULL : allowed(next(size), caller);
}

static void *take_aligned(size_t alignment, size_t size, uintptr_t caller)
{
    NEXT(void *, "aligned_alloc", size_t, size_t);
    return fails(FAULT_MALLOC, ENOMEM) ? NULL : allowed(next(alignment, size), caller);
}

SHOWN void *malloc(size_t size)
{
    return take(size, CALLER);
}

SHOWN void *calloc(size_t count, size_t size)
{
    NEXT(void *, "calloc", size_t, size_t);
    return fails(FAULT_MALLOC, ENOMEM) ? NULL : allowed(next(count, size), CALLER);
}

SHOWN void *realloc(void *old, size_t size)
{
    NEXT(void *, "realloc", void *, size_t);
    return fails(FAULT_MALLOC, ENOMEM) ? NULL : allowed(next(old, size), CALLER);
}

SHOWN void *aligned_alloc(size_t alignment, size_t size)
{
    return take_aligned(alignment, size, CALLER);
}

SHOWN int posix_memalign(void **out, size_t alignment, size_t size)
{
    NEXT(int, "posix_memalign", void **, size_t, size_t);
    int status = fails(FAULT_MALLOC, ENOMEM) ? ENOMEM : next(out, alignment, size);
    if (status == 0)
        allowed(*out, CALLER);
    return status;
}

/* The operators new of C++, as its library has them: LeakSanitizer brings its own, which would not come by here. An
 * exception passes through these. */
static void *memory_or_throw(void *memory)
{
    NEXT(void, "_ZSt17__throw_bad_allocv", void);
    if (!memory && next)
        next();
    return memory;
}

SHOWN void *_Znwm(size_t size)
{
    return memory_or_throw(take(size, CALLER));
}

SHOWN void *_Znam(size_t size)
{
    return memory_or_throw(take(size, CALLER));
}

SHOWN void *_ZnwmRKSt9nothrow_t(size_t size, const void *nothrow)
{
    (void)nothrow;
    return take(size, CALLER);
}

SHOWN void *_ZnamRKSt9nothrow_t(size_t size, const void *nothrow)
{
    (void)nothrow;
    return take(size, CALLER);
}

SHOWN void *_ZnwmSt11align_val_t(size_t size, size_t alignment)
{
    return memory_or_throw(take_aligned(alignment, size, CALLER));
}

SHOWN void *_ZnamSt11align_val_t(size_t size, size_t alignment)
{
    return memory_or_throw(take_aligned(alignment, size, CALLER));
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

/* Descriptors of no file come from the same table. */
SHOWN int pipe2(int ends[2], int flags)
{
    NEXT(int, "pipe2", int *, int);
    return fails(FAULT_OPEN, EMFILE) ? -1 : next(ends, flags);
}

SHOWN int pipe(int ends[2])
{
    return pipe2(ends, 0);
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

/* What else a full disk answers: the end of a file that was written, its name, a stream's buffer. */
SHOWN int fsync(int fd)
{
    NEXT(int, "fsync", int);
    return fails(FAULT_WRITE, ENOSPC) ? -1 : next(fd);
}

/* The descriptor is gone all the same. */
SHOWN int close(int fd)
{
    NEXT(int, "close", int);
    int flags = on ? fcntl(fd, F_GETFL) : -1;
    bool written = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
    int status = next(fd);
    return written && fails(FAULT_WRITE, ENOSPC) ? -1 : status;
}

SHOWN int linkat(int from_folder, const char *from, int folder, const char *path, int flags)
{
    NEXT(int, "linkat", int, const char *, int, const char *, int);
    return fails(FAULT_WRITE, ENOSPC) ? -1 : next(from_folder, from, folder, path, flags);
}

SHOWN int rename(const char *from, const char *to)
{
    NEXT(int, "rename", const char *, const char *);
    return fails(FAULT_WRITE, ENOSPC) ? -1 : next(from, to);
}

SHOWN int renameat(int from_folder, const char *from, int folder, const char *to)
{
    NEXT(int, "renameat", int, const char *, int, const char *);
    return fails(FAULT_WRITE, ENOSPC) ? -1 : next(from_folder, from, folder, to);
}

SHOWN int mkstemp(char *path)
{
    NEXT(int, "mkstemp", char *);
    return fails(FAULT_OPEN, EMFILE) ? -1 : next(path);
}

SHOWN int fflush(FILE *file)
{
    NEXT(int, "fflush", FILE *);
    if (!file || !fails(FAULT_WRITE, ENOSPC))
        return next(file);
    file->_flags |= 0x20; /* what ferror looks at */
    return EOF;
}

SHOWN int fclose(FILE *file)
{
    NEXT(int, "fclose", FILE *);
    int status = next(file);
    return fails(FAULT_WRITE, ENOSPC) ? EOF : status;
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

/* What a fortified program calls in place of some of these. */
extern int __open_2(const char *path, int flags);
extern int __openat_2(int folder, const char *path, int flags);
extern ssize_t __read_chk(int fd, void *data, size_t size, size_t room);
extern ssize_t __pread_chk(int fd, void *data, size_t size, off_t offset, size_t room);
extern ssize_t __pread64_chk(int fd, void *data, size_t size, off_t offset, size_t room);
extern ssize_t __readlink_chk(const char *path, char *text, size_t size, size_t room);
extern char *__realpath_chk(const char *path, char *out, size_t room);

SHOWN int __open_2(const char *path, int flags)
{
    return open(path, flags);
}

SHOWN int __openat_2(int folder, const char *path, int flags)
{
    return openat(folder, path, flags);
}

SHOWN ssize_t __read_chk(int fd, void *data, size_t size, size_t room)
{
    return size > room ? abort(), -1 : read(fd, data, size);
}

SHOWN ssize_t __pread_chk(int fd, void *data, size_t size, off_t offset, size_t room)
{
    return size > room ? abort(), -1 : pread(fd, data, size, offset);
}

SHOWN ssize_t __pread64_chk(int fd, void *data, size_t size, off_t offset, size_t room)
{
    return __pread_chk(fd, data, size, offset, room);
}

SHOWN ssize_t __readlink_chk(const char *path, char *text, size_t size, size_t room)
{
    return size > room ? abort(), -1 : readlink(path, text, size);
}

SHOWN char *__realpath_chk(const char *path, char *out, size_t room)
{
    return room < PATH_MAX ? abort(), NULL : realpath(path, out);
}

/* ---- processes and threads ------------------------------------------------------------------------ */

SHOWN pid_t fork(void)
{
    NEXT(pid_t, "fork", void);
    return fails(FAULT_FORK, EAGAIN) ? -1 : next();
}

SHOWN pid_t _Fork(void)
{
    NEXT(pid_t, "_Fork", void);
    return fails(FAULT_FORK, EAGAIN) ? -1 : next();
}

/* A function that returns twice cannot be called from here. */
SHOWN pid_t vfork(void)
{
    return fork();
}

SHOWN int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                      const posix_spawnattr_t *attributes, char *const argv[], char *const environment[])
{
    NEXT(int, "posix_spawn", pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
         char *const[], char *const[]);
    return fails(FAULT_FORK, EAGAIN) ? EAGAIN : next(pid, path, actions, attributes, argv, environment);
}

SHOWN int posix_spawnp(pid_t *pid, const char *name, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attributes, char *const argv[], char *const environment[])
{
    NEXT(int, "posix_spawnp", pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
         char *const[], char *const[]);
    return fails(FAULT_FORK, EAGAIN) ? EAGAIN : next(pid, name, actions, attributes, argv, environment);
}

SHOWN int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument)
{
    NEXT(int, "pthread_create", pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    return fails(FAULT_THREAD, EAGAIN) ? EAGAIN : next(thread, attributes, start, argument);
}
