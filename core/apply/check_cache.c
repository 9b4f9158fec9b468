/* What earlier runs checked. A kernel that passed the check of a first use is trusted again at the same shape of the
 * same checkpoint, as long as nothing has changed that took part: this library, the processor and its instruction sets,
 * the number of threads, every byte of the plugin, the environment, which a kernel may read, and the checkpoint's
 * files. Refusals are not kept: they are found anew, with their reason. */
#include "apply/check_cache.h"

#include "base/hash.h"
#include "base/text.h"
#include "device/machine.h"
#include "plugin/cachefile.h"
#include "plugin/plugins.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES = 4096, NAME_BYTES = 32 };

/* Variables that follow the user around and that no kernel goes by. */
static const char *const passing[] = {
    "PWD=", "OLDPWD=", "SHLVL=", "_=", "TERM=", "LINES=", "COLUMNS=", "SSH_", "XDG_SESSION_ID="};

static uint64_t hash_environment(void)
{
    uint64_t hash = HASH_START;
    for (char **variable = environ; variable && *variable; variable++) {
        size_t i = 0;
        while (i < sizeof passing / sizeof *passing && strncmp(*variable, passing[i], strlen(passing[i])) != 0)
            i++;
        if (i == sizeof passing / sizeof *passing)
            hash = hash_bytes(hash, *variable, strlen(*variable) + 1);
    }
    return hash;
}

/* false: it cannot be said what would be kept. */
static bool make_key(const plan *p, size_t candidate, const plan_fit *fit, size_t site, text *key)
{
    const registry_kernel *k = p->candidates[candidate].kernel;
    const tn_site *own = &p->target->graph->sites[site]->site;
    char host[256], cpu[128], sha256[PLUGINS_SHA256];
    if (p->target->weights_identity == 0 || !plugins_sha256(k->file, sha256))
        return false;
    cachefile_host(host, sizeof host);
    machine_cpu_name(cpu, sizeof cpu);
    text_add(key, "host %s\ncpu %s, flags %" PRIx64 ", %d threads, environment %016" PRIx64 "\n", host, cpu,
             tn_cpu_flags(), (int)tn_thread_count(), hash_environment());
    text_add(key, "weights %016" PRIx64 "\nsite %s %s %016" PRIx64 "%s\n", p->target->weights_identity,
             tn_op_name(own->op), own->path, plan_shape_hash(own), p->target->training ? " with gradients" : "");
    text_add(key, "kernel %s/%s/%d passed\n", sha256, k->kernel.id,
             (int)(fit - plan_fit_at(p, candidate, p->shape_of[site], 0)));
    return !key->failed;
}

/* Without the first line, so that a newer library replaces what an older one left. */
static void name_of(const text *key, char name[NAME_BYTES])
{
    size_t first = strcspn(key->data, "\n");
    snprintf(name, NAME_BYTES, "checked-%016" PRIx64, hash_bytes(HASH_START, key->data + first, key->length - first));
}

static const char form[] = "tenon-checked 1\n";

bool check_cache_recall(const plan *p, size_t candidate, const plan_fit *fit, size_t site)
{
    char name[NAME_BYTES];
    text key = {0};
    bool known = make_key(p, candidate, fit, site, &key);
    if (known) {
        name_of(&key, name);
        char *content = cachefile_load(name, FILE_BYTES, NULL, 0);
        known = content && !strncmp(content, form, sizeof form - 1) && !strcmp(content + sizeof form - 1, key.data);
        free(content);
    }
    free(key.data);
    return known;
}

void check_cache_remember(const plan *p, size_t candidate, const plan_fit *fit, size_t site)
{
    char name[NAME_BYTES];
    text key = {0}, content = {0};
    if (make_key(p, candidate, fit, site, &key)) {
        name_of(&key, name);
        text_add(&content, "%s%s", form, key.data);
        if (!content.failed && content.length < FILE_BYTES)
            cachefile_store(name, content.data, content.length);
    }
    free(key.data);
    free(content.data);
}
