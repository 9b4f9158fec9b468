/* The transport: streams, clients that are gone, slow or late, the end, and where it listens. */
#include "suite.h"
#include "tempdir.h"
#include "wire.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static wire *serve(void)
{
    http_options o = wire_options();
    return wire_serve(&o);
}

/* ---- streams -------------------------------------------------------------------------------------- */

START_TEST(events_go_out_as_they_come)
{
    wire *w = serve();
    int fd = wire_open(w);
    wire_send(fd, WIRE_GET("/stream"));
    const char *head = wire_read(fd, "\r\n\r\n", NULL);
    suite_expect_in(head, "Content-Type: text/event-stream\r\n");
    suite_expect_in(head, "Transfer-Encoding: chunked\r\n");
    suite_expect_in(head, "Cache-Control: no-cache\r\n");
    suite_expect_in(head, "X-Accel-Buffering: no\r\n");
    exchange *x = wire_held(w);
    for (int i = 0; i < 5; i++) {
        ck_assert(exchange_event(x, json_pack("{s:s, s:i}", "text", "\n\ndata: [DONE]\r", "n", i)));
        suite_expect_in(wire_read(fd, "\n\n\r\n", NULL), "data: {\"text\":\"\\n\\ndata: [DONE]\\r\",\"n\":");
    }
    ck_assert(exchange_write(x, "data: [DONE]\n\n", 14));
    exchange_end(x);
    suite_expect_in(wire_read(fd, "0\r\n\r\n", NULL), "\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
    wire_send(fd, WIRE_GET("/text")); /* the connection is as good as before                                  */
    suite_expect_in(wire_read(fd, "}", NULL), "HTTP/1.1 200 OK");
}
END_TEST

START_TEST(a_silent_stream_is_pinged)
{
    http_options o = wire_options();
    o.ping_seconds = 0.1;
    wire *w = wire_serve(&o);
    int fd = wire_open(w);
    wire_send(fd, WIRE_GET("/stream"));
    exchange *x = wire_held(w);
    suite_expect_in(wire_read(fd, ": ping\n\n", NULL), "\r\n: ping\n\n");
    suite_expect_in(wire_read(fd, ": ping\n\n", NULL), "\r\n: ping\n\n");
    exchange_end(x);
}
END_TEST

/* ---- clients that are gone, slow, or late --------------------------------------------------------- */

START_TEST(who_waits_is_told_that_a_client_is_gone)
{
    wire *w = serve();
    for (int i = 0; i < 4; i++) {
        watched seen = {0};
        int fd = wire_open(w);
        wire_send(fd, i < 2 ? WIRE_GET("/hold") : WIRE_GET("/stream"));
        exchange *x = wire_held(w);
        wire_watch(x, &seen);
        shutdown(fd, i % 2 ? SHUT_WR : SHUT_RDWR);
        wire_wait(&seen.gone, 1);
        ck_assert_int_eq(seen.late, 0);
        if (i < 2)
            exchange_error(x, 500, NULL, "nobody reads it");
        else
            ck_assert(!exchange_write(x, "x", 1)), exchange_end(x);
    }
}
END_TEST

START_TEST(who_looks_later_is_told_too)
{
    http_options o = wire_options();
    o.request_seconds = 0.1;
    wire *w = wire_serve(&o);
    watched seen = {0};
    int fd = wire_open(w);
    wire_send(fd, WIRE_GET("/hold"));
    exchange *x = wire_held(w);
    usleep(400000);
    wire_watch(x, &seen);
    wire_wait(&seen.late, 1);
    exchange_error(x, 504, NULL, "too late");
    suite_expect_in(wire_read(fd, "}}", NULL), "\"message\":\"too late\"");
    ck_assert_int_eq(seen.gone, 0);
    wire_send(fd, WIRE_GET("/hold"));
    wire_watch(x = wire_held(w), &seen);
    wire_wait(&seen.late, 2);
    exchange_error(x, 504, NULL, "too late");
    suite_expect_in(wire_read(fd, "}}", NULL), "HTTP/1.1 504 ");
}
END_TEST

START_TEST(who_does_not_watch_is_not_told)
{
    wire *w = serve();
    watched seen = {0};
    int fd = wire_open(w);
    wire_send(fd, WIRE_GET("/hold"));
    exchange *x = wire_held(w);
    wire_watch(x, &seen);
    exchange_watch(x, NULL, NULL);
    shutdown(fd, SHUT_RDWR);
    usleep(300000);
    exchange_error(x, 500, NULL, "nobody reads it");
    ck_assert_int_eq(seen.gone + seen.late, 0);
}
END_TEST

/* Of three that send a byte now and then: one in a head, one in a body, one in the head of a second request. */
START_TEST(slow_senders_are_cut_off)
{
    http_options o = wire_options();
    o.read_seconds = 0.5;
    wire *w = wire_serve(&o);
    int fds[3];
    bool closed[3] = {false}, all = false;
    fds[2] = wire_get(w, o.read_seconds);
    usleep(700000); /* kept open between requests                                                        */
    wire_send(fds[2], "GET /text HTTP/1.1\r\nX: ");
    wire_send(fds[0] = wire_open(w), "GET /text HTTP/1.1\r\nX: ");
    wire_send(fds[1] = wire_open(w), "POST /text HTTP/1.1\r\n" WIRE_HOST "Content-Length: 1000\r\n\r\n");
    for (int n = 0; n < 4000 && !all; n++) {
        all = true;
        for (int i = 0; i < 3; i++) {
            closed[i] |= !wire_try(fds[i], "x", 1);
            all &= closed[i];
        }
        usleep(50000);
    }
    ck_assert(closed[0] && closed[1] && closed[2]);
    wire_get(w, o.read_seconds);
}
END_TEST

/* Long before its time to send is over. */
START_TEST(who_ends_in_the_midst_is_let_go)
{
    static const char *const parts[] = {"GET /te", "GET /text HTTP/1.1\r\nHost: lo",
                                        "POST /text HTTP/1.1\r\n" WIRE_HOST "Content-Length: 9\r\n\r\nhalf"};
    http_options o = wire_options();
    o.read_seconds = 300;
    wire *w = wire_serve(&o);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        bool closed;
        int fd = wire_open(w);
        wire_send(fd, "%s", parts[i]);
        shutdown(fd, SHUT_WR);
        const char *answer = wire_read(fd, NULL, &closed);
        ck_assert_msg(closed && wire_count(answer, " 200 ") == 0, "%s: %s", parts[i], answer);
    }
    ck_assert_int_eq(wire_status(wire_ask(w, WIRE_GET("/text"))), 200);
}
END_TEST

/* What is under way is thrown away, and the other side's writing fails. The number is closed when the test ends. */
static void reset(int fd)
{
    int null = open("/dev/null", O_RDWR);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
    ck_assert(null >= 0 && dup2(null, fd) == fd);
    close(null);
}

/* Whether its client left or it came to its end without chunks: the connection does not wait to be idle for long, also
 * when others on its thread are older. */
START_TEST(a_stream_that_is_over_keeps_no_connection)
{
    enum { OTHERS = 32, STREAMS = 12 };
    static const char old[] = "GET /stream HTTP/1.0\r\n" WIRE_HOST "\r\n";
    http_options o = wire_options();
    o.idle_seconds = 300;
    wire *w = wire_serve(&o);
    for (int i = 0; i < OTHERS; i++) {
        int fd = wire_open(w);
        wire_send(fd, WIRE_GET("/text"));
        suite_expect_in(wire_read(fd, "}", NULL), "HTTP/1.1 200 OK");
    }
    for (int i = 0; i < STREAMS; i++) {
        int fd = wire_open(w);
        wire_send(fd, "%s", i % 2 ? WIRE_GET("/stream") : old);
        exchange *x = wire_held(w);
        ck_assert(exchange_write(x, "data: 1\n\n", 9));
        suite_expect_in(wire_read(fd, "data: 1", NULL), "data: 1");
        if (i % 4 == 0)
            exchange_end(x);
        else
            reset(fd);
        usleep(150000);
        if (i % 4 != 0)
            exchange_end(x);
    }
    wire_wait_for_lines(w, OTHERS);
}
END_TEST

/* What a client does not read in time is not kept for it: neither a whole answer nor a stream, of which some megabytes
 * stand in memory and in the system's buffers by then. */
START_TEST(who_reads_nothing_is_cut_off)
{
    enum { MOST_BLOCKS = 2000 };
    static char block[65536];
    http_options o = wire_options();
    o.idle_seconds = 1;
    wire *w = wire_serve(&o);
    int blocks = 0;
    wire_send(wire_open(w), WIRE_GET("/big"));
    wire_send(wire_open(w), WIRE_GET("/stream"));
    exchange *x = wire_held(w);
    while (blocks < MOST_BLOCKS && exchange_write(x, block, sizeof block))
        blocks++;
    ck_assert_int_lt(blocks, MOST_BLOCKS);
    ck_assert(!exchange_write(x, block, 1));
    exchange_end(x);
    wire_wait_for_lines(w, 0);
    wire_get(w, o.idle_seconds);
}
END_TEST

/* Two of them are at work; others, short ones and those without a body, are answered by threads of their own. */
START_TEST(long_bodies_keep_nobody_waiting)
{
    enum { SIZE = 300000, LONG = 6, SHORT = 12 };
    wire *w = serve();
    int fds[LONG];
    for (int i = 0; i < LONG; i++)
        wire_send(fds[i] = wire_open(w), "POST /wait HTTP/1.1\r\n" WIRE_HOST "Content-Length: %d\r\n\r\n%0*d", SIZE,
                  SIZE, 0);
    wire_wait(wire_waiting(w), 2);
    for (int i = 0; i < SHORT; i++)
        ck_assert_int_eq(wire_status(wire_ask(w, "POST /text HTTP/1.1\r\n" WIRE_HOST "Content-Length: %d\r\n\r\n%s",
                                              i % 2, i % 2 ? "x" : "")),
                         200);
    ck_assert_int_eq(*wire_waiting(w), 2);
    wire_let(w);
    for (int i = 0; i < LONG; i++)
        suite_expect_in(wire_read(fds[i], "{}", NULL), "HTTP/1.1 200 OK");
}
END_TEST

START_TEST(it_ends_whatever_is_open)
{
    http_options o = wire_options();
    wire *w = wire_serve(&o);
    int idle = wire_open(w), half = wire_open(w), unread = wire_open(w), stream = wire_open(w);
    bool closed[3];
    wire_send(idle, WIRE_GET("/text"));
    wire_read(idle, "}", NULL);
    wire_send(half, "POST /text HTTP/1.1\r\n" WIRE_HOST "Content-Length: 10\r\n\r\nx");
    wire_send(unread, WIRE_GET("/big"));
    wire_send(stream, WIRE_GET("/stream"));
    exchange *x = wire_held(w);
    ck_assert(exchange_write(x, "data: last\n\n", 12));
    exchange_end(x);
    wire_close(w);
    wire_read(idle, NULL, &closed[0]);
    wire_read(half, NULL, &closed[1]);
    suite_expect_in(wire_read(stream, NULL, &closed[2]), "data: last\n\n\r\n0\r\n\r\n");
    ck_assert(closed[0] && closed[1] && closed[2]);
}
END_TEST

/* ---- sockets -------------------------------------------------------------------------------------- */

START_TEST(a_path_is_listened_at)
{
    char *dir = tempdir_new();
    tn_error err = TN_ERROR_INIT;
    struct stat st;
    http_options o = wire_options();
    o.unix_path = tempdir_at(dir, "socket");
    wire *w = wire_serve(&o);
    ck_assert(stat(o.unix_path, &st) == 0 && S_ISSOCK(st.st_mode) && (st.st_mode & 0777) == 0660);
    ck_assert_int_eq(wire_status(wire_ask(w, "GET /text HTTP/1.1\r\nHost: any\r\n\r\n")), 200);
    ck_assert_ptr_null(http_open(&o, &err));
    suite_expect_in(err.message, "somebody listens there already");
    ck_assert_int_eq(wire_status(wire_ask(w, WIRE_GET("/text"))), 200);
    wire_close(w);
    ck_assert_int_ne(stat(o.unix_path, &st), 0);
}
END_TEST

START_TEST(what_is_not_its_own_stays)
{
    char *dir = tempdir_new();
    tn_error err = TN_ERROR_INIT;
    struct stat st;
    http_options o = wire_options();
    o.unix_path = wire_file(dir, "file", "text", 0600);
    ck_assert_ptr_null(http_open(&o, &err));
    suite_expect_in(err.message, "is there and no socket");
    ck_assert_int_eq(stat(o.unix_path, &st), 0);
    o.unix_path = tempdir_at(dir, "socket");
    wire *w = wire_serve(&o);
    unlink(o.unix_path); /* by somebody who then puts another there                                      */
    wire *other = wire_serve(&o);
    wire_close(w);
    ck_assert_int_eq(wire_status(wire_ask(other, WIRE_GET("/text"))), 200);
    /* A server that was killed leaves its socket behind. */
    char *left = tempdir_at(dir, "left");
    ck_assert_int_eq(rename(o.unix_path, left), 0);
    wire_close(other);
    o.unix_path = left;
    ck_assert_int_eq(wire_status(wire_ask(wire_serve(&o), WIRE_GET("/text"))), 200);
}
END_TEST

static void refuses(http_options o, const char *words)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(http_open(&o, &err));
    suite_expect_in(err.message, words);
}

START_TEST(what_cannot_be_is_said)
{
    char *dir = tempdir_new();
    http_options o = wire_options(), other = o;
    wire *w = wire_serve(&o);
    (void)w;
    other.host = "no such host";
    refuses(other, "is no address to listen at");
    other.host = "192.0.2.1"; /* which is nobody's                                                       */
    refuses(other, "cannot listen at port 0");
    other = o;
    other.key_file = tempdir_at(dir, "nothing");
    refuses(other, "cannot be read");
    other.key_file = wire_file(dir, "keys", "key\n", 0640);
    refuses(other, "others can read these keys (mode 640); chmod 600 it");
    other.key_file = wire_file(dir, "empty", "# none\n", 0600);
    refuses(other, "holds no key");
    char line[6000];
    memset(line, 'k', sizeof line - 1);
    line[sizeof line - 1] = '\0';
    other.key_file = wire_file(dir, "long", line, 0600);
    refuses(other, "holds a line of more than");
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("http_clients", 300);
    suite_add(tcase, events_go_out_as_they_come, a_silent_stream_is_pinged, who_waits_is_told_that_a_client_is_gone,
              who_looks_later_is_told_too, who_does_not_watch_is_not_told, slow_senders_are_cut_off,
              who_ends_in_the_midst_is_let_go, a_stream_that_is_over_keeps_no_connection, who_reads_nothing_is_cut_off,
              long_bodies_keep_nobody_waiting, it_ends_whatever_is_open, a_path_is_listened_at,
              what_is_not_its_own_stays, what_cannot_be_is_said);
    return suite_run();
}
