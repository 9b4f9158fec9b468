/* What earlier runs measured, so that the same choice is made again. A measurement holds for this library, processor,
 * instruction sets, number of threads, shape, the content of every plugin that takes part, and every library that this
 * process has. */
#include "base/hash.h"
#include "base/text.h"
#include "device/machine.h"
#include "plugin/cachefile.h"
#include "plugin/objects.h"
#include "plugin/plugins.h"
#include "plugin/registry.h"
#include "select/alike.h"
#include "select/choose.h"
#include "select/measure.h"
#include "select/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES = 1 << 16, NAME_BYTES = 32 };

static bool add_kernel(text *key, const plan *p, size_t candidate, const plan_fit *fit, size_t shape)
{
    const registry_kernel *k = p->candidates[candidate].kernel;
    char sha256[PLUGINS_SHA256];
    if (!plugins_sha256(k->file, sha256))
        return false;
    text_add(key, " %s/%s/%d", sha256, k->kernel.id, (int)(fit - plan_fit_at(p, candidate, shape, 0)));
    return true;
}

/* What the parts of the first site would have. */
static bool add_parts(text *key, const plan *p, const graph_site *site)
{
    bool known = true;
    for (int i = 0; i < GRAPH_PARTS && known; i++) {
        const graph_site *part = site->part[i];
        plan_fit *fit = NULL;
        if (!part)
            continue;
        int32_t best = plan_best(p, part, &fit);
        if (best >= 0) {
            known = add_kernel(key, p, (size_t)best, fit, p->shape_of[part->index]);
            text_add(key, "/%u", (unsigned)fit->not_at);
        } else {
            text_add(key, " eager");
        }
        known = known && add_parts(key, p, part);
    }
    return known;
}

/* Is the same chosen at an earlier site of the shape? */
static bool is_repeated(const plan *p, size_t site)
{
    size_t i = 0;
    while (p->shape_of[i] != p->shape_of[site] || p->choices[i].fit != p->choices[site].fit)
        i++;
    return i < site;
}

/* This library, the code that came in with it, and this machine, as it is used. false: it cannot be said. */
static bool add_machine(text *key)
{
    char host[256], cpu[128], code[65];
    bool known = objects_surroundings(code);
    cachefile_host(host, sizeof host);
    machine_cpu_name(cpu, sizeof cpu);
    text_add(key, "host %s\ncpu %s, flags %" PRIx64 ", %d threads, code %s\n", host, cpu, tn_cpu_flags(),
             (int)tn_thread_count(), known ? code : "");
    return known;
}

/* Lines that say what a measurement is of; false: it cannot be said, so nothing is kept. */
static bool make_key(const plan *p, const measure_entry *e, text *key)
{
    bool known = add_machine(key);
    text_add(key, "site %s %016" PRIx64 "\nkernels", tn_op_name(p->shapes[e->shape]->site.op),
             plan_shape_hash(&p->shapes[e->shape]->site));
    for (size_t i = 0; i < e->fit_count && known; i++)
        known = add_kernel(key, p, e->fits[i].candidate, e->fits[i].fit, e->shape);
    text_add(key, "\nparts");
    known = known && add_parts(key, p, e->sites[0]);
    text_add(key, "\n");
    return known && !key->failed;
}

/* The same of whole steps: the shapes in the order of their sites, and what is chosen at them. */
static bool make_key_of_steps(const plan *p, text *key)
{
    const graph *g = p->target->graph;
    bool known = add_machine(key);
    uint64_t order = hash_bytes(HASH_START, p->shape_of, g->site_count * sizeof *p->shape_of);
    text_add(key, "steps of %zu sites %016" PRIx64 "\n", g->site_count, order);
    for (size_t i = 0; i < p->shape_count && known; i++)
        text_add(key, "%016" PRIx64 " ", plan_shape_hash(&p->shapes[i]->site));
    for (size_t i = 0; i < g->site_count && known; i++) {
        const plan_choice *choice = &p->choices[i];
        if (choice->candidate < 0 || is_repeated(p, i))
            continue;
        text_add(key, "\nsite %zu", i);
        known = add_kernel(key, p, (size_t)choice->candidate, choice->fit, p->shape_of[i]);
        text_add(key, "/%u%s", (unsigned)choice->fit->not_at, p->candidates[choice->candidate].named ? " named" : "");
    }
    text_add(key, "\n");
    return known && !key->failed;
}

/* Without the first line, so that a newer library replaces what an older one left. */
static void name_of(const text *key, char name[NAME_BYTES])
{
    size_t first = strcspn(key->data, "\n");
    snprintf(name, NAME_BYTES, "measured-%016" PRIx64, hash_bytes(HASH_START, key->data + first, key->length - first));
}

/* "low median high" */
static bool read_spread(char **at, timing_spread *spread)
{
    spread->low = strtod(*at, at);
    spread->median = strtod(*at, at);
    spread->high = strtod(*at, at);
    return spread->low > 0 && spread->low <= spread->median && spread->median <= spread->high && isfinite(spread->high);
}

/* So exact that the same is decided. */
static void add_spread(text *content, const timing_spread *spread)
{
    text_add(content, " %.17g %.17g %.17g", spread->low, spread->median, spread->high);
}

/* "tokens spread spread ..." for each size, the first without any kernel. false: not that. */
static bool read_times(char *at, measure_entry *e)
{
    plan_times times[MEASURE_FITS] = {0};
    for (int size = 0; size < GRAPH_SIZES; size++) {
        timing_spread without;
        int64_t tokens = strtoll(at, &at, 10);
        if (tokens < 1 || !read_spread(&at, &without))
            return false;
        for (size_t i = 0; i < e->fit_count; i++) {
            times[i].tokens[size] = tokens;
            times[i].without[size] = without;
            if (!read_spread(&at, &times[i].kernel[size]))
                return false;
        }
        if (*at++ != '\n')
            return false;
    }
    for (size_t i = 0; i < e->fit_count; i++) {
        times[i].known = true;
        e->fits[i].fit->times = times[i];
    }
    return true;
}

static const char form[] = "tenon-measured 3\n";

/* What was kept under the key, and where its values begin; NULL: nothing. Owned. */
static char *load(const text *key, char **values)
{
    char name[NAME_BYTES];
    size_t head = sizeof form - 1;
    name_of(key, name);
    char *content = cachefile_load(name, FILE_BYTES, NULL, 0);
    if (content && !strncmp(content, form, head) && !strncmp(content + head, key->data, key->length)) {
        *values = content + head + key->length;
        return content;
    }
    free(content);
    return NULL;
}

static void store(const text *key, const text *values)
{
    char name[NAME_BYTES];
    text content = {0};
    name_of(key, name);
    text_add(&content, "%s%s%s", form, key->data, values->data);
    if (!values->failed && !content.failed && content.length < FILE_BYTES)
        cachefile_store(name, content.data, content.length);
    free(content.data);
}

bool measure_recall(const plan *p, measure_entry *e)
{
    text key = {0};
    char *values = NULL, *content = make_key(p, e, &key) ? load(&key, &values) : NULL;
    bool known = content && read_times(values, e);
    free(content);
    free(key.data);
    return known;
}

void measure_remember(const plan *p, const measure_entry *e)
{
    text key = {0}, values = {0};
    const plan_times *first = &e->fits[0].fit->times;
    if (!first->busy && make_key(p, e, &key)) {
        for (int size = 0; size < GRAPH_SIZES; size++) {
            text_add(&values, "%lld", (long long)first->tokens[size]);
            add_spread(&values, &first->without[size]);
            for (size_t i = 0; i < e->fit_count; i++)
                add_spread(&values, &e->fits[i].fit->times.kernel[size]);
            text_add(&values, "\n");
        }
        store(&key, &values);
    }
    free(key.data);
    free(values.data);
}

/* A digit for each shape. */
bool measure_recall_steps(const plan *p, uint32_t *idle)
{
    text key = {0};
    char *values = NULL, *content = make_key_of_steps(p, &key) ? load(&key, &values) : NULL;
    size_t count = content ? strspn(values, "01234567") : 0;
    bool known = content && count == p->shape_count && !strcmp(values + count, "\n");
    for (size_t i = 0; known && i < count; i++)
        idle[i] = (uint32_t)(values[i] - '0');
    free(content);
    free(key.data);
    return known;
}

void measure_remember_steps(const plan *p, const uint32_t *idle)
{
    text key = {0}, values = {0};
    for (size_t i = 0; i < p->shape_count; i++)
        text_add(&values, "%u", (unsigned)idle[i]);
    text_add(&values, "\n");
    if (make_key_of_steps(p, &key))
        store(&key, &values);
    free(key.data);
    free(values.data);
}
