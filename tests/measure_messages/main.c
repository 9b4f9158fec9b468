/* measure_messages PLUGINS [BYTES]: under mpirun, how long it takes until each rank has BYTES (16384) of every other
 * one, and how much of a processor a rank takes that waits for rank 0's next order. Rank 0 prints a line of JSON. */
#include "launched.h"

#include <tenon/tenon.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { TIMES = 2000, IDLE = 5 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double used(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure(const tn_group *g, long size, tn_error *err)
{
    int64_t *bytes = calloc((size_t)g->ranks, sizeof *bytes), each[64];
    double *took = calloc(TIMES, sizeof *took), shares[64] = {0};
    char *all = calloc((size_t)g->ranks, (size_t)size), order = 0;
    bool ok = bytes && took && all && g->ranks <= 64;
    for (int r = 0; r < g->ranks && ok; r++) {
        bytes[r] = size;
        each[r] = sizeof *shares;
    }
    for (int i = 0; i < TIMES && ok; i++) {
        double from = now();
        ok = g->gather(g->self, all, bytes, err) == TN_OK;
        took[i] = now() - from;
    }
    double from = now(), of = used();
    if (ok && g->rank == 0)
        sleep(IDLE);
    ok = ok && g->tell(g->self, &order, 1, true, err) == TN_OK;
    if (ok)
        shares[g->rank] = (used() - of) / (now() - from);
    ok = ok && g->gather(g->self, shares, each, err) == TN_OK;
    if (ok && g->rank == 0) {
        double most = 0;
        for (int r = 1; r < g->ranks; r++)
            most = shares[r] > most ? shares[r] : most;
        qsort(took, TIMES, sizeof *took, by_size);
        printf("{\"ranks\": %d, \"bytes\": %ld, \"us\": %.2f, \"best_tenth_us\": %.2f, \"idle_share\": %.4f}\n",
               (int)g->ranks, size, took[TIMES / 2] * 1e6, took[TIMES / 10] * 1e6, most);
    }
    free(bytes);
    free(took);
    free(all);
    return !ok;
}

int main(int argc, char **argv)
{
    tn_error err = TN_ERROR_INIT;
    char plugins[4096];
    long size = argc > 2 ? strtol(argv[2], NULL, 10) : 16384;
    tn_config *config = tn_config_new();
    if (argc < 2 || size < 1 || !realpath(argv[1], plugins) || !config) {
        fputs("usage: measure_messages PLUGINS [BYTES]\n", stderr);
        return 2;
    }
    const tn_group *g = NULL;
    int failed = tn_config_set_plugins(config, plugins, &err) != TN_OK || tn_scan(config, &err) != TN_OK ||
                 !(g = launched_open(&err)) || measure(g, size, &err);
    if (failed)
        fprintf(stderr, "measure_messages: %s: %s\n", err.where, err.message);
    else
        launched_close();
    tn_config_free(config);
    return failed;
}
