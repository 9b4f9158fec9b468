/* What a client sends on a connection, after which it sends no more but reads on: the server answers in whole answers,
 * closes, and is there for the next one, which stays to read. Its handler stands for the API. */
#include "../../serve/http.h"
#include "fuzz_folder.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

FUZZ_ENTRY(fuzz_http)

static char place[sizeof(((struct sockaddr_un *)NULL)->sun_path)];

static void handle(void *ctx, exchange *x)
{
    size_t length;
    const char *path = exchange_path(x), *body = exchange_body(x, &length);
    (void)ctx;
    fuzz_require(body[length] == '\0', "a body without an end");
    if (strcmp(path, "/text") == 0) {
        exchange_json(x, 200, json_pack("{s:i}", "length", (int)length));
    } else if (strcmp(path, "/stream") == 0) {
        exchange_begin_events(x);
        exchange_event(x, json_pack("{s:i}", "n", 1));
        exchange_end(x);
    } else {
        exchange_error(x, 404, "path", "there is nothing at %s", path);
    }
}

static void serve(void)
{
    static const char *const origins[] = {"http://a.example"};
    tn_error err = TN_ERROR_INIT;
    int length = snprintf(place, sizeof place, "%s/socket", fuzz_folder());
    fuzz_require(length < (int)sizeof place, "the socket's path is too long");
    const http_options options = {.unix_path = place,
                                  .origins = origins,
                                  .origin_count = 1,
                                  .body_bytes = 4096,
                                  .read_seconds = 300,
                                  .idle_seconds = 300};
    http *h = http_open(&options, &err);
    fuzz_require(h != NULL, err.message);
    http_handle(h, handle, NULL);
}

/* All that comes back to these bytes, behind which the client ends, or waits; a NUL behind it. Kept until the next
 * time. */
static const char *ask(const uint8_t *data, size_t size, bool ends, size_t *length)
{
    static char answer[1 << 20];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(address.sun_path, place, sizeof place);
    fuzz_require(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "nobody listens");
    for (size_t sent = 0; sent < size;) {
        ssize_t n = send(fd, data + sent, size - sent, MSG_NOSIGNAL);
        if (n <= 0)
            break; /* it has closed                                                                       */
        sent += (size_t)n;
    }
    if (ends) /* who does may count as gone                                                              */
        shutdown(fd, SHUT_WR);
    for (*length = 0;;) {
        struct pollfd waits = {fd, POLLIN, 0};
        int ready = poll(&waits, 1, 60000);
        if (ready < 0 && errno == EINTR) /* the fuzzer's own clock                                              */
            continue;
        fuzz_require(ready == 1, "a connection is neither answered nor closed");
        ssize_t n = recv(fd, answer + *length, sizeof answer - 1 - *length, 0);
        if (n <= 0)
            break;
        *length += (size_t)n;
        fuzz_require(*length < sizeof answer - 1, "more is answered than could be asked for");
    }
    close(fd);
    answer[*length] = '\0';
    return answer;
}

/* The end of the chunks at `at`, or that of all when they are cut. */
static const char *behind_chunks(const char *at, const char *end)
{
    for (;;) {
        char *digits;
        size_t n = strtoul(at, &digits, 16);
        if (digits + 2 > end || n + 4 > (size_t)(end - digits))
            return end;
        fuzz_require(digits > at && memcmp(digits, "\r\n", 2) == 0, "a chunk without its length");
        at = digits + 2 + n;
        fuzz_require(memcmp(at, "\r\n", 2) == 0, "a chunk without an end");
        at += 2;
        if (n == 0)
            return at;
    }
}

/* One answer behind the other, of which the last may be cut. */
static void read_answers(const char *at, size_t length)
{
    for (const char *end = at + length; at < end;) {
        fuzz_require(end - at < 13 || (memcmp(at, "HTTP/1.", 7) == 0 && at[8] == ' '), "an answer without a status");
        const char *body = strstr(at, "\r\n\r\n"), *found;
        if (!body)
            return;
        body += 4;
        /* The library's own page, behind which it closes; it may send the head of one twice. */
        if (memcmp(at + 9, "100", 3) != 0 && (!(found = strstr(at, "\r\nx-request-id: ")) || found > body))
            return;
        bool none = memcmp(at + 9, "100", 3) == 0 || memcmp(at + 9, "204", 3) == 0;
        if ((found = strstr(at, "\r\nTransfer-Encoding: chunked\r\n")) && found < body) {
            at = behind_chunks(body, end);
        } else if ((found = strstr(at, "\r\nContent-Length: ")) && found < body && !none) {
            size_t n = strtoul(found + 18, NULL, 10);
            at = n < (size_t)(end - body) ? body + n : end;
        } else {
            at = none ? body : end;
        }
    }
}

int fuzz_http(const uint8_t *data, size_t size)
{
    static const char plain[] = "GET /text HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    static unsigned times;
    size_t length;
    if (!place[0])
        serve();
    const char *answer = ask(data, size, true, &length);
    /* What answers HEAD has the length of a body that does not come. */
    if (!memmem(data, size, "HEAD", 4))
        read_answers(answer, length);
    if (times++ % 16 == 0) {
        answer = ask((const uint8_t *)plain, sizeof plain - 1, false, &length);
        fuzz_require(strncmp(answer, "HTTP/1.1 200 ", 13) == 0 && strstr(answer, "{\"length\":0}"),
                     "the next client is not answered");
    }
    return 0;
}
