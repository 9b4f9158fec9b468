/* Verdicts of earlier trials: one small file each in the cache, named after the content of the plugin. A verdict holds
 * for the library and the machine that made it, both named in the file. Without a cache every start tries every
 * plugin. */
#include "plugin/trial.h"

#include "plugin/cachefile.h"

#include <stdio.h>
#include <string.h>

enum { VERDICT_BYTES = 2048 };

static bool parse(char *text, const char *sha256, trial_verdict *verdict)
{
    char host[256];
    cachefile_host(host, sizeof host);
    const char *form = cachefile_line(&text, "tenon-verdict"), *of = form ? cachefile_line(&text, "host") : NULL;
    const char *sha = of ? cachefile_line(&text, "sha256") : NULL, *state = sha ? cachefile_line(&text, "state") : NULL;
    const char *reason = state ? cachefile_line(&text, "reason") : NULL;
    if (!reason || *text || strcmp(form, "1") != 0 || strcmp(of, host) != 0 || strcmp(sha, sha256) != 0)
        return false;
    if (strcmp(state, "good") == 0)
        verdict->state = TN_PLUGIN_LOADED;
    else if (strcmp(state, "quarantined") == 0)
        verdict->state = TN_PLUGIN_QUARANTINED;
    else
        return false;
    snprintf(verdict->reason, sizeof verdict->reason, "%s", reason);
    return true;
}

bool verdict_load(const char *sha256, trial_verdict *verdict)
{
    *verdict = (trial_verdict){.state = TN_PLUGIN_QUARANTINED};
    char path[1024], text[VERDICT_BYTES + 1];
    if (!cachefile_load(sha256, text, sizeof text, path, sizeof path))
        return false;
    if (!parse(text, sha256, verdict))
        return false;
    if (verdict->state == TN_PLUGIN_QUARANTINED) {
        size_t used = strlen(verdict->reason);
        snprintf(verdict->reason + used, sizeof verdict->reason - used, " earlier; to try it again delete %s/%s", path,
                 sha256);
    }
    return true;
}

void verdict_store(const char *sha256, const trial_verdict *verdict)
{
    char text[VERDICT_BYTES], host[256];
    if (!verdict->lasting || strchr(verdict->reason, '\n'))
        return;
    cachefile_host(host, sizeof host);
    int n = snprintf(text, sizeof text, "tenon-verdict 1\nhost %s\nsha256 %s\nstate %s\nreason %s\n", host, sha256,
                     verdict->state == TN_PLUGIN_LOADED ? "good" : "quarantined", verdict->reason);
    if (n > 0 && (size_t)n < sizeof text)
        cachefile_store(sha256, text, (size_t)n);
}
