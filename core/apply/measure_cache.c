/* What earlier runs measured, so that the same choice is made again. A measurement holds for this library, processor,
 * instruction sets, number of threads, shape, and the content of every plugin that takes part. */
#include "apply/measure.h"

#include "base/hash.h"
#include "base/text.h"
#include "device/machine.h"
#include "plugin/cachefile.h"
#include "plugin/plugins.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES = 8192, NAME_BYTES = 32 };

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

/* Lines that say what a measurement is of; false: it cannot be said, so nothing is kept. */
static bool make_key(const plan *p, const measure_entry *e, text *key)
{
    char host[256], cpu[128];
    bool known = true;
    cachefile_host(host, sizeof host);
    machine_cpu_name(cpu, sizeof cpu);
    text_add(key, "host %s\ncpu %s, flags %" PRIx64 ", %d threads\n", host, cpu, tn_cpu_flags(),
             (int)tn_thread_count());
    text_add(key, "site %s %016" PRIx64 "\nkernels", tn_op_name(p->shapes[e->shape]->site.op),
             plan_shape_hash(&p->shapes[e->shape]->site));
    for (size_t i = 0; i < e->fit_count && known; i++)
        known = add_kernel(key, p, e->fits[i].candidate, e->fits[i].fit, e->shape);
    text_add(key, "\nparts");
    known = known && add_parts(key, p, e->sites[0]);
    text_add(key, "\n");
    return known && !key->failed;
}

/* Without the first line, so that a newer library replaces what an older one left. */
static void name_of(const text *key, char name[NAME_BYTES])
{
    size_t first = strcspn(key->data, "\n");
    snprintf(name, NAME_BYTES, "measured-%016" PRIx64, hash_bytes(HASH_START, key->data + first, key->length - first));
}

/* "tokens seconds seconds ..." for each size, the first without any kernel. false: not that. */
static bool read_times(const char *at, measure_entry *e)
{
    plan_times times[MEASURE_FITS] = {0};
    for (int size = 0; size < GRAPH_SIZES; size++) {
        char *end;
        int64_t tokens = strtoll(at, &end, 10);
        double without = strtod(end, &end);
        if (tokens < 1 || !isfinite(without) || without <= 0)
            return false;
        for (size_t i = 0; i < e->fit_count; i++) {
            times[i].tokens[size] = tokens;
            times[i].without[size] = without;
            times[i].kernel[size] = strtod(end, &end);
            if (!isfinite(times[i].kernel[size]) || times[i].kernel[size] <= 0)
                return false;
        }
        if (*end != '\n')
            return false;
        at = end + 1;
    }
    for (size_t i = 0; i < e->fit_count; i++) {
        times[i].known = true;
        e->fits[i].fit->times = times[i];
    }
    return true;
}

static const char form[] = "tenon-measured 2\n";

bool measure_recall(const plan *p, measure_entry *e)
{
    char name[NAME_BYTES];
    text key = {0};
    bool known = make_key(p, e, &key);
    if (known) {
        name_of(&key, name);
        size_t head = sizeof form - 1;
        char *content = cachefile_load(name, FILE_BYTES, NULL, 0);
        known = content && !strncmp(content, form, head) && !strncmp(content + head, key.data, key.length) &&
                read_times(content + head + key.length, e);
        free(content);
    }
    free(key.data);
    return known;
}

void measure_remember(const plan *p, const measure_entry *e)
{
    char name[NAME_BYTES];
    text key = {0}, content = {0};
    if (make_key(p, e, &key)) {
        text_add(&content, "%s%s", form, key.data);
        for (int size = 0; size < GRAPH_SIZES; size++) {
            const plan_times *first = &e->fits[0].fit->times;
            text_add(&content, "%lld %.9g", (long long)first->tokens[size], first->without[size]);
            for (size_t i = 0; i < e->fit_count; i++)
                text_add(&content, " %.9g", e->fits[i].fit->times.kernel[size]);
            text_add(&content, "\n");
        }
        name_of(&key, name);
        if (!content.failed && content.length < FILE_BYTES)
            cachefile_store(name, content.data, content.length);
    }
    free(key.data);
    free(content.data);
}
