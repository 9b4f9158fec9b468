/* What earlier runs checked. A kernel that passed the check of a first use is trusted again at the same shape of the
 * same checkpoint, as long as nothing has changed that took part: this library, the processor and its instruction sets,
 * the number of threads, every byte of the plugin and every library that this process has, which the plugin may call,
 * the environment, which a kernel may read, and the checkpoint's files. What loads libraries while it is tried is not
 * kept: where it finds them next time is not known. Refusals are not kept: they are found anew, with their reason. What
 * first_calls.c has to say of the kernel stands behind that: the sizes of calls that were right on live data, or the
 * one that was wrong. */
#include "select/check_cache.h"

#include "base/hash.h"
#include "base/text.h"
#include "device/machine.h"
#include "plugin/cachefile.h"
#include "plugin/environment.h"
#include "plugin/objects.h"
#include "plugin/plugins.h"
#include "plugin/registry.h"
#include "select/alike.h"
#include "select/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES = 8192, NAME_BYTES = 32 };

/* false: it cannot be said what would be kept. */
static bool make_key(const plan *p, size_t candidate, const plan_fit *fit, size_t site, text *key)
{
    const registry_kernel *k = p->candidates[candidate].kernel;
    const tn_site *own = &p->target->graph->sites[site]->site;
    char host[256], cpu[128], sha256[PLUGINS_SHA256], code[65];
    if (p->target->weights_identity == 0 || !plugins_sha256(k->file, sha256) || !objects_surroundings(code))
        return false;
    cachefile_host(host, sizeof host);
    machine_cpu_name(cpu, sizeof cpu);
    text_add(key, "host %s\ncpu %s, flags %" PRIx64 ", %d threads, environment %016" PRIx64 "\n", host, cpu,
             tn_cpu_flags(), (int)tn_thread_count(), environment_hash());
    text_add(key, "weights %016" PRIx64 "\nsite %s %s %016" PRIx64 "%s%s\n", p->target->weights_identity,
             tn_op_name(own->op), own->path, plan_shape_hash(own), p->target->training ? " with gradients" : "",
             p->target->cut ? " and parts" : "");
    text_add(key, "code %s\nkernel %s/%s/%d passed\n", code, sha256, k->kernel.id,
             (int)(fit - plan_fit_at(p, candidate, p->shape_of[site], 0)));
    return !key->failed;
}

char *check_cache_key(const plan *p, size_t candidate, const plan_fit *fit, size_t site)
{
    text key = {0};
    if (make_key(p, candidate, fit, site, &key))
        return key.data;
    free(key.data);
    return NULL;
}

/* Without the first line, so that a newer library replaces what an older one left. */
static void name_of(const char *key, char name[NAME_BYTES])
{
    const char *rest = key + strcspn(key, "\n");
    snprintf(name, NAME_BYTES, "checked-%016" PRIx64, hash_bytes(HASH_START, rest, strlen(rest)));
}

static const char form[] = "tenon-checked 2\n";

char *check_cache_recall(const char *key)
{
    char name[NAME_BYTES];
    size_t head = sizeof form - 1, length = strlen(key);
    name_of(key, name);
    char *content = cachefile_load(name, FILE_BYTES, NULL, 0);
    if (content && !strncmp(content, form, head) && !strncmp(content + head, key, length)) {
        memmove(content, content + head + length, strlen(content + head + length) + 1);
        return content;
    }
    free(content);
    return NULL;
}

void check_cache_remember(const char *key, const char *more)
{
    char name[NAME_BYTES];
    text content = {0};
    name_of(key, name);
    text_add(&content, "%s%s%s", form, key, more);
    if (!content.failed && content.length < FILE_BYTES)
        cachefile_store(name, content.data, content.length);
    free(content.data);
}
