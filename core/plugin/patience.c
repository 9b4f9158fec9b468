/* How long plugins may keep the host waiting. A hang is remembered for a short while only: a busy machine may have been
 * to blame. It holds for this library, the code and the environment that it was met with. */
#include "plugin/patience.h"

#include "base/hash.h"
#include "base/text.h"
#include "plugin/cachefile.h"
#include "plugin/environment.h"
#include "plugin/objects.h"
#include "plugin/plugins.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FILES = 256, LIFE_SECONDS = 600, REASON = 320, NAME = 32, CONTENT = 2048 };

typedef struct account {
    const char *file; /* interned                                                                  */
    double spent;
    bool recalled, gone;
    char reason[REASON];
} account;

static struct {
    pthread_mutex_t lock;
    account accounts[FILES];
    size_t count;
} patience = {.lock = PTHREAD_MUTEX_INITIALIZER};

double patience_most(void)
{
    return 3 * environment_trial_seconds();
}

/* ---- in the cache ----------------------------------------------------------------------------------------------- */

/* Lines that say what a hang is of. false: it cannot be said, so nothing is kept. */
static bool make_key(const char *file, text *key, char name[NAME])
{
    char host[256], sha256[PLUGINS_SHA256], code[65];
    if (!plugins_sha256(file, sha256) || !objects_surroundings(code))
        return false;
    cachefile_host(host, sizeof host);
    text_add(key, "tenon-hung 1\nhost %s\nplugin %s\ncode %s, environment %016" PRIx64 "\n", host, sha256, code,
             environment_hash());
    if (!key->failed)
        snprintf(name, NAME, "hung-%016" PRIx64, hash_bytes(HASH_START, sha256, strlen(sha256)));
    return !key->failed;
}

static void store(const account *a)
{
    char name[NAME];
    text content = {0};
    if (make_key(a->file, &content, name)) {
        text_add(&content, "at %lld\nreason %s\n", (long long)time(NULL), a->reason);
        if (!content.failed && content.length < CONTENT)
            cachefile_store(name, content.data, content.length);
    }
    free(content.data);
}

static void recall(account *a)
{
    char name[NAME], folder[1024];
    text key = {0};
    char *content = make_key(a->file, &key, name) ? cachefile_load(name, CONTENT, folder, sizeof folder) : NULL;
    if (content && !strncmp(content, key.data, key.length)) {
        char *at = content + key.length;
        const char *when = cachefile_line(&at, "at"), *reason = when ? cachefile_line(&at, "reason") : NULL;
        long long age = reason ? (long long)time(NULL) - strtoll(when, NULL, 10) : -1;
        a->gone = age >= 0 && age < LIFE_SECONDS;
        if (a->gone)
            text_cut(a->reason, sizeof a->reason, "%.160s (%lld s ago; it is asked again in %lld s, or delete %s/%s)",
                     reason, age, LIFE_SECONDS - age, folder, name);
    }
    free(content);
    free(key.data);
}

/* ---- accounts --------------------------------------------------------------------------------------------------- */

/* NULL: no memory for one more. */
static account *account_of(const char *file)
{
    for (size_t i = 0; i < patience.count; i++)
        if (strcmp(patience.accounts[i].file, file) == 0)
            return &patience.accounts[i];
    const char *own = patience.count < FILES ? plugins_intern(file) : NULL;
    if (!own)
        return NULL;
    account *a = &patience.accounts[patience.count++];
    *a = (account){.file = own};
    return a;
}

double patience_spent(const char *file)
{
    pthread_mutex_lock(&patience.lock);
    const account *a = account_of(file);
    double spent = a ? a->spent : 0;
    pthread_mutex_unlock(&patience.lock);
    return spent;
}

void patience_spend(const char *file, double seconds, const char *hang)
{
    pthread_mutex_lock(&patience.lock);
    account *a = account_of(file);
    if (a)
        a->spent += seconds;
    bool out = a && !a->gone && a->spent > patience_most();
    if (a && hang)
        text_cut(a->reason, sizeof a->reason, "%s", hang);
    else if (out)
        text_cut(a->reason, sizeof a->reason, "its answers used up the %g s that a plugin has", patience_most());
    if (out || (a && hang))
        store(a);
    if (out)
        a->gone = true;
    pthread_mutex_unlock(&patience.lock);
}

bool patience_gone(const char *file, char *reason, size_t size)
{
    pthread_mutex_lock(&patience.lock);
    account *a = account_of(file);
    if (a && !a->recalled && !a->gone && a->spent == 0)
        recall(a);
    if (a)
        a->recalled = true;
    bool gone = a && a->gone;
    if (gone)
        text_cut(reason, size, "%s", a->reason);
    pthread_mutex_unlock(&patience.lock);
    return gone;
}
