/* The program `tenon-serve`, which `tenon serve` starts: opens the model, listens, and ends in order. */
#include "../cli/cli.h"
#include "api.h"
#include "http.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MOST_FILES = 4096 };

/* ---- what is asked for ----------------------------------------------------------------------------- */

static http_options http_options_of(const options *o)
{
    return (http_options){.host = option_text(o, OPT_HOST, "127.0.0.1"),
                          .port = (int)option_integer(o, OPT_PORT, 8080),
                          .unix_path = option_text(o, OPT_UNIX, NULL),
                          .key_file = option_text(o, OPT_KEY_FILE, NULL),
                          .origins = o->origins,
                          .origin_count = o->origin_count,
                          .body_bytes = (size_t)option_integer(o, OPT_BODY_MB, 32) << 20,
                          .read_seconds = option_real(o, OPT_READ_TIMEOUT, 30),
                          .idle_seconds = 75,
                          .request_seconds = option_real(o, OPT_REQUEST_TIMEOUT, 0),
                          .ping_seconds = option_real(o, OPT_PING, 15),
                          .log = option_given(o, OPT_VERBOSE)};
}

/* The last part of the checkpoint's path, without what a file's name ends in. */
static const char *name_of(const options *o, const char *folder, char name[256])
{
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/')
        length--;
    const char *begin = folder + length;
    while (begin > folder && begin[-1] != '/')
        begin--;
    snprintf(name, 256, "%.*s", (int)(folder + length - begin), begin);
    char *end = is_gguf(name) ? strrchr(name, '.') : NULL;
    if (end)
        *end = '\0';
    return option_text(o, OPT_NAME, name);
}

/* ---- signals --------------------------------------------------------------------------------------- */

/* All threads leave them to one that waits for them. */
typedef struct ending {
    sigset_t signals;
    http *_Atomic http; /* whoever ends takes it from there                                                 */
    atomic_bool serving;
    sem_t asked;
} ending;

/* They are blocked before the library makes its first thread. */
static void block_signals(ending *e)
{
    sigemptyset(&e->signals);
    sigaddset(&e->signals, SIGTERM);
    sigaddset(&e->signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &e->signals, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static int next_signal(const ending *e)
{
    int number = 0;
    while (sigwait(&e->signals, &number) != 0)
        ;
    return number;
}

/* The first one ends in order what is served; while the model loads that is nothing. A second one ends at once. */
static void *wait_for_signals(void *ending_)
{
    ending *e = ending_;
    int number = next_signal(e);
    if (atomic_load(&e->serving)) {
        sem_post(&e->asked);
        number = next_signal(e);
    }
    http *h = atomic_exchange(&e->http, NULL);
    if (h)
        http_unlisten(h);
    _exit(128 + number);
}

/* Without it nobody is served. */
static void close_http(ending *e)
{
    http *h = atomic_exchange(&e->http, NULL);
    if (!h) /* the other thread is about to end the program                                               */
        for (;;)
            pause();
    http_close(h);
}

static tn_status watch_signals(ending *e, tn_error *err)
{
    pthread_t thread;
    sem_init(&e->asked, 0, 0);
    if (pthread_create(&thread, NULL, wait_for_signals, e) != 0)
        return tn_fail(err, TN_E_MEMORY, "signals", "a thread cannot be started");
    pthread_detach(thread);
    return TN_OK;
}

/* As many connections as there may be take more files than a shell allows by itself. */
static void allow_files(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= MOST_FILES)
        return;
    files.rlim_cur = files.rlim_max < MOST_FILES ? files.rlim_max : MOST_FILES;
    setrlimit(RLIMIT_NOFILE, &files);
}

/* ---- serving --------------------------------------------------------------------------------------- */

/* Kernels that promise the same bits, unless --any-order; where the model has none, that is said and others are taken,
 * unless --same-bits asked for them. *same: what came of it. */
static tn_status apply(workspace *w, bool *same, tn_error *err)
{
    const options *o = w->options;
    *same = !option_given(o, OPT_ANY_ORDER);
    tn_status status = tn_config_set_same_bits(w->config, *same, err);
    if (status == TN_OK)
        status = workspace_apply(w, err);
    if (status != TN_E_KERNEL || !*same || option_given(o, OPT_SAME_BITS))
        return status;
    note(o, WARNING "answers may depend on what else runs, in their last digits: %s: %s", err->where, err->message);
    tn_error_clear(err);
    tn_report_free(w->report);
    w->report = NULL;
    *same = false;
    status = tn_config_set_same_bits(w->config, false, err);
    return status == TN_OK ? workspace_apply(w, err) : status;
}

static tn_status say_where(const options *o, const http *h, tn_error *err)
{
    char line[600];
    const char *host = option_text(o, OPT_HOST, "127.0.0.1"), *path = option_text(o, OPT_UNIX, NULL);
    bool six = strchr(host, ':') != NULL;
    if (path)
        snprintf(line, sizeof line, "listening on %s\n", path);
    else
        snprintf(line, sizeof line, "listening on http://%s%s%s:%d\n", six ? "[" : "", host, six ? "]" : "",
                 http_port(h));
    tn_status status = write_text(line, strlen(line), err);
    return status == TN_OK ? write_flush(err) : status;
}

/* Until it is asked to end. */
static tn_status serve(workspace *w, http *h, ending *e, tn_error *err)
{
    const options *o = w->options;
    const char *folder = o->argument[0];
    char name[256];
    bool same = false;
    tn_status status = apply(w, &same, err);
    const api_options options = {.model = w->model,
                                 .folder = folder,
                                 .name = name_of(o, folder, name),
                                 .aliases = o->aliases,
                                 .alias_count = o->alias_count,
                                 .sequences = option_integer(o, OPT_SEQUENCES, 0),
                                 .queue = option_integer(o, OPT_QUEUE, 128),
                                 .context = option_integer(o, OPT_CONTEXT, 0),
                                 .cache_bytes = (size_t)option_integer(o, OPT_CACHE_MB, 0) << 20,
                                 .kernels = w->report ? w->report->summary : "none",
                                 .same_bits = same};
    if (option_given(o, OPT_CONTEXT))
        workspace_check_context(w, options.context);
    api *a = status == TN_OK ? api_new(&options, err) : NULL;
    if (!a) {
        close_http(e);
        return err->code;
    }
    http_handle(h, api_handle, a);
    atomic_store(&e->serving, true);
    status = say_where(o, h, err);
    if (status == TN_OK) {
        while (sem_wait(&e->asked) != 0)
            ;
        note(o, "ending: %lld requests run", (long long)api_active(a));
    }
    api_stop(a, status == TN_OK ? option_real(o, OPT_DRAIN, 30) : 0);
    close_http(e);
    api_free(a);
    return status;
}

static tn_status run(const options *o, ending *e, tn_error *err)
{
    workspace w = {0};
    http_options ho = http_options_of(o);
    tn_status status = watch_signals(e, err);
    http *h = status == TN_OK ? http_open(&ho, err) : NULL;
    if (!h)
        return err->code;
    atomic_store(&e->http, h);
    status = workspace_model(&w, o, o->argument[0], err);
    if (status == TN_OK)
        status = serve(&w, h, e, err);
    else
        close_http(e);
    workspace_close(&w);
    return status;
}

int main(int argc, char **argv)
{
    static const command *const all[] = {&command_serve, NULL};
    tn_error err = TN_ERROR_INIT;
    static ending e; /* a thread has it until the process ends                                              */
    options o = {.command = &command_serve, .all = all};
    tn_status status = options_parse(&o, argc - 1, argv + 1, &err);
    if (status == TN_OK && option_given(&o, OPT_HELP)) {
        printf("see tenon serve --help\n");
    } else if (status == TN_OK && option_given(&o, OPT_VERSION)) {
        printf("tenon-serve %s\n", tn_version());
    } else if (status == TN_OK) {
        block_signals(&e);
        allow_files();
        status = run(&o, &e, &err);
    }
    options_free(&o);
    if (status == TN_OK)
        return 0;
    fprintf(stderr, "tenon: ");
    print_clean(stderr, err.where, true);
    fputs(err.where[0] ? ": " : "", stderr);
    print_clean(stderr, err.message, true);
    fputc('\n', stderr);
    return status < 0 && status > TN_E_CANCELLED ? -status : 1;
}
