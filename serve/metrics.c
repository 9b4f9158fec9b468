/* Counting, and writing what was counted. */
#include "metrics.h"

#include <string.h>

/* As vLLM has them, so that its dashboards show them. */
static const double first_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                      1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
static const double between_bounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                        0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
static const double request_bounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                        30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
static const double size_bounds[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

#define COUNT(array) (sizeof(array) / sizeof *(array))

bool metrics_start(metrics *m)
{
    *m = (metrics){0};
    return pthread_mutex_init(&m->lock, NULL) == 0;
}

void metrics_end(metrics *m)
{
    pthread_mutex_destroy(&m->lock);
}

/* ---- counting --------------------------------------------------------------------------------- */

static void observe(metrics_histogram *h, const double *bounds, size_t count, double value)
{
    size_t i = 0;
    while (i < count && value > bounds[i])
        i++;
    h->counts[i]++;
    h->sum += value;
}

void metrics_set_now(metrics *m, const metrics_now *now)
{
    pthread_mutex_lock(&m->lock);
    m->now = *now;
    pthread_mutex_unlock(&m->lock);
}

void metrics_first_token(metrics *m, double seconds)
{
    pthread_mutex_lock(&m->lock);
    observe(&m->first_token, first_bounds, COUNT(first_bounds), seconds);
    pthread_mutex_unlock(&m->lock);
}

void metrics_next_token(metrics *m, double seconds)
{
    pthread_mutex_lock(&m->lock);
    observe(&m->between_tokens, between_bounds, COUNT(between_bounds), seconds);
    pthread_mutex_unlock(&m->lock);
}

void metrics_sequence_ended(metrics *m, const metrics_sequence *s)
{
    pthread_mutex_lock(&m->lock);
    m->prompt_tokens += s->prompt_tokens;
    m->generation_tokens += s->generated;
    m->finished[s->finish]++;
    observe(&m->whole_request, request_bounds, COUNT(request_bounds), s->whole);
    observe(&m->queue, request_bounds, COUNT(request_bounds), s->queue);
    observe(&m->prompt, request_bounds, COUNT(request_bounds), s->prompt);
    observe(&m->decode, request_bounds, COUNT(request_bounds), s->decode);
    observe(&m->prompt_sizes, size_bounds, COUNT(size_bounds), (double)s->prompt_tokens);
    observe(&m->answer_sizes, size_bounds, COUNT(size_bounds), (double)s->generated);
    pthread_mutex_unlock(&m->lock);
}

/* ---- writing ---------------------------------------------------------------------------------- */

typedef struct page {
    grown *out;
    const char *label; /* model_name="..."                                                           */
    bool good;
} page;

static void head(page *p, const char *name, const char *kind, const char *help)
{
    p->good = p->good && grown_format(p->out, "# HELP tenon:%s %s\n# TYPE tenon:%s %s\n", name, help, name, kind);
}

static void value(page *p, const char *name, const char *kind, const char *help, double number)
{
    head(p, name, kind, help);
    p->good = p->good && grown_format(p->out, "tenon:%s{%s} %.17g\n", name, p->label, number);
}

static void histogram(page *p, const char *name, const char *help, const metrics_histogram *h, const double *bounds,
                      size_t count)
{
    int64_t sum = 0;
    head(p, name, "histogram", help);
    for (size_t i = 0; i < count; i++) {
        sum += h->counts[i];
        p->good = p->good && grown_format(p->out, "tenon:%s_bucket{%s,le=\"%g\"} %lld\n", name, p->label, bounds[i],
                                          (long long)sum);
    }
    sum += h->counts[count];
    p->good = p->good && grown_format(p->out, "tenon:%s_bucket{%s,le=\"+Inf\"} %lld\n", name, p->label, (long long)sum);
    p->good = p->good && grown_format(p->out, "tenon:%s_sum{%s} %.17g\ntenon:%s_count{%s} %lld\n", name, p->label,
                                      h->sum, name, p->label, (long long)sum);
}

/* A label's value: backslash, quote and line end are escaped. */
static bool make_label(const char *model, grown *label)
{
    bool good = grown_add(label, "model_name=\"", 12);
    for (const char *c = model; *c && good; c++)
        good = *c == '\n'                ? grown_add(label, "\\n", 2)
               : *c == '"' || *c == '\\' ? grown_format(label, "\\%c", *c)
                                         : grown_add(label, c, 1);
    return good && grown_add(label, "\"", 1);
}

static void write_finished(page *p, const metrics *m)
{
    static const char *const names[METRICS_FINISH_COUNT] = {"stop", "length", "abort"};
    head(p, "request_success_total", "counter", "Sequences that ended, by how.");
    for (size_t i = 0; i < METRICS_FINISH_COUNT; i++)
        p->good = p->good && grown_format(p->out, "tenon:request_success_total{%s,finished_reason=\"%s\"} %lld\n",
                                          p->label, names[i], (long long)m->finished[i]);
}

static void write_all(page *p, const metrics *m)
{
    value(p, "num_requests_running", "gauge", "Sequences that are computed.", (double)m->now.running);
    value(p, "num_requests_waiting", "gauge", "Sequences that wait for a place.", (double)m->now.waiting);
    value(p, "kv_cache_usage_perc", "gauge", "Part of the cache that is in use, 0 to 1.", m->now.cache_used);
    value(p, "prompt_tokens_total", "counter", "Tokens of prompts.", (double)m->prompt_tokens);
    value(p, "generation_tokens_total", "counter", "Tokens generated.", (double)m->generation_tokens);
    value(p, "prefix_cache_queries", "counter", "Tokens of prompts that were looked for in the cache.",
          (double)m->now.prefix_queries);
    value(p, "prefix_cache_hits", "counter", "Tokens of prompts that were found in the cache.",
          (double)m->now.prefix_hits);
    value(p, "num_preemptions_total", "counter", "Sequences that gave their place back.", (double)m->now.preempted);
    value(p, "steps_total", "counter", "Steps of the engine.", (double)m->now.steps);
    write_finished(p, m);
    histogram(p, "time_to_first_token_seconds", "From the request to its first token.", &m->first_token, first_bounds,
              COUNT(first_bounds));
    histogram(p, "inter_token_latency_seconds", "From one token to the next.", &m->between_tokens, between_bounds,
              COUNT(between_bounds));
    histogram(p, "e2e_request_latency_seconds", "From the request to its end.", &m->whole_request, request_bounds,
              COUNT(request_bounds));
    histogram(p, "request_queue_time_seconds", "Waiting for a place.", &m->queue, request_bounds,
              COUNT(request_bounds));
    histogram(p, "request_prefill_time_seconds", "Computing the prompt.", &m->prompt, request_bounds,
              COUNT(request_bounds));
    histogram(p, "request_decode_time_seconds", "Generating.", &m->decode, request_bounds, COUNT(request_bounds));
    histogram(p, "request_prompt_tokens", "Tokens of a prompt.", &m->prompt_sizes, size_bounds, COUNT(size_bounds));
    histogram(p, "request_generation_tokens", "Tokens of an answer.", &m->answer_sizes, size_bounds,
              COUNT(size_bounds));
}

bool metrics_write(metrics *m, const char *model, grown *out)
{
    grown label = {0};
    page p = {.out = out, .good = make_label(model, &label)};
    p.label = label.at;
    pthread_mutex_lock(&m->lock);
    metrics now = *m;
    pthread_mutex_unlock(&m->lock);
    if (p.good)
        write_all(&p, &now);
    grown_free(&label);
    return p.good;
}
