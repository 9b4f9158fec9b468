/* The program `tenon-serve`, which `tenon serve` starts: opens the model, listens, and ends in order. */
#include "../cli/cli.h"
#include "api.h"
#include "http.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* All threads leave them to one that waits for them. They are blocked before the library makes its first thread. */
static void block_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    pthread_sigmask(SIG_BLOCK, set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static int wait_for_end(const sigset_t *set)
{
    int number = 0;
    while (sigwait(set, &number) != 0)
        ;
    return number;
}

/* A second signal ends at once. */
static void *end_at_once(void *set)
{
    wait_for_end(set);
    _exit(130);
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

static tn_status serve(workspace *w, http *h, sigset_t *signals, tn_error *err)
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
    if (!a)
        return err->code;
    http_handle(h, api_handle, a);
    status = say_where(o, h, err);
    pthread_t second;
    if (status == TN_OK) {
        wait_for_end(signals);
        note(o, "ending: %lld requests run", (long long)api_active(a));
        if (pthread_create(&second, NULL, end_at_once, signals) == 0)
            pthread_detach(second);
    }
    api_stop(a, status == TN_OK ? option_real(o, OPT_DRAIN, 30) : 0);
    http_close(h);
    api_free(a);
    return status;
}

static tn_status run(const options *o, sigset_t *signals, tn_error *err)
{
    workspace w = {0};
    http_options ho = http_options_of(o);
    http *h = http_open(&ho, err);
    if (!h)
        return err->code;
    tn_status status = workspace_model(&w, o, o->argument[0], err);
    if (status == TN_OK)
        status = serve(&w, h, signals, err);
    else
        http_close(h);
    workspace_close(&w);
    return status;
}

int main(int argc, char **argv)
{
    static const command *const all[] = {&command_serve, NULL};
    tn_error err = TN_ERROR_INIT;
    sigset_t signals;
    options o = {.command = &command_serve, .all = all};
    tn_status status = options_parse(&o, argc - 1, argv + 1, &err);
    if (status == TN_OK && option_given(&o, OPT_HELP)) {
        printf("see tenon serve --help\n");
    } else if (status == TN_OK && option_given(&o, OPT_VERSION)) {
        printf("tenon-serve %s\n", tn_version());
    } else if (status == TN_OK) {
        block_signals(&signals);
        status = run(&o, &signals, &err);
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
