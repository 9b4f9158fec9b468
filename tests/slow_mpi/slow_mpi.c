/* slow_mpi.so: preloaded, it makes messages of MPI late, on one machine.
 *
 * SLOW_MPI_SEED=N (not 0): each message is sent, and each receipt begun, up to SLOW_MPI_MOST microseconds (500) late,
 * by another time for each rank and message, drawn from N. SLOW_MPI_NETWORK=US,GB/S: what is sent takes US
 * microseconds, once for messages to several ranks that are sent at once, and its bytes at that rate; the sender spins
 * for so long, so each rank wants a processor of its own. SLOW_MPI_STAYS=RANK: that one never comes to the end. */
#include <mpi.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static struct {
    uint32_t seed, most;
    double latency, rate; /* us, bytes a us; rate 0: no network                                           */
    int rank;
    bool stays;
} slow;

static atomic_uint drawn;
static atomic_bool sent; /* some of the messages of one call                                            */

__attribute__((constructor)) static void begin(void)
{
    const char *seed = getenv("SLOW_MPI_SEED"), *most = getenv("SLOW_MPI_MOST"), *network = getenv("SLOW_MPI_NETWORK");
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *stays = getenv("SLOW_MPI_STAYS");
    slow.seed = seed ? (uint32_t)strtoul(seed, NULL, 10) : 0;
    slow.most = most ? (uint32_t)strtoul(most, NULL, 10) : 500;
    slow.rank = rank ? atoi(rank) : 0;
    slow.stays = stays && atoi(stays) == slow.rank;
    if (network && (sscanf(network, "%lf,%lf", &slow.latency, &slow.rate) != 2 || slow.rate <= 0)) {
        fprintf(stderr, "slow_mpi: SLOW_MPI_NETWORK is '%s', not US,GB/S as 20,1.1\n", network);
        exit(2);
    }
    slow.rate *= 1e3;
}

static void be_late(void)
{
    if (!slow.seed)
        return;
    uint32_t x = atomic_fetch_add(&drawn, 1) * 2654435761U ^ slow.seed * 40503U ^ (uint32_t)slow.rank * 2246822519U;
    x = (x ^ x >> 15) * 2246822519U;
    x = (x ^ x >> 13) * 3266489917U;
    nanosleep(&(struct timespec){0, (long)((x ^ x >> 16) % (slow.most + 1)) * 1000}, NULL);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static void cross(int count, MPI_Datatype type)
{
    int size = 1;
    if (slow.rate <= 0)
        return;
    MPI_Type_size(type, &size);
    double latency = atomic_exchange(&sent, 1) ? 0 : slow.latency;
    for (double until = now() + latency + (double)count * size / slow.rate; now() < until;) {
    }
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request)
{
    be_late();
    cross(count, type);
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Irecv(void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request)
{
    be_late();
    return PMPI_Irecv(data, count, type, from, tag, comm, request);
}

int MPI_Testall(int count, MPI_Request *requests, int *done, MPI_Status *statuses)
{
    atomic_store(&sent, 0);
    return PMPI_Testall(count, requests, done, statuses);
}

int MPI_Finalize(void)
{
    while (slow.stays)
        pause();
    return PMPI_Finalize();
}
