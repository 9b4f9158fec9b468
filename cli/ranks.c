/* Several processes that compute one model: who was started how, and what ranks but 0 do. */
#include "ranks.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What launchers say; -1: nothing. */
static int64_t said_by(const char *const *names)
{
    for (; *names; names++) {
        const char *text = getenv(*names);
        if (text && *text)
            return strtoll(text, NULL, 10);
    }
    return -1;
}

int64_t ranks_own(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", NULL};
    int64_t rank = said_by(names);
    return rank < 0 ? 0 : rank;
}

static int64_t started(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
    return said_by(names);
}

bool ranks_can(const command *c)
{
    for (size_t i = 0; i < c->option_count; i++)
        if (c->options[i].id == OPT_PARALLEL)
            return true;
    return false;
}

tn_status ranks_check(const options *o, tn_error *err)
{
    int64_t count = started();
    if (count < 2 || option_given(o, OPT_PARALLEL) || !ranks_can(o->command))
        return TN_OK;
    return tn_fail(err, TN_E_USAGE, o->command->name,
                   "%lld processes were started, and each would do the same; give --parallel %s, or start one",
                   (long long)count, o->command->of_ranks ? "replicas" : "tensor, sums, experts or pipeline");
}

static struct {
    char text[256];
    int length;
    pid_t process; /* children are ended by SIGTERM, too                                                     */
} farewell;

static void on_term(int number)
{
    ssize_t written = 0;
    if (getpid() == farewell.process)
        written = write(STDERR_FILENO, farewell.text, (size_t)farewell.length);
    (void)written;
    raise(number);
}

void ranks_watch(const options *o)
{
    char host[64] = "";
    struct sigaction action = {.sa_handler = on_term, .sa_flags = (int)SA_RESETHAND}, before;
    if (started() < 2 || ranks_own() > 0 || !option_given(o, OPT_PARALLEL))
        return;
    gethostname(host, sizeof host - 1);
    farewell.process = getpid();
    farewell.length = snprintf(farewell.text, sizeof farewell.text,
                               "tenon: %s: rank 0 on %s: ended by SIGTERM, which mpirun sends where another rank has "
                               "ended, or where it is ended itself\n",
                               o->command->name, host);
    if (sigaction(SIGTERM, NULL, &before) == 0 && before.sa_handler == SIG_DFL)
        sigaction(SIGTERM, &action, NULL);
}

/* What all ranks have agreed on rank 0 says; what stands before that, or behind it, is this rank's alone. */
static bool is_own(const tn_error *err)
{
    return strcmp(err->where, "mpi") == 0 || strcmp(err->where, "replicas") == 0;
}

static void blame(const tn_error *why, tn_error *err)
{
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    ranks_silent = false;
    tn_fail(err, why->code, why->where, "rank %lld on %s: %s", (long long)ranks_own(), host, why->message);
}

void ranks_blame(tn_error *err)
{
    tn_error why = *err;
    if (ranks_own() == 0 || !is_own(err))
        return;
    tn_error_clear(err);
    blame(&why, err);
}

tn_status ranks_follow(const options *o, tn_error *err)
{
    workspace w = {0};
    tn_error why = TN_ERROR_INIT;
    tn_status status = workspace_model(&w, o, o->argument[0], &why);
    bool own = status != TN_OK && is_own(&why);
    if (status == TN_OK) {
        status = tn_follow(w.model, w.config, &why);
        own = status != TN_OK;
    }
    workspace_close(&w);
    if (own)
        blame(&why, err);
    return status;
}
