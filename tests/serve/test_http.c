/* The transport: what requests it takes, and whom it answers. */
#include "suite.h"
#include "tempdir.h"
#include "wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static wire *serve(void)
{
    http_options o = wire_options();
    return wire_serve(&o);
}

/* ---- requests ------------------------------------------------------------------------------------- */

START_TEST(requests_are_answered_in_their_order)
{
    wire *w = serve();
    const char *all = wire_ask(w,
                               "POST /v1/text/?query HTTP/1.1\r\n" WIRE_HOST "Content-Length: 3\r\n\r\none"
                               "POST /text HTTP/1.1\r\n" WIRE_HOST
                               "Transfer-Encoding: chunked\r\n\r\n2\r\ntw\r\n1;x=y\r\no\r\n0\r\n\r\n"
                               "%s"
                               "GET /text HTTP/1.1\r\n" WIRE_HOST "Connection: close\r\n\r\n",
                               WIRE_GET("/nothing"));
    const char *one = strstr(all, "{\"text\":\"one\"}"), *two = strstr(all, "{\"text\":\"two\"}");
    ck_assert_int_eq(wire_count(all, "HTTP/1.1 200 OK\r\n"), 3);
    ck_assert_int_eq(wire_count(all, "HTTP/1.1 404 "), 1);
    ck_assert(one && two && one < two && two < strstr(all, "{\"text\":\"\"}"));
    ck_assert_int_eq(wire_count(all, "Content-Type: application/json\r\n"), 4);
    ck_assert_int_eq(wire_count(all, "X-Content-Type-Options: nosniff\r\n"), 4);
    suite_expect_in(all,
                    "{\"error\":{\"message\":\"there is nothing at /nothing\",\"type\":\"not_found_error\",\"param\":"
                    "\"path\",\"code\":404}}");
    const char *first = strstr(all, "x-request-id: "), *second = first ? strstr(first + 1, "x-request-id: ") : NULL;
    ck_assert(first && second && strncmp(first, second, 34) != 0);
}
END_TEST

START_TEST(the_head_comes_without_the_page)
{
    wire *w = serve();
    const char *page = wire_ask(w, WIRE_GET("/")), *head = wire_ask(w, "HEAD / HTTP/1.1\r\n" WIRE_HOST "\r\n");
    suite_expect_in(page, "Content-Type: text/html; charset=utf-8\r\n");
    suite_expect_in(page, "Content-Security-Policy: default-src 'none';");
    suite_expect_in(page, "</html>");
    ck_assert_int_eq(wire_status(head), 200);
    ck_assert_ptr_null(strstr(head, "</html>"));
}
END_TEST

/* Some would find another request behind these than others do. */
static const char *const ambiguous[] = {
    "Content-Length: 5\r\nContent-Length: 60\r\n",
    "Content-Length: 5\r\nContent-Length: 5\r\n",
    "Content-Length: 5, 5\r\n",
    "Content-Length: +5\r\n",
    "Content-Length: -5\r\n",
    "Content-Length: 0x5\r\n",
    "Content-Length:\r\n",
    "Content-Length: 99999999999999999999\r\n",
    "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip, chunked\r\n",
    "Transfer-Encoding: identity\r\n",
    "Transfer-Encoding : chunked\r\n",
    "Content-Length : 5\r\n",
    " Content-Length: 5\r\n",
    "X: a\rContent-Length: 5\r\n",
    "X: a\r\n Content-Length: 5\r\n",
    "X\x01: a\r\n",
    "X: \x7f\r\n",
    "(X): a\r\n",
    "Host: evil.example\r\n",
};

START_TEST(a_head_that_can_be_read_twice_is_refused)
{
    wire *w = serve();
    const char *answer =
        wire_ask(w, "POST /text HTTP/1.1\r\n" WIRE_HOST "%s\r\n0\r\n\r\n" WIRE_GET("/text"), ambiguous[_i]);
    ck_assert_msg(wire_status(answer) == 400 || wire_status(answer) == 413 || !*answer, "%s: %s", ambiguous[_i],
                  answer);
    ck_assert_int_eq(wire_count(answer, "HTTP/1.1 200"), 0);
    ck_assert_int_eq(wire_status(wire_ask(w, WIRE_GET("/text"))), 200);
}
END_TEST

START_TEST(a_path_holds_no_nul)
{
    wire *w = serve();
    ck_assert_int_eq(wire_status(wire_ask(w, WIRE_GET("/text%%00.html"))), 400);
    ck_assert_int_eq(wire_status(wire_ask(w, WIRE_GET("/text%%2e"))), 404);
    ck_assert_int_eq(wire_status(wire_ask(w, WIRE_GET("/../../text"))), 404);
}
END_TEST

static const struct {
    const char *host;
    int status;
} hosts[] = {
    {"localhost", 200},
    {"LocalHost:8080", 200},
    {"127.0.0.1", 200},
    {"127.0.0.1:1", 200},
    {"[::1]:8080", 200},
    {"[::1]", 200},
    {"192.168.1.7:8080", 200},
    {"evil.example", 421},
    {"evil.example:8080", 421},
    {"localhost.evil.example", 421},
    {"localhost:80@evil.example", 421},
    {"[::1]evil.example", 421},
    {"[localhost", 421},
    {"", 421},
    {":8080", 421},
};

START_TEST(another_host_is_refused)
{
    wire *w = serve();
    const char *answer = wire_ask(w, "GET /text HTTP/1.1\r\nHost: %s\r\n\r\n", hosts[_i].host);
    ck_assert_msg(wire_status(answer) == hosts[_i].status, "%s: %s", hosts[_i].host, answer);
}
END_TEST

START_TEST(http_1_0_is_spoken)
{
    wire *w = serve();
    bool closed;
    int fd = wire_open(w);
    wire_send(fd, "GET /stream HTTP/1.0\r\n\r\n");
    exchange *x = wire_held(w);
    exchange_event(x, json_pack("{s:i}", "n", 1));
    exchange_end(x);
    const char *answer = wire_read(fd, NULL, &closed);
    ck_assert(closed);
    ck_assert_ptr_null(strstr(answer, "hunked"));
    suite_expect_in(answer, "\r\n\r\ndata: {\"n\":1}\n\n");
}
END_TEST

/* ---- bodies --------------------------------------------------------------------------------------- */

START_TEST(a_body_that_is_too_long_is_refused)
{
    http_options o = wire_options();
    o.body_bytes = 1000;
    wire *w = wire_serve(&o);
    static const char head[] = "POST /text HTTP/1.1\r\n" WIRE_HOST;
    const char *answer = wire_ask(w, "%sContent-Length: 1001\r\n\r\n%01001d" WIRE_GET("/text"), head, 0);
    ck_assert_int_eq(wire_status(answer), 413);
    suite_expect_in(answer, "\"message\":\"the body has more than 1000 bytes (--max-body-mb)\"");
    ck_assert_int_eq(wire_count(answer, "HTTP/1.1 200"), 1); /* the next one                             */
    answer = wire_ask(w, "%sTransfer-Encoding: chunked\r\n\r\n3e9\r\n%01001d\r\n0\r\n\r\n", head, 0);
    ck_assert_int_eq(wire_status(answer), 413);
    answer = wire_ask(w, "%sContent-Length: 1000\r\n\r\n%01000d", head, 0);
    ck_assert_int_eq(wire_status(answer), 200);
}
END_TEST

START_TEST(who_asks_whether_to_send_is_told)
{
    http_options o = wire_options();
    o.body_bytes = 1000;
    wire *w = wire_serve(&o);
    bool closed;
    int fd = wire_open(w);
    wire_send(fd, "POST /text HTTP/1.1\r\n" WIRE_HOST "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    suite_expect_in(wire_read(fd, "\r\n\r\n", NULL), "HTTP/1.1 100 Continue\r\n\r\n");
    wire_send(fd, "abc");
    suite_expect_in(wire_read(fd, "}", NULL), "{\"text\":\"abc\"}");
    wire_send(fd, "POST /text HTTP/1.1\r\n" WIRE_HOST "Expect: 100-continue\r\nContent-Length: 1001\r\n\r\n");
    const char *answer = wire_read(fd, NULL, &closed);
    ck_assert_int_eq(wire_status(answer), 413);
    ck_assert(closed);
}
END_TEST

/* One in the hand of each of sixteen: there is no room for another. */
START_TEST(all_bodies_together_are_bounded)
{
    enum { SIZE = 60000, ROOM = 16 };
    http_options o = wire_options();
    o.body_bytes = SIZE;
    wire *w = wire_serve(&o);
    exchange *held[ROOM];
    for (int i = 0; i < ROOM; i++) {
        wire_send(wire_open(w), "POST /hold HTTP/1.1\r\n" WIRE_HOST "Content-Length: %d\r\n\r\n%0*d", SIZE, SIZE, 0);
        held[i] = wire_held(w);
    }
    const char *answer =
        wire_ask(w, "POST /text HTTP/1.1\r\n" WIRE_HOST "Content-Length: %d\r\n\r\n%0*d", SIZE, SIZE, 0);
    ck_assert_int_eq(wire_status(answer), 503);
    suite_expect_in(answer, "Retry-After: ");
    for (int i = 0; i < ROOM; i++)
        exchange_error(held[i], 500, NULL, "enough");
    answer = wire_ask(w, "POST /text HTTP/1.1\r\n" WIRE_HOST "Content-Length: %d\r\n\r\n%0*d", SIZE, SIZE, 0);
    ck_assert_int_eq(wire_status(answer), 200);
}
END_TEST

/* ---- who may ask ---------------------------------------------------------------------------------- */

START_TEST(keys_are_asked_for)
{
    char *dir = tempdir_new();
    http_options o = wire_options();
    o.key_file = wire_file(dir, "keys", "# of a friend\n\n  first-key \r\nsecond-key", 0600);
    wire *w = wire_serve(&o);
    static const struct {
        const char *headers;
        int status;
    } cases[] = {{"", 401},
                 {"Authorization: Bearer first-key\r\n", 200},
                 {"Authorization: bEARER  second-key\r\n", 200},
                 {"X-Api-Key: second-key\r\n", 200},
                 {"Authorization: Bearer another\r\nX-Api-Key: first-key\r\n", 200},
                 {"Authorization: Bearer first-ke\r\n", 401},
                 {"Authorization: Bearer first-keyy\r\n", 401},
                 {"Authorization: Bearer \r\n", 401},
                 {"Authorization: Bearer\r\n", 401},
                 {"Authorization: first-key\r\n", 401},
                 {"Authorization: Basic first-key\r\n", 401},
                 {"X-Api-Key: # of a friend\r\n", 401},
                 {"X-Api-Key:\r\n", 401}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *answer = wire_ask(w, "GET /text HTTP/1.1\r\n" WIRE_HOST "%s\r\n", cases[i].headers);
        ck_assert_msg(wire_status(answer) == cases[i].status, "%s: %s", cases[i].headers, answer);
    }
    ck_assert_int_eq(wire_status(wire_ask(w, WIRE_GET("/"))), 200);
    ck_assert_int_eq(wire_status(wire_ask(w, WIRE_GET("/health"))), 404); /* of the handler                       */
    ck_assert_int_eq(wire_status(wire_ask(w, "OPTIONS /text HTTP/1.1\r\n" WIRE_HOST "\r\n")), 204);
}
END_TEST

START_TEST(pages_from_elsewhere_are_shut_out)
{
    const char *answer = wire_ask(serve(), "OPTIONS /text HTTP/1.1\r\n" WIRE_HOST "Origin: http://app.example\r\n"
                                           "Access-Control-Request-Method: POST\r\n\r\n");
    ck_assert_int_eq(wire_status(answer), 204);
    ck_assert_ptr_null(strstr(answer, "Access-Control"));
}
END_TEST

START_TEST(pages_from_where_it_is_allowed_may_ask)
{
    const char *const origins[] = {"http://app.example", "http://other.example"};
    http_options o = wire_options();
    o.origins = origins;
    o.origin_count = 2;
    wire *w = wire_serve(&o);
    const char *answer = wire_ask(w, "OPTIONS /text HTTP/1.1\r\n" WIRE_HOST "Origin: http://app.example\r\n"
                                     "Access-Control-Request-Headers: authorization,x-stainless-os\r\n\r\n");
    suite_expect_in(answer, "Access-Control-Allow-Origin: http://app.example\r\n");
    suite_expect_in(answer, "Access-Control-Allow-Headers: authorization,x-stainless-os\r\n");
    suite_expect_in(answer, "Vary: Origin\r\n");
    answer = wire_ask(w, "GET /text HTTP/1.1\r\n" WIRE_HOST "Origin: http://other.example\r\n\r\n");
    suite_expect_in(answer, "Access-Control-Allow-Origin: http://other.example\r\n");
    answer = wire_ask(w, "GET /text HTTP/1.1\r\n" WIRE_HOST "Origin: http://app.example.evil\r\n\r\n");
    ck_assert_ptr_null(strstr(answer, "Access-Control"));
    suite_expect_in(answer, "Vary: Origin\r\n");
}
END_TEST

START_TEST(until_there_is_a_handler_it_is_loading)
{
    http_options o = wire_options();
    wire *w = wire_load(&o);
    const char *answer = wire_ask(w, WIRE_GET("/health"));
    ck_assert_int_eq(wire_status(answer), 503);
    suite_expect_in(answer, "{\"error\":{\"message\":\"Loading model\",\"type\":\"unavailable_error\"");
    suite_expect_in(answer, "Retry-After: ");
    wire_loaded(w);
    ck_assert_int_eq(wire_status(wire_ask(w, WIRE_GET("/text"))), 200);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("http", 300);
    suite_add(tcase, requests_are_answered_in_their_order, the_head_comes_without_the_page, a_path_holds_no_nul,
              http_1_0_is_spoken, a_body_that_is_too_long_is_refused, who_asks_whether_to_send_is_told,
              all_bodies_together_are_bounded, keys_are_asked_for, pages_from_elsewhere_are_shut_out,
              pages_from_where_it_is_allowed_may_ask, until_there_is_a_handler_it_is_loading);
    tcase_add_loop_test(tcase, a_head_that_can_be_read_twice_is_refused, 0, sizeof ambiguous / sizeof *ambiguous);
    tcase_add_loop_test(tcase, another_host_is_refused, 0, sizeof hosts / sizeof *hosts);
    return suite_run();
}
