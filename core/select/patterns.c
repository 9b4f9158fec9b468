/* Patterns of module paths that options give to kernels: is there a module for each? */
#include "select/patterns.h"

#include "base/nearest.h"
#include "base/text.h"
#include "select/plan.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

/* The next of the patterns separated by commas, without blanks before it; the place behind it, or NULL at the end. */
static const char *next_pattern(const char *at, char *pattern, size_t size)
{
    if (!at || !*at)
        return NULL;
    at += strspn(at, " ");
    size_t n = strcspn(at, ",");
    text_cut(pattern, size, "%.*s", (int)n, at);
    return at + n + (at[n] == ',');
}

enum { PATTERN_MAX = 512 };

bool plan_modules_match(const char *patterns, const char *path)
{
    char pattern[PATTERN_MAX];
    if (!patterns)
        return true;
    for (const char *at = patterns; (at = next_pattern(at, pattern, sizeof pattern));)
        if (pattern[0] && fnmatch(pattern, path, 0) == 0)
            return true;
    return false;
}

static bool matches_any(const graph *g, const char *pattern)
{
    for (size_t i = 0; i < g->site_count; i++)
        if (fnmatch(pattern, g->sites[i]->site.path, 0) == 0)
            return true;
    return false;
}

/* The pattern behind the beginning that it lacks, as "model.layers.0*" for "layers.0*". */
static bool completed(const graph *g, const char *pattern, char *near, size_t size)
{
    for (size_t i = 0; i < g->site_count; i++) {
        const char *path = g->sites[i]->site.path;
        for (const char *dot = strchr(path, '.'); dot; dot = strchr(dot + 1, '.'))
            if (fnmatch(pattern, dot + 1, 0) == 0) {
                text_cut(near, size, "%.*s%s", (int)(dot + 1 - path), path, pattern);
                return true;
            }
    }
    return false;
}

/* What the pattern may have meant: a path or, for one with wild cards, what the paths below a module begin with. Empty:
 * nothing. */
static void near_pattern(const graph *g, const char *pattern, char *near, size_t size)
{
    char begin[PATTERN_MAX];
    nearest n = {0};
    near[0] = '\0';
    if (completed(g, pattern, near, size))
        return;
    for (size_t i = 0; i < g->site_count; i++) {
        const char *path = g->sites[i]->site.path;
        if (nearest_closer(&n, pattern, path))
            text_cut(near, size, "%s", path);
        for (const char *dot = strchr(path, '.'); dot && strpbrk(pattern, "*?["); dot = strchr(dot + 1, '.')) {
            text_cut(begin, sizeof begin, "%.*s.*", (int)(dot - path), path);
            if (nearest_closer(&n, pattern, begin))
                text_cut(near, size, "%s", begin);
        }
    }
}

/* from: the file whose options these are, or NULL. */
static tn_status check_pattern(plan *p, const char *from, const char *id, const char *pattern, bool is_error,
                               tn_error *err)
{
    char where[400], line[640], near[200];
    near_pattern(p->target->graph, pattern, near, sizeof near);
    text_cut(where, sizeof where, "%s%s%s", from ? from : "modules", from ? ": key 'options': " : " of ", id);
    text_cut(line, sizeof line, "'%.200s' matches no module of this model%s%s%s; see tenon inspect", pattern,
             near[0] ? ", did you mean '" : "", near, near[0] ? "'?" : "");
    if (!is_error)
        return plan_note(p, err, "%s: %s", where, line);
    if (!from)
        return tn_fail(err, TN_E_KERNEL, id, "takes no site by one of the patterns: %s", line);
    return tn_fail(err, TN_E_KERNEL, from, "key 'options': %s takes no site: %s", id, line);
}

static tn_status check_patterns(plan *p, const plan_candidate *c, const char *from, tn_error *err)
{
    char pattern[PATTERN_MAX];
    tn_status status = TN_OK;
    size_t matching = 0; /* of those that the caller gave each counts: who gave them reads no notes   */
    for (const char *at = c->modules; (at = next_pattern(at, pattern, sizeof pattern));)
        matching += matches_any(p->target->graph, pattern);
    for (const char *at = c->modules; status == TN_OK && (at = next_pattern(at, pattern, sizeof pattern));)
        if (!matches_any(p->target->graph, pattern))
            status = check_pattern(p, from, c->kernel->kernel.id, pattern, c->named && (matching == 0 || !from), err);
    return status;
}

tn_status plan_check_patterns(plan *p, const plan_request *request, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < p->candidate_count && status == TN_OK; i++) {
        const plan_candidate *c = &p->candidates[i];
        bool own = c->modules && c->modules == request->modules;
        if (c->modules && !c->excluded[0])
            status = check_patterns(p, c, own || !p->config ? NULL : tn_config_file(p->config), err);
    }
    return status;
}
