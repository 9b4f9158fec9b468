/* Where it listens: an address and a port, or a path. */
#include "http_state.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 128 };

/* ---- a path --------------------------------------------------------------------------------------- */

/* Of a server that is gone: nobody but the system refuses, and that at once. */
static bool is_left_over(const struct sockaddr_un *address)
{
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool refused = probe >= 0 && connect(probe, (const void *)address, sizeof *address) != 0 && errno == ECONNREFUSED;
    if (probe >= 0)
        close(probe);
    return refused;
}

static tn_status make_room(const struct sockaddr_un *address, tn_error *err)
{
    struct stat st;
    const char *path = address->sun_path;
    if (lstat(path, &st) != 0)
        return TN_OK;
    if (!S_ISSOCK(st.st_mode))
        return tn_fail(err, TN_E_USAGE, path, "is there and no socket");
    if (!is_left_over(address))
        return tn_fail(err, TN_E_USAGE, path, "somebody listens there already");
    unlink(path);
    return TN_OK;
}

static tn_status listen_unix(http *h, tn_error *err)
{
    const char *path = h->options.unix_path;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return tn_fail(err, TN_E_USAGE, path, "a socket's path has at most %zu characters",
                       sizeof address.sun_path - 1);
    strcpy(address.sun_path, path);
    tn_status status = make_room(&address, err);
    if (status)
        return status;
    h->listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    mode_t before = umask(0117); /* for its owner and group alone                                         */
    bool bound = h->listening >= 0 && bind(h->listening, (void *)&address, sizeof address) == 0;
    umask(before);
    h->bound = bound && lstat(path, &h->socket) == 0;
    if (!bound || listen(h->listening, BACKLOG) != 0)
        return tn_fail(err, TN_E_USAGE, path, "cannot listen: %s", strerror(errno));
    return TN_OK;
}

void http_unlisten(const http *h)
{
    struct stat st;
    if (h->bound && lstat(h->options.unix_path, &st) == 0 && st.st_dev == h->socket.st_dev &&
        st.st_ino == h->socket.st_ino)
        unlink(h->options.unix_path);
}

/* ---- a port --------------------------------------------------------------------------------------- */

static bool is_loopback(const struct sockaddr *a)
{
    const struct sockaddr_in *four = (const void *)a;
    const struct sockaddr_in6 *six = (const void *)a;
    return a->sa_family == AF_INET    ? (ntohl(four->sin_addr.s_addr) >> 24) == 127
           : a->sa_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&six->sin6_addr)
                                      : false;
}

static int own_port(int fd)
{
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    if (getsockname(fd, (void *)&own, &size) != 0)
        return 0;
    return ntohs(own.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&own)->sin6_port
                                           : ((struct sockaddr_in *)(void *)&own)->sin_port);
}

/* A socket that listens there; -1: errno says why not. */
static int listen_there(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)) == 0 &&
        bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int why = errno;
    if (fd >= 0)
        close(fd);
    errno = why;
    return -1;
}

/* A name may have several addresses, of which the machine has some only: the first that works. */
static tn_status listen_at(http *h, tn_error *err)
{
    char port[16];
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM}, *found = NULL;
    snprintf(port, sizeof port, "%d", h->options.port);
    int failed = getaddrinfo(h->options.host, port, &hints, &found), why = 0;
    if (failed)
        return tn_fail(err, TN_E_USAGE, h->options.host, "is no address to listen at: %s", gai_strerror(failed));
    for (const struct addrinfo *a = found; a && h->listening < 0; a = a->ai_next) {
        h->local = is_loopback(a->ai_addr);
        h->listening = listen_there(a);
        why = errno;
    }
    freeaddrinfo(found);
    if (h->listening < 0)
        return tn_fail(err, TN_E_USAGE, h->options.host, "cannot listen at port %d: %s; take another with --port",
                       h->options.port, strerror(why));
    h->port = own_port(h->listening);
    return TN_OK;
}

tn_status http_listen(http *h, tn_error *err)
{
    return h->options.unix_path ? listen_unix(h, err) : listen_at(h, err);
}
