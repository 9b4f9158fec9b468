/* Streams and events. Work is queued and performed when somebody synchronises: what is read or freed before fails. */
#include "sim.h"

#include <stdlib.h>
#include <time.h>

#define STREAM_MAGIC 0xac157ea3u
#define EVENT_MAGIC 0xac1e4e27u
#define STREAMS_MAX 1984

typedef struct stream {
    uint32_t magic;
    struct stream *next; /* all that live */
    sim_context *context;
    int device;
    bool is_default;
    sim_work *head, *tail;
    uint64_t given, done; /* numbers of the last piece queued and performed */
    int error;
} stream;

typedef struct event {
    uint32_t magic;
    stream *on; /* NULL: not recorded yet; streams that ended have done all */
    uint64_t sequence;
} event;

static stream *streams;
static int stream_count;

static int perform_until(stream *s, uint64_t sequence);

/* ---- work ------------------------------------------------------------------------------------------------------ */

static void drop(sim_work *w)
{
    if (w->discard)
        w->discard(w->state);
    free(w->ranges);
    free(w);
}

static void wait_latency(void)
{
    int64_t microseconds = sim_switch("ASCEND_SIM_LATENCY", 0);
    if (microseconds > 0)
        nanosleep(&(struct timespec){microseconds / 1000000, microseconds % 1000000 * 1000}, NULL);
}

static void perform_one(stream *s)
{
    sim_work *w = s->head;
    wait_latency();
    /* In the queue while it runs: it is still using its memory. */
    int code = w->run ? w->run(w->state, s->device) : 0;
    if (code && !s->error)
        s->error = code;
    s->head = w->next;
    if (!s->head)
        s->tail = NULL;
    s->done = w->sequence;
    drop(w);
}

static int perform_until(stream *s, uint64_t sequence)
{
    while (s->head && s->done < sequence)
        perform_one(s);
    int code = s->error;
    s->error = 0;
    return code;
}

static void drop_all(stream *s)
{
    while (s->head) {
        sim_work *w = s->head;
        s->head = w->next;
        drop(w);
    }
    s->tail = NULL;
    s->done = s->given;
}

static stream *resolve(aclrtStream given)
{
    if (given)
        return given;
    sim_context *c = sim_current();
    aclrtStream *own = sim_default_stream(c);
    if (!*own) {
        stream *s = sim_allocate(sizeof *s);
        *s = (stream){
            .magic = STREAM_MAGIC, .next = streams, .context = c, .device = sim_context_device(c), .is_default = true};
        *own = streams = s;
    }
    return *own;
}

void sim_enqueue(aclrtStream given, const sim_work *work)
{
    stream *s = resolve(given);
    sim_work *w = sim_allocate(sizeof *w);
    *w = *work;
    w->next = NULL;
    w->sequence = ++s->given;
    if (s->tail)
        s->tail->next = w;
    else
        s->head = w;
    s->tail = w;
}

int sim_perform(aclrtStream given)
{
    return perform_until(resolve(given), UINT64_MAX);
}

int sim_perform_device(int device)
{
    int code = 0;
    for (stream *s = streams; s; s = s->next)
        if (s->device == device) {
            int one = perform_until(s, UINT64_MAX);
            code = code ? code : one;
        }
    return code;
}

const char *sim_queued_use(const void *begin, size_t size, bool writes_only)
{
    const char *from = begin, *to = from + size;
    for (const stream *s = streams; s; s = s->next)
        for (const sim_work *w = s->head; w; w = w->next)
            for (int i = 0; i < w->range_count; i++)
                if (w->ranges[i].begin < to && from < w->ranges[i].end && (w->ranges[i].written || !writes_only))
                    return w->name;
    return NULL;
}

/* ---- streams --------------------------------------------------------------------------------------------------- */

int sim_check_stream(aclrtStream given, const char *call)
{
    int code = sim_need_context(call);
    if (code)
        return code;
    const stream *s = given;
    if (!s) /* the default stream in the runtime's documents, uncertain for operators: works, and is counted */
        return sim_violation(0, "%s: the stream is NULL; create one", call);
    if (s->magic != STREAM_MAGIC)
        return sim_violation(107017, "%s: no live stream", call);
    if (s->context != sim_current())
        return sim_violation(107003, "%s: the stream is of another context than the thread's", call);
    return 0;
}

static int create_stream(aclrtStream *out, const char *call)
{
    int code = sim_need_context(call);
    if (code)
        return code;
    if (!out)
        return sim_violation(100000, "%s: stream is NULL", call);
    if (sim_injected(call))
        return 507899;
    if (stream_count == STREAMS_MAX)
        return sim_error(207008, "%s: there are %d streams", call, STREAMS_MAX);
    stream *s = sim_allocate(sizeof *s);
    *s = (stream){.magic = STREAM_MAGIC, .next = streams, .context = sim_current(), .device = sim_current_device()};
    *out = streams = s;
    stream_count++;
    sim_count_live(SIM_STREAMS, 1);
    return 0;
}

aclError aclrtCreateStream(aclrtStream *out)
{
    SIM_HOLD;
    return create_stream(out, "aclrtCreateStream");
}

static void end_stream(stream *s)
{
    drop_all(s);
    stream **at = &streams;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    s->magic = 0;
    if (!s->is_default) {
        stream_count--;
        sim_count_live(SIM_STREAMS, -1);
    }
    sim_bury(s);
}

aclError aclrtDestroyStream(aclrtStream given)
{
    SIM_HOLD;
    stream *s = given;
    if (!s)
        return sim_violation(107000, "aclrtDestroyStream: stream is NULL");
    int code = sim_check_stream(given, "aclrtDestroyStream");
    if (code)
        return code;
    if (s->head)
        sim_violation(0, "aclrtDestroyStream: %s is still queued, and is dropped", s->head->name);
    end_stream(s);
    return 0;
}

void sim_streams_reset(sim_context *context, bool perform)
{
    for (stream *s = streams, *next; s; s = next) {
        next = s->next;
        if (s->context != context)
            continue;
        if (perform)
            perform_until(s, UINT64_MAX);
        end_stream(s);
    }
}

int sim_streams_of(const sim_context *context)
{
    int count = 0;
    for (const stream *s = streams; s; s = s->next)
        count += s->context == context && !s->is_default;
    return count;
}

static int synchronize(aclrtStream given, const char *call)
{
    int code = sim_check_stream(given, call);
    if (code)
        return code;
    sim_counted.synchronisations++;
    if (!sim_injected(call))
        return sim_perform(given);
    drop_all(resolve(given)); /* a device that failed has not done its work */
    return 507015;
}

aclError aclrtSynchronizeStream(aclrtStream given)
{
    SIM_HOLD;
    return synchronize(given, "aclrtSynchronizeStream");
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream given, int32_t timeout)
{
    SIM_HOLD;
    const char *call = "aclrtSynchronizeStreamWithTimeout";
    if (timeout < -1)
        return sim_violation(107000, "%s: a timeout of %d", call, (int)timeout);
    if (timeout == -1)
        return synchronize(given, call);
    int code = sim_check_stream(given, call);
    if (code)
        return code;
    if (sim_injected(call))
        return 507015;
    stream *s = resolve(given);
    for (double end = seconds() + 1e-3 * timeout; s->head; perform_one(s))
        if (seconds() > end)
            return sim_error(507046, "%s: work is left after %d ms", call, (int)timeout);
    return perform_until(s, UINT64_MAX);
}

/* Every question performs one piece, so that whoever asks again and again gets to the end. */
aclError aclrtStreamQuery(aclrtStream given, aclrtStreamStatus *status)
{
    SIM_HOLD;
    int code = sim_check_stream(given, "aclrtStreamQuery");
    if (code)
        return code;
    if (!status)
        return sim_violation(100000, "aclrtStreamQuery: status is NULL");
    if (sim_injected("aclrtStreamQuery"))
        return 507899;
    stream *s = resolve(given);
    *status = s->head ? ACL_STREAM_STATUS_NOT_READY : ACL_STREAM_STATUS_COMPLETE;
    if (s->head)
        perform_one(s);
    return 0;
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

aclError aclrtCreateEvent(aclrtEvent *out)
{
    SIM_HOLD;
    int code = sim_need_context("aclrtCreateEvent");
    if (code)
        return code;
    if (!out)
        return sim_violation(100000, "aclrtCreateEvent: event is NULL");
    if (sim_injected("aclrtCreateEvent"))
        return 507899;
    event *e = sim_allocate(sizeof *e);
    e->magic = EVENT_MAGIC;
    *out = e;
    sim_count_live(SIM_EVENTS, 1);
    return 0;
}

static int check_event(const event *e, const char *call)
{
    return e && e->magic == EVENT_MAGIC ? 0 : sim_violation(107017, "%s: no live event", call);
}

aclError aclrtDestroyEvent(aclrtEvent given)
{
    SIM_HOLD;
    event *e = given;
    int code = check_event(e, "aclrtDestroyEvent");
    if (code)
        return code;
    e->magic = 0;
    sim_bury(e);
    sim_count_live(SIM_EVENTS, -1);
    return 0;
}

aclError aclrtRecordEvent(aclrtEvent given, aclrtStream on)
{
    SIM_HOLD;
    event *e = given;
    int code = check_event(e, "aclrtRecordEvent");
    if (!code)
        code = sim_check_stream(on, "aclrtRecordEvent");
    if (code)
        return code;
    if (sim_injected("aclrtRecordEvent"))
        return 507899;
    sim_enqueue(on, &(sim_work){.name = "aclrtRecordEvent"});
    e->on = resolve(on);
    e->sequence = e->on->given;
    return 0;
}

typedef struct wait_for {
    stream *on;
    uint64_t sequence;
} wait_for;

static int perform_wait(void *state, int device)
{
    (void)device;
    const wait_for *w = state;
    stream *s = w->on;
    while (s->magic == STREAM_MAGIC && s->head && s->done < w->sequence)
        perform_one(s); /* its error stays with that stream */
    return 0;
}

aclError aclrtStreamWaitEvent(aclrtStream given, aclrtEvent awaited)
{
    SIM_HOLD;
    const event *e = awaited;
    int code = check_event(e, "aclrtStreamWaitEvent");
    if (!code)
        code = sim_check_stream(given, "aclrtStreamWaitEvent");
    if (code)
        return code;
    if (sim_injected("aclrtStreamWaitEvent"))
        return 507899;
    if (!e->on)
        return 0;
    wait_for *state = sim_allocate(sizeof *state);
    *state = (wait_for){e->on, e->sequence};
    sim_enqueue(given,
                &(sim_work){.name = "aclrtStreamWaitEvent", .run = perform_wait, .discard = free, .state = state});
    return 0;
}

aclError aclrtSynchronizeEvent(aclrtEvent given)
{
    SIM_HOLD;
    const event *e = given;
    int code = sim_need_context("aclrtSynchronizeEvent");
    if (!code)
        code = check_event(e, "aclrtSynchronizeEvent");
    if (code)
        return code;
    if (sim_injected("aclrtSynchronizeEvent"))
        return 507899;
    sim_counted.synchronisations++;
    if (e->on && e->on->magic == STREAM_MAGIC)
        return perform_until(e->on, e->sequence);
    return 0;
}
