/* Verdicts of earlier trials: one small file each in the cache, named after the content of the plugin. A verdict holds
 * for the library and the machine that made it, for the surroundings in which the dynamic linker looked for other
 * libraries, and for every library that came in, each at its path with its inode, size and times; all of them are named
 * in the file. Without a cache every start tries every plugin. */
#include "base/text.h"
#include "plugin/cachefile.h"
#include "plugin/trial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { VERDICT_BYTES = 1 << 16, BRIEF_SECONDS = 600 };

/* "IDENTITY SHA256 PATH" */
static bool parse_object(char *line, objects_list *list)
{
    objects_file *files = realloc(list->files, (list->count + 1) * sizeof *files);
    if (!files)
        return false;
    list->files = files;
    objects_file *file = &files[list->count];
    *file = (objects_file){0};
    char *hash = strchr(line, ' '), *path = hash ? strchr(hash + 1, ' ') : NULL;
    if (!path || hash - line >= (ptrdiff_t)sizeof file->identity || path - hash != sizeof file->sha256)
        return false;
    memcpy(file->identity, line, (size_t)(hash - line));
    memcpy(file->sha256, hash + 1, sizeof file->sha256 - 1);
    file->path = strdup(path + 1);
    list->count += file->path != NULL;
    return file->path != NULL;
}

static bool parse_objects(char **text, objects_list *list)
{
    char *line;
    while ((line = cachefile_line(text, "object")))
        if (!parse_object(line, list))
            return false;
    return cachefile_line(text, "end") && !**text;
}

/* "0": for ever. Who sets the clock back loses what was kept for a while. */
static bool holds_now(const char *until)
{
    long long end = strtoll(until, NULL, 10), now = (long long)time(NULL);
    return end == 0 || (now <= end && end <= now + BRIEF_SECONDS);
}

static bool parse(char *text, const char *sha256, trial_verdict *verdict)
{
    char host[256], here[65];
    cachefile_host(host, sizeof host);
    const char *form = cachefile_line(&text, "tenon-verdict"), *of = form ? cachefile_line(&text, "host") : NULL;
    const char *around = of ? cachefile_line(&text, "surroundings") : NULL;
    const char *sha = around ? cachefile_line(&text, "sha256") : NULL,
               *state = sha ? cachefile_line(&text, "state") : NULL;
    const char *until = state ? cachefile_line(&text, "until") : NULL;
    const char *reason = until ? cachefile_line(&text, "reason") : NULL;
    if (!reason || strcmp(form, "3") != 0 || !holds_now(until) || strcmp(of, host) != 0 || strcmp(sha, sha256) != 0 ||
        !objects_surroundings(here) || strcmp(around, here) != 0 || !parse_objects(&text, &verdict->objects))
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

/* Every library is still what it was, and what the plugin leads to is among them: a folder that is searched earlier may
 * have one of that name now. */
static bool holds(const trial_verdict *verdict, const needs *n)
{
    if (!objects_unchanged(&verdict->objects) || (verdict->state != TN_PLUGIN_LOADED && n->more))
        return false;
    for (size_t i = 0; i < n->found.count; i++)
        if (!objects_find(&verdict->objects, n->found.files[i].path))
            return false;
    return true;
}

bool verdict_load(const char *sha256, const needs *n, trial_verdict *verdict)
{
    *verdict = (trial_verdict){.state = TN_PLUGIN_QUARANTINED};
    char path[1024];
    char *text = cachefile_load(sha256, VERDICT_BYTES, path, sizeof path);
    bool good = text && parse(text, sha256, verdict) && holds(verdict, n);
    free(text);
    if (!good) {
        trial_free(verdict);
        return false;
    }
    if (verdict->state == TN_PLUGIN_QUARANTINED) {
        size_t used = strlen(verdict->reason);
        snprintf(verdict->reason + used, sizeof verdict->reason - used, " earlier; to try it again delete %s/%s", path,
                 sha256);
    }
    return true;
}

/* The text to keep; false: something in it would not be read back as it was. Release out's data. */
static bool compose(const char *sha256, const trial_verdict *verdict, text *out)
{
    char host[256], here[65];
    cachefile_host(host, sizeof host);
    if (strchr(verdict->reason, '\n') || !objects_surroundings(here) || !objects_unchanged(&verdict->objects))
        return false;
    text_add(out, "tenon-verdict 3\nhost %s\nsurroundings %s\nsha256 %s\nstate %s\nuntil %lld\nreason %s\n", host, here,
             sha256, verdict->state == TN_PLUGIN_LOADED ? "good" : "quarantined",
             verdict->brief ? (long long)time(NULL) + BRIEF_SECONDS : 0LL, verdict->reason);
    for (size_t i = 0; i < verdict->objects.count; i++) {
        const objects_file *file = &verdict->objects.files[i];
        if (strchr(file->path, '\n'))
            return false;
        text_add(out, "object %s %s %s\n", file->identity, file->sha256, file->path);
    }
    text_add(out, "end %zu\n", verdict->objects.count);
    return !out->failed && out->length < VERDICT_BYTES;
}

void verdict_store(const char *sha256, const trial_verdict *verdict)
{
    text all = {0};
    if (verdict->lasting && compose(sha256, verdict, &all))
        cachefile_store(sha256, all.data, all.length);
    free(all.data);
}
