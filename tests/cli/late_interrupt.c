/* A library for LD_PRELOAD: Ctrl-C is pressed when the program turns to standard input for the first time, behind
 * whatever it looks at before. */
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

static void turn_to(int fd)
{
    static int turns;
    if (fd == STDIN_FILENO && turns++ == 0)
        raise(SIGINT);
}

SHOWN int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *limit, const sigset_t *mask)
{
    int (*next)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *) =
        (int (*)(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *))(uintptr_t)dlsym(RTLD_NEXT,
                                                                                                      "ppoll");
    turn_to(fds[0].fd);
    return next(fds, count, limit, mask);
}

SHOWN ssize_t read(int fd, void *data, size_t size)
{
    ssize_t (*next)(int, void *, size_t) = (ssize_t(*)(int, void *, size_t))(uintptr_t)dlsym(RTLD_NEXT, "read");
    turn_to(fd);
    return next(fd, data, size);
}
