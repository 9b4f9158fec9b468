/* Twenty times a second: has a client gone away whose connection is suspended, so that nobody reads from it, or who
 * ended in the midst of a request? Is one so slow in sending that it only holds a place? Is an answer late, or a stream
 * silent? */
#include "http_state.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>

enum { PERIOD_MS = 50 };

/* Its sending side was closed, or all of it. */
static bool has_gone(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL);
}

/* And all that it sent has been read: libmicrohttpd does not see an end that comes together with the last bytes. */
static bool has_ended(int fd)
{
    int unread = 0;
    return has_gone(fd) && ioctl(fd, FIONREAD, &unread) == 0 && unread == 0;
}

static void look(const http *h, line *l, double now)
{
    double most = l->state == LINE_READING ? h->options.read_seconds : h->options.idle_seconds;
    if (l->state != LINE_ANSWERING) {
        if (now - l->since > most)
            shutdown(l->fd, SHUT_RDWR); /* libmicrohttpd sees it closed, and closes it                      */
        else if (has_ended(l->fd))
            shutdown(l->fd, SHUT_RD); /* the same when it reads on: a whole request is answered first       */
        return;
    }
    exchange *x = l->exchange;
    if (!x)
        return;
    if (has_gone(l->fd)) {
        exchange_lose(x, false);
    } else if (x->deadline > 0 && now > x->deadline) {
        x->deadline = 0;
        exchange_lose(x, true);
    } else {
        exchange_ping(x, now);
    }
}

void *http_watch(void *http_)
{
    http *h = http_;
    while (!atomic_load(&h->closing)) {
        nanosleep(&(struct timespec){.tv_nsec = PERIOD_MS * 1000000}, NULL);
        double now = http_now();
        pthread_mutex_lock(&h->lock);
        for (line *l = h->lines; l; l = l->next)
            look(h, l, now);
        pthread_mutex_unlock(&h->lock);
    }
    return NULL;
}
