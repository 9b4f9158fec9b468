/* Files of the cache folder. */
#include "plugin/cachefile.h"

#include "base/clock.h"

#include <tenon/tenon.h>

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

/* Of a file that is used, its time is set anew after so many seconds: pruning goes by it, since access times are kept
 * by few systems. */
enum { USED_AGAIN = 24 * 60 * 60 };

/* Stores between two looks at the bounds. */
enum { STORES = 64 };

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
    char path[CACHEFILE_PATH], *text = NULL;
    const char *why;
    int folder = cachefile_open(false, path, sizeof path, &why);
    if (folder < 0)
        return NULL;
    struct stat st;
    int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (file >= 0 && fstat(file, &st) == 0 && S_ISREG(st.st_mode) && cachefile_is_private(&st))
        text = malloc(most + 1);
    ssize_t n = text ? read(file, text, most) : -1;
    if (n >= 0 && time(NULL) - st.st_mtim.tv_sec > USED_AGAIN)
        futimens(file, NULL);
    if (file >= 0)
        close(file);
    close(folder);
    if (text)
        text[n > 0 ? n : 0] = '\0';
    if (text && folder_path)
        snprintf(folder_path, folder_size, "%s", path);
    return text;
}

/* Every so many stores of all processes together, about: each begins to count somewhere else. */
static bool is_due(void)
{
    static atomic_uint stores;
    static atomic_bool counting;
    if (!atomic_exchange(&counting, true))
        atomic_fetch_add(&stores, (unsigned)((uint64_t)(clock_seconds() * 1e6) % STORES));
    return atomic_fetch_add(&stores, 1) % STORES == 0;
}

void cachefile_store(const char *name, const char *text, size_t bytes)
{
    char path[CACHEFILE_PATH], unfinished[300];
    const char *why;
    assert(cachefile_is_ours(name));
    int folder = cachefile_open(true, path, sizeof path, &why);
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
    if (is_due())
        cachefile_bound(folder);
    close(folder);
}
