/* The handler of SIGBUS finds the mapping by address in a list that only grows: entries are used again, never freed. It
 * puts pages of zeros where the file ended, so that the thread that touched them goes on. */
#include "base/mapped.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct mapped {
    _Atomic(uintptr_t) start; /* 0: free                                                             */
    _Atomic(size_t) size;
    atomic_bool cut;
    struct mapped *next; /* of all entries; set once                                               */
    char *path;
    struct stat before;
};

static _Atomic(mapped *) all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of those who take and give back entries */
static struct sigaction previous;
static uintptr_t page_size;

/* ---- the fault ---------------------------------------------------------------------------------------- */

/* Whoever handled SIGBUS before. Its default is put back and met again when the instruction is repeated. */
static void hand_on(int signal, siginfo_t *info, void *context)
{
    if (previous.sa_flags & SA_SIGINFO)
        previous.sa_sigaction(signal, info, context);
    else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
        previous.sa_handler(signal);
    else
        sigaction(SIGBUS, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
}

static void on_bus_error(int signal, siginfo_t *info, void *context)
{
    uintptr_t at = (uintptr_t)info->si_addr;
    int before = errno;
    for (mapped *m = atomic_load(&all); m && info->si_code == BUS_ADRERR; m = m->next) {
        uintptr_t start = atomic_load(&m->start);
        size_t size = (atomic_load(&m->size) + page_size - 1) & ~(page_size - 1);
        if (!start || at < start || at - start >= size)
            continue;
        uintptr_t page = at & ~(page_size - 1);
        atomic_store(&m->cut, true);
        /* Everything behind the page is gone as well. NOLINTNEXTLINE(performance-no-int-to-ptr) */
        void *zeros = mmap((void *)page, start + size - page, PROT_READ,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        errno = before;
        if (zeros != MAP_FAILED)
            return;
        break;
    }
    hand_on(signal, info, context);
}

static void install(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &previous);
}

/* ---- mappings ----------------------------------------------------------------------------------------- */

/* A free entry, with the lock held; NULL without memory. */
static mapped *take(void)
{
    for (mapped *m = atomic_load(&all); m; m = m->next)
        if (!atomic_load(&m->start))
            return m;
    mapped *m = calloc(1, sizeof *m);
    if (m) {
        m->next = atomic_load(&all);
        atomic_store(&all, m);
    }
    return m;
}

mapped *mapped_open(int fd, const char *path, size_t size, tn_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct stat before;
    char *copy = strdup(path);
    mapped *m = NULL;
    pthread_once(&once, install);
    if (fstat(fd, &before) != 0) {
        tn_fail(err, TN_E_INPUT, path, "cannot read its size: %s", strerror(errno));
        free(copy);
        return NULL;
    }
    void *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    int why = errno;
    pthread_mutex_lock(&lock);
    if (data != MAP_FAILED && copy && (m = take())) {
        m->path = copy;
        m->before = before;
        atomic_store(&m->cut, false);
        atomic_store(&m->size, size);
        atomic_store(&m->start, (uintptr_t)data);
    }
    pthread_mutex_unlock(&lock);
    if (m)
        return m;
    if (data == MAP_FAILED)
        tn_fail(err, why == ENOMEM ? TN_E_MEMORY : TN_E_INPUT, path, "cannot map %zu bytes: %s", size, strerror(why));
    else
        munmap(data, size);
    tn_fail(err, TN_E_MEMORY, path, "out of memory");
    free(copy);
    return NULL;
}

void mapped_close(mapped *m)
{
    if (!m)
        return;
    void *data = (void *)(uintptr_t)mapped_data(m);
    pthread_mutex_lock(&lock);
    free(m->path);
    m->path = NULL;
    /* Unmapped before the entry is free: a fault of another thread at this address afterwards is not this file's. */
    munmap(data, atomic_load(&m->size));
    atomic_store(&m->start, 0);
    pthread_mutex_unlock(&lock);
}

const void *mapped_data(const mapped *m)
{
    return (const void *)atomic_load(&m->start); /* NOLINT(performance-no-int-to-ptr)                    */
}

void mapped_forget(const void *data, size_t bytes)
{
    uintptr_t first = ((uintptr_t)data + page_size - 1) & ~(page_size - 1);
    uintptr_t end = ((uintptr_t)data + bytes) & ~(page_size - 1);
    const mapped *m = atomic_load(&all);
    while (m && (first < atomic_load(&m->start) || end > atomic_load(&m->start) + atomic_load(&m->size)))
        m = m->next;
    if (m && first < end)
        madvise((void *)first, end - first, MADV_DONTNEED); /* NOLINT(performance-no-int-to-ptr) */
}

tn_status mapped_check(const mapped *m, tn_error *err)
{
    struct stat now;
    if (atomic_load(&m->cut))
        return tn_fail(err, TN_E_INPUT, m->path,
                       "was cut short while it was in use, and the result is worth nothing; fetch it again");
    if (stat(m->path, &now) != 0 || now.st_dev != m->before.st_dev || now.st_ino != m->before.st_ino)
        return TN_OK;
    if (now.st_size == m->before.st_size && now.st_mtim.tv_sec == m->before.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == m->before.st_mtim.tv_nsec)
        return TN_OK;
    return tn_fail(err, TN_E_INPUT, m->path,
                   "was changed while it was in use, and the result is worth nothing; open it again");
}
