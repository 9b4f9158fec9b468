/* Ranks over MPI: every rank sends its part to each of the others, so that who does not answer is known by number and
 * host, and no collective's choice of algorithm matters. */
#include <tenon/group.h>

#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HOST = 64, TAG = 7, TAG_SIGNS = 8 };

static const int64_t PIECE = INT64_C(1) << 30; /* counts are int                                        */

typedef struct end {
    int rank, ranks;
    double patience;
    MPI_Comm comm;
    MPI_Request *request; /* [2 ranks]: from each, to each                                          */
    char (*host)[HOST];
    /* Rank 0 gives signs of life, so that those who wait for its next order know that it lives: a thread's, for its
     * program may wait for a user, or for whoever reads its text. */
    pthread_t thread;
    pthread_mutex_t calls; /* MPI is called by one thread at a time                                          */
    pthread_cond_t ends;
    double signed_at;  /* when it gave the last one                                                         */
    bool ending;       /* rank 0 gives no more signs; other ranks: the last one has come                  */
    MPI_Request *sign; /* [ranks], to each                                                                */
} end;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Other ranks may have this one's processor: after some microseconds it is given away, then slept. */
static void breathe(double waited, bool idle)
{
    double least = idle ? 1e-3 : 2e-4, pause = (waited - 1e-3) / 8;
    if (waited < 2e-5)
        return;
    if (waited < 1e-3) {
        sched_yield();
        return;
    }
    pause = pause > least ? least : pause < 1e-6 ? 1e-6 : pause;
    nanosleep(&(struct timespec){0, (long)(pause * 1e9)}, NULL);
}

/* ---- what MPI itself waits for without a limit -------------------------------------------------- */

/* Work that returns only when all ranks have come to it, done by a thread: false, and it goes on, where that takes
 * longer than patience. Time in which this process stood still does not count. */
static bool in_time(void *(*work)(void *), void *argument, double patience)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all); /* signals are the program's                                                       */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, work, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        work(argument);
        return true;
    }
    for (double waited = 0; waited < patience; waited += 0.1) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 100000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &until) == 0)
            return true;
    }
    pthread_detach(thread);
    return false;
}

/* ---- signs of life ------------------------------------------------------------------------------ */

static const char SIGN = 's', LAST_SIGN = 'l';

static void give_signs(end *e, const char *sign)
{
    for (int r = 1; r < e->ranks; r++) {
        int done = 1; /* who takes none, being stopped, has one under way                                   */
        if (e->sign[r] != MPI_REQUEST_NULL)
            MPI_Test(&e->sign[r], &done, MPI_STATUS_IGNORE);
        if (done)
            MPI_Isend(sign, 1, MPI_BYTE, r, TAG_SIGNS, e->comm, &e->sign[r]);
    }
    e->signed_at = now();
}

static double between_signs(const end *e)
{
    return (e->patience > 0.1 ? e->patience : 0.1) / 8;
}

static void *live(void *argument)
{
    end *e = argument;
    pthread_mutex_lock(&e->calls);
    while (!e->ending) {
        double next = now() + between_signs(e);
        struct timespec until = {(time_t)next, (long)((next - (double)(time_t)next) * 1e9)};
        if (pthread_cond_timedwait(&e->ends, &e->calls, &until) != 0 && !e->ending)
            give_signs(e, &SIGN);
    }
    pthread_mutex_unlock(&e->calls);
    return NULL;
}

static tn_status begin_signs(end *e)
{
    sigset_t all, before;
    pthread_condattr_t clock;
    pthread_mutex_init(&e->calls, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&e->ends, &clock);
    pthread_condattr_destroy(&clock);
    if (e->rank > 0)
        return TN_OK;
    sigfillset(&all); /* signals are the program's                                                       */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&e->thread, NULL, live, e);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed ? TN_E_MEMORY : TN_OK;
}

static void take_sign(end *e)
{
    char sign = SIGN;
    MPI_Recv(&sign, 1, MPI_BYTE, 0, TAG_SIGNS, e->comm, MPI_STATUS_IGNORE);
    e->ending |= sign == LAST_SIGN;
}

/* Takes what has come; true: there was one. */
static bool take_signs(end *e)
{
    int there = 0;
    bool any = false;
    for (MPI_Iprobe(0, TAG_SIGNS, e->comm, &there, MPI_STATUS_IGNORE); there;
         MPI_Iprobe(0, TAG_SIGNS, e->comm, &there, MPI_STATUS_IGNORE)) {
        take_sign(e);
        any = true;
    }
    return any;
}

/* No message may be left. */
static void end_signs(end *e)
{
    if (e->rank == 0) {
        pthread_mutex_lock(&e->calls);
        e->ending = true;
        pthread_cond_signal(&e->ends);
        pthread_mutex_unlock(&e->calls);
        pthread_join(e->thread, NULL);
        MPI_Waitall(e->ranks, e->sign, MPI_STATUSES_IGNORE);
        give_signs(e, &LAST_SIGN);
        MPI_Waitall(e->ranks, e->sign, MPI_STATUSES_IGNORE);
    } else {
        while (!e->ending)
            take_sign(e);
    }
    pthread_cond_destroy(&e->ends);
    pthread_mutex_destroy(&e->calls);
}

/* ---- bytes --------------------------------------------------------------------------------------- */

/* Until all 2 ranks requests are done. Where nobody looked for a second this process, or its machine, stood still:
 * nobody waited in vain then. */
static tn_status finish(end *e, bool idle, tn_error *err)
{
    double last = now(), waited = 0, silent = 0;
    for (int done = 0; !done;) {
        MPI_Testall(2 * e->ranks, e->request, &done, MPI_STATUSES_IGNORE);
        if (done)
            return TN_OK;
        double look = now(), gap = look - last;
        last = look;
        waited += gap;
        silent += gap < 1 ? gap : 0;
        if (idle && take_signs(e))
            silent = 0;
        if (e->rank == 0 && look - e->signed_at > between_signs(e))
            give_signs(e, &SIGN);
        if (silent > e->patience)
            break;
        breathe(waited, idle);
    }
    for (int i = 0; i < 2 * e->ranks; i++) {
        int there = 1, r = i % e->ranks;
        if (e->request[i] != MPI_REQUEST_NULL)
            MPI_Test(&e->request[i], &there, MPI_STATUS_IGNORE);
        if (!there)
            return tn_fail(err, TN_E_KERNEL, "mpi", "rank %d on %s did not answer rank %d on %s for %.0f seconds", r,
                           e->host[r], e->rank, e->host[e->rank], silent);
    }
    return TN_OK;
}

static void forget(end *e)
{
    for (int i = 0; i < 2 * e->ranks; i++)
        e->request[i] = MPI_REQUEST_NULL;
}

static int piece_of(int64_t bytes, int64_t at)
{
    int64_t left = bytes - at;
    return (int)(left > PIECE ? PIECE : left > 0 ? left : 0);
}

static tn_status gather(void *self, void *all, const int64_t *bytes, tn_error *err)
{
    end *e = self;
    pthread_mutex_lock(&e->calls);
    int64_t most = 0, own = 0;
    for (int r = 0; r < e->ranks; r++) {
        most = bytes[r] > most ? bytes[r] : most;
        own += r < e->rank ? bytes[r] : 0;
    }
    tn_status status = TN_OK;
    for (int64_t at = 0; at < most && status == TN_OK; at += PIECE) {
        int64_t from = 0;
        int sent = piece_of(bytes[e->rank], at);
        forget(e);
        for (int r = 0; r < e->ranks; from += bytes[r++]) {
            int received = piece_of(bytes[r], at);
            if (r != e->rank && received > 0)
                MPI_Irecv((char *)all + from + at, received, MPI_BYTE, r, TAG, e->comm, &e->request[r]);
            if (r != e->rank && sent > 0)
                MPI_Isend((char *)all + own + at, sent, MPI_BYTE, r, TAG, e->comm, &e->request[e->ranks + r]);
        }
        status = finish(e, false, err);
    }
    pthread_mutex_unlock(&e->calls);
    return status;
}

static tn_status tell(void *self, void *data, int64_t bytes, bool idle, tn_error *err)
{
    end *e = self;
    tn_status status = TN_OK;
    pthread_mutex_lock(&e->calls);
    for (int64_t at = 0; at < bytes && status == TN_OK; at += PIECE) {
        forget(e);
        if (e->rank > 0)
            MPI_Irecv((char *)data + at, piece_of(bytes, at), MPI_BYTE, 0, TAG, e->comm, &e->request[0]);
        for (int r = 1; r < e->ranks && e->rank == 0; r++)
            MPI_Isend((char *)data + at, piece_of(bytes, at), MPI_BYTE, r, TAG, e->comm, &e->request[r]);
        status = finish(e, idle && e->rank > 0, err);
    }
    pthread_mutex_unlock(&e->calls);
    return status;
}

static tn_status pass(void *self, int32_t from, int32_t to, void *data, int64_t bytes, tn_error *err)
{
    end *e = self;
    tn_status status = TN_OK;
    pthread_mutex_lock(&e->calls);
    for (int64_t at = 0; at < bytes && status == TN_OK; at += PIECE) {
        forget(e);
        if (e->rank == from)
            MPI_Isend((char *)data + at, piece_of(bytes, at), MPI_BYTE, to, TAG, e->comm, &e->request[e->ranks + to]);
        else
            MPI_Irecv((char *)data + at, piece_of(bytes, at), MPI_BYTE, from, TAG, e->comm, &e->request[from]);
        status = finish(e, false, err);
    }
    pthread_mutex_unlock(&e->calls);
    return status;
}

static void *take_leave(void *argument)
{
    end *e = argument;
    end_signs(e);
    MPI_Comm_free(&e->comm);
    MPI_Finalize();
    return NULL;
}

/* Nobody is there to be told of an error, but whoever reads what the program says. */
static void finalize(void *self)
{
    end *e = self;
    if (!in_time(take_leave, e, e->patience)) { /* who is still at it has e                              */
        fprintf(stderr, "tenon: mpi: rank %d on %s: other ranks did not come to the end within %.0f seconds\n", e->rank,
                e->host[e->rank], e->patience);
        return;
    }
    free(e->request);
    free(e->sign);
    free(e->host);
    free(e);
}

/* Children of this process, in which kernels are checked, never call MPI; of RDMA's memory they get copies. */
static tn_status start(tn_error *err)
{
    int version = 0, sub = 0, granted = 0, done = 0;
    MPI_Initialized(&done);
    MPI_Get_version(&version, &sub);
    if (done)
        return tn_fail(err, TN_E_KERNEL, "mpi",
                       "this process has called MPI_Init; give tn_model_open a group of your own");
    if (version < 3)
        return tn_fail(err, TN_E_KERNEL, "mpi", "MPI %d.%d is too old; 3.0 is needed", version, sub);
    setenv("IBV_FORK_SAFE", "1", 0);
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &granted) != MPI_SUCCESS)
        return tn_fail(err, TN_E_KERNEL, "mpi", "MPI_Init failed");
    return granted >= MPI_THREAD_SERIALIZED
               ? TN_OK
               : tn_fail(err, TN_E_KERNEL, "mpi", "this MPI grants no calls from changing threads");
}

/* Once in a process; who does not come to its end may still be at it when the process ends. */
static struct opening {
    tn_status status;
    tn_error err;
    end *e;
} opening;

static tn_status meet(end *e, tn_error *err)
{
    char name[MPI_MAX_PROCESSOR_NAME] = "";
    int length = 0;
    MPI_Comm_dup(MPI_COMM_WORLD, &e->comm);
    MPI_Comm_rank(e->comm, &e->rank);
    MPI_Comm_size(e->comm, &e->ranks);
    e->request = calloc(2 * (size_t)e->ranks, sizeof(MPI_Request));
    e->sign = calloc((size_t)e->ranks, sizeof(MPI_Request));
    e->host = calloc((size_t)e->ranks, sizeof *e->host);
    if (!e->request || !e->sign || !e->host)
        return tn_fail(err, TN_E_MEMORY, "mpi", "out of memory");
    for (int i = 0; i < e->ranks; i++)
        e->sign[i] = MPI_REQUEST_NULL;
    MPI_Get_processor_name(name, &length);
    char own[HOST];
    snprintf(own, sizeof own, "%.63s", name);
    MPI_Allgather(own, HOST, MPI_BYTE, e->host, HOST, MPI_BYTE, e->comm);
    return TN_OK;
}

static void *begin(void *argument)
{
    struct opening *o = argument;
    o->status = start(&o->err);
    if (o->status == TN_OK)
        o->status = meet(o->e, &o->err);
    return NULL;
}

__attribute__((visibility("default"))) tn_status tenon_mpi_open(tn_group *group, double patience, tn_error *err);

tn_status tenon_mpi_open(tn_group *group, double patience, tn_error *err)
{
    static const double START = 20; /* processes may start slowly                                         */
    double most = patience > START ? patience : START;
    end *e = calloc(1, sizeof *e);
    if (!e)
        return tn_fail(err, TN_E_MEMORY, "mpi", "out of memory");
    e->patience = patience;
    opening.e = e;
    if (!in_time(begin, &opening, most))
        return tn_fail(err, TN_E_KERNEL, "mpi", "not all ranks came to MPI_Init within %.0f seconds", most);
    if (opening.status != TN_OK)
        return tn_fail(err, opening.status, opening.err.where, "%s", opening.err.message);
    if (begin_signs(e) != TN_OK)
        return tn_fail(err, TN_E_MEMORY, "mpi", "no thread can be started; raise the limit (ulimit -u)");
    group->rank = e->rank;
    group->ranks = e->ranks;
    group->self = e;
    group->gather = gather;
    group->tell = tell;
    group->pass = pass;
    group->close = finalize;
    return TN_OK;
}
