/* Streams. Work is queued and performed when somebody synchronises: what is read or freed before fails. What is
 * captured of a stream is queued whenever that is executed. */
#include "sim.h"

#include <pthread.h>
#include <stdlib.h>

#define STREAM_MAGIC 0xac157ea3u
#define MODEL_MAGIC 0xac1c4b7eu
#define STREAMS_MAX 1984

/* Captured, or being captured. It takes a stream's resources. */
typedef struct model {
    uint32_t magic;
    struct model *next; /* all that live */
    sim_work *head, *tail;
    int64_t works, queued; /* and how often it waits in a queue */
    aclmdlRICaptureMode mode;
    pthread_t thread;
    bool broken; /* by a call that must not be made meanwhile */
} model;

typedef struct stream {
    uint32_t magic;
    struct stream *next; /* all that live */
    sim_context *context;
    int device;
    bool is_default;
    sim_work *head, *tail;
    model *capturing; /* NULL: nobody captures it */
    int error;
} stream;

static stream *streams;
static model *models;
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

static void append(sim_work **head, sim_work **tail, const sim_work *work)
{
    sim_work *w = sim_allocate(sizeof *w);
    *w = *work;
    w->next = NULL;
    if (*tail)
        (*tail)->next = w;
    else
        *head = w;
    *tail = w;
}

bool sim_enqueue(aclrtStream given, const sim_work *work)
{
    stream *s = resolve(given);
    model *m = s->capturing;
    if (m) {
        append(&m->head, &m->tail, work);
        m->works++;
        sim_counted.captured++;
    } else {
        append(&s->head, &s->tail, work);
    }
    return !m;
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

static bool uses(const sim_work *w, const char *from, const char *to, bool writes_only)
{
    for (int i = 0; i < w->range_count; i++)
        if (w->ranges[i].begin < to && from < w->ranges[i].end && (w->ranges[i].written || !writes_only))
            return true;
    return false;
}

const char *sim_queued_use(const void *begin, size_t size, bool writes_only)
{
    const char *from = begin, *to = from + size;
    for (const stream *s = streams; s; s = s->next)
        for (const sim_work *w = s->head; w; w = w->next)
            if (uses(w, from, to, writes_only))
                return w->name;
    return NULL;
}

const char *sim_captured_use(const void *begin, size_t size, const void *executor)
{
    const char *from = begin, *to = from + size;
    for (const model *m = models; m; m = m->next)
        for (const sim_work *w = m->head; w; w = w->next)
            if ((executor && w->executor == executor) || (size > 0 && uses(w, from, to, false)))
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

static void end_model(model *m);

static void end_stream(stream *s)
{
    drop_all(s);
    if (s->capturing)
        end_model(s->capturing);
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
    if (s->capturing)
        sim_violation(0, "aclrtDestroyStream: it is captured");
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
    if (!code)
        code = sim_not_captured(given, call);
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

/* ---- capturing ------------------------------------------------------------------------------------------------- */

static void end_model(model *m)
{
    model **at = &models;
    while (*at != m)
        at = &(*at)->next;
    *at = m->next;
    for (sim_work *w = m->head, *next; w; w = next) {
        next = w->next;
        drop(w);
    }
    m->magic = 0;
    stream_count--;
    sim_count_live(SIM_MODELS, -1);
    sim_bury(m);
}

int sim_not_captured(aclrtStream given, const char *call)
{
    int code = 0;
    for (stream *s = streams; s; s = s->next) {
        model *m = s->capturing;
        bool own = m && pthread_equal(m->thread, pthread_self()) && m->mode != ACL_MODEL_RI_CAPTURE_MODE_RELAXED;
        if (!m || !(own || s == given || m->mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL))
            continue;
        m->broken = true;
        code = sim_violation(107041, "%s: while a stream is captured", call);
    }
    return code;
}

/* The stream, which is not the default one; NULL with the code of a broken rule. */
static stream *to_capture(aclrtStream given, const char *call, int *code)
{
    *code = given ? sim_check_stream(given, call) : sim_violation(107031, "%s: the stream is NULL", call);
    return *code ? NULL : given;
}

aclError aclmdlRICaptureBegin(aclrtStream given, aclmdlRICaptureMode mode)
{
    SIM_HOLD;
    int code;
    stream *s = to_capture(given, "aclmdlRICaptureBegin", &code);
    if (!s)
        return code;
    if (s->capturing)
        return sim_violation(107027, "aclmdlRICaptureBegin: the stream is captured already");
    if ((int)mode < ACL_MODEL_RI_CAPTURE_MODE_GLOBAL || mode > ACL_MODEL_RI_CAPTURE_MODE_RELAXED)
        return sim_violation(107000, "aclmdlRICaptureBegin: unknown mode %d", (int)mode);
    if (sim_injected("aclmdlRICaptureBegin"))
        return 207005;
    if (stream_count == STREAMS_MAX)
        return sim_error(207005, "aclmdlRICaptureBegin: there are %d streams", STREAMS_MAX);
    model *m = sim_allocate(sizeof *m);
    *m = (model){.magic = MODEL_MAGIC, .next = models, .mode = mode, .thread = pthread_self()};
    s->capturing = models = m;
    stream_count++;
    sim_count_live(SIM_MODELS, 1);
    return 0;
}

/* One that a call broke gives nothing. What a failing end leaves is no document's: here the stream is free again. */
aclError aclmdlRICaptureEnd(aclrtStream given, aclmdlRI *out)
{
    SIM_HOLD;
    int code;
    stream *s = to_capture(given, "aclmdlRICaptureEnd", &code);
    if (!s)
        return code;
    model *m = s->capturing;
    if (!m)
        return sim_violation(107029, "aclmdlRICaptureEnd: nobody captures the stream");
    if (!out)
        return sim_violation(100000, "aclmdlRICaptureEnd: modelRI is NULL");
    if (m->mode != ACL_MODEL_RI_CAPTURE_MODE_RELAXED && !pthread_equal(m->thread, pthread_self()))
        return sim_violation(107038, "aclmdlRICaptureEnd: another thread than that of the beginning");
    s->capturing = NULL;
    if (!sim_injected("aclmdlRICaptureEnd") && !m->broken) {
        *out = m;
        return 0;
    }
    end_model(m);
    return 507903;
}

static bool is_model(const model *m)
{
    return m && m->magic == MODEL_MAGIC;
}

static int run_model(void *state, int device)
{
    const model *m = state;
    int code = 0;
    for (const sim_work *w = m->head; w && !code; w = w->next)
        code = w->run(w->state, device);
    return code;
}

static void model_ran(void *state)
{
    ((model *)state)->queued--;
}

/* The memory of all that it has. */
static sim_range *ranges_of(const model *m, int *count)
{
    *count = 0;
    for (const sim_work *w = m->head; w; w = w->next)
        *count += w->range_count;
    sim_range *ranges = sim_allocate((size_t)*count * sizeof *ranges), *to = ranges;
    for (const sim_work *w = m->head; w; w = w->next)
        for (int i = 0; i < w->range_count; i++)
            *to++ = w->ranges[i];
    return ranges;
}

aclError aclmdlRIExecuteAsync(aclmdlRI given, aclrtStream on)
{
    SIM_HOLD;
    int code;
    model *m = given;
    stream *s = to_capture(on, "aclmdlRIExecuteAsync", &code);
    if (!s)
        return code;
    if (!is_model(m))
        return sim_violation(107000, "aclmdlRIExecuteAsync: no live model");
    for (const stream *other = streams; other; other = other->next)
        if (other == s ? s->capturing != NULL : other->capturing == m)
            return sim_violation(107026, "aclmdlRIExecuteAsync: before the end of a capture");
    if (sim_injected("aclmdlRIExecuteAsync"))
        return 507011;
    sim_work work = {.name = "aclmdlRIExecuteAsync", .run = run_model, .discard = model_ran, .state = m};
    work.ranges = ranges_of(m, &work.range_count);
    m->queued++;
    sim_enqueue(on, &work);
    sim_counted.launches++;
    sim_counted.graphs++;
    sim_counted.replayed += m->works;
    for (const sim_work *w = m->head; w; w = w->next)
        sim_count_name(w->name);
    return 0;
}

aclError aclmdlRIDestroy(aclmdlRI given)
{
    SIM_HOLD;
    model *m = given;
    if (!is_model(m))
        return sim_violation(107000, "aclmdlRIDestroy: no live model");
    if (m->queued > 0) {
        sim_violation(0, "aclmdlRIDestroy: it is queued");
        return 0; /* left as it is: the work will still use it */
    }
    end_model(m);
    return 0;
}
