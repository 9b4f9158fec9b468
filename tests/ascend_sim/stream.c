/* Streams. Work is queued and performed when somebody synchronises: what is read or freed before fails. */
#include "sim.h"

#include <stdlib.h>

#define STREAM_MAGIC 0xac157ea3u
#define STREAMS_MAX 1984

typedef struct stream {
    uint32_t magic;
    struct stream *next; /* all that live */
    sim_context *context;
    int device;
    bool is_default;
    sim_work *head, *tail;
    int error;
} stream;

static stream *streams;
static int stream_count;

/* ---- work ------------------------------------------------------------------------------------------------------ */

static void drop(sim_work *w)
{
    if (w->discard)
        w->discard(w->state);
    free(w->ranges);
    free(w);
}

static void perform_one(stream *s)
{
    sim_work *w = s->head;
    /* In the queue while it runs: it is still using its memory. */
    int code = w->run(w->state, s->device);
    if (code && !s->error)
        s->error = code;
    s->head = w->next;
    if (!s->head)
        s->tail = NULL;
    drop(w);
}

static int perform_all(stream *s)
{
    while (s->head)
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
    if (s->tail)
        s->tail->next = w;
    else
        s->head = w;
    s->tail = w;
}

int sim_perform(aclrtStream given)
{
    return perform_all(resolve(given));
}

int sim_perform_device(int device)
{
    int code = 0;
    for (stream *s = streams; s; s = s->next)
        if (s->device == device) {
            int one = perform_all(s);
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
            perform_all(s);
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
