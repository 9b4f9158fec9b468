/* Which modules an adapter is around, by peft's rules: names, regular expressions of whole paths, exceptions. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "open/peft.h"

#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Expressions come from files that others wrote: what a match may take. */
enum { MATCH_LIMIT = 1000000, DEPTH_LIMIT = 10000, PATTERN = 1024 };

static tn_status unusable(const char *key, const char *pattern, const char *why, tn_error *err)
{
    return tn_fail(err, TN_E_INPUT, "adapter_config.json",
                   "key '%s': the regular expression '%.100s' is not usable: %s", key, pattern, why);
}

/* Does the expression fit all of the text, as Python's re.fullmatch? */
static bool fits(const char *key, const char *pattern, const char *text, tn_status *status, tn_error *err)
{
    int code = 0;
    PCRE2_SIZE offset;
    PCRE2_UCHAR why[128] = "";
    pcre2_match_data *data = NULL;
    pcre2_match_context *limits = NULL;
    pcre2_code *compiled =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                      PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_NEVER_BACKSLASH_C, &code, &offset, NULL);
    if (compiled) {
        data = pcre2_match_data_create(1, NULL);
        limits = pcre2_match_context_create(NULL);
        code = PCRE2_ERROR_NOMEMORY;
    }
    if (data && limits) {
        pcre2_set_match_limit(limits, MATCH_LIMIT);
        pcre2_set_depth_limit(limits, DEPTH_LIMIT);
        code = pcre2_match(compiled, (PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, 0, 0, data, limits);
    }
    pcre2_match_data_free(data);
    pcre2_match_context_free(limits);
    bool failed = !compiled || (code < 0 && code != PCRE2_ERROR_NOMATCH);
    pcre2_code_free(compiled);
    if (failed && (code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_HEAP_FAILED))
        *status = tn_fail(err, TN_E_MEMORY, "adapter_config.json", "out of memory for key '%s'", key);
    else if (failed) {
        pcre2_get_error_message(code, why, sizeof why);
        *status = unusable(key, pattern, (const char *)why, err);
    }
    return *status == TN_OK && code >= 0;
}

/* Is it the name, or does it end in it? */
static bool ends_in(const char *path, const char *name)
{
    size_t length = strlen(path), n = strlen(name);
    return length >= n && !strcmp(path + length - n, name) && (length == n || path[length - n - 1] == '.');
}

/* A list of names, or an expression of the whole path. */
static bool named(const config_reader *c, const char *key, const char *path, tn_error *err)
{
    const char *one = config_is_str(c, key) ? config_str(c, key, "") : NULL;
    if (one)
        return fits(key, one, path, c->status, err);
    for (int64_t i = 0, n = config_list(c, key); i < n; i++) {
        const char *name = config_list_str(c, key, i);
        if (*c->status == TN_OK && ends_in(path, name))
            return true;
    }
    return false;
}

/* The number of the layer that a module is in: the last component that is one, behind a name (pattern, unless that is
 * empty) with something before it, and something behind it. -1: there is none. */
static int64_t layer_of(const char *path, const char *pattern)
{
    int64_t layer = -1, before = 0; /* components                                                     */
    const char *name = path;
    for (const char *at = path, *end; *at; name = at, at = end + (*end == '.'), before++) {
        end = at + strcspn(at, ".");
        size_t digits = strspn(at, "0123456789"), length = at > name ? (size_t)(at - 1 - name) : 0;
        bool is_named = !pattern[0] || (length == strlen(pattern) && !strncmp(name, pattern, length));
        if (before >= 2 && *end == '.' && digits > 0 && at + digits == end && is_named)
            layer = strtoll(at, NULL, 10);
    }
    return layer;
}

static bool is_layer(const config_reader *c, int64_t layer)
{
    static const char key[] = "layers_to_transform";
    for (int64_t i = 0, n = config_list(c, key); i < n && *c->status == TN_OK; i++)
        if (layer >= 0 && config_list_i64(c, key, i) == layer)
            return true;
    return false;
}

static bool in_layers(const config_reader *c, const char *path)
{
    static const char key[] = "layers_pattern";
    if (config_list(c, "layers_to_transform") < 1)
        return true;
    int64_t patterns = config_list(c, key);
    for (int64_t i = 0; i < patterns && *c->status == TN_OK; i++)
        if (is_layer(c, layer_of(path, config_list_str(c, key, i))))
            return true;
    return patterns < 1 && is_layer(c, layer_of(path, ""));
}

bool peft_targets(const peft_config *a, const char *path, bool linear, tn_status *status, tn_error *err)
{
    config_reader c = config_root(a->file, status, err);
    const char *one = config_is_str(&c, "target_modules") ? config_str(&c, "target_modules", "") : NULL;
    if (*status != TN_OK ||
        (config_says(&c, "exclude_modules", 0, (char[64]){0}, 64) && named(&c, "exclude_modules", path, err)))
        return false;
    bool all = one && !strcmp(one, "all-linear");
    bool named_so = all ? linear && !ends_in(path, "lm_head") : named(&c, "target_modules", path, err);
    return named_so && (one || in_layers(&c, path)) && *status == TN_OK;
}

/* The value of the first key of a pattern that fits the path: (.*\.)?key, as peft takes them. */
static double by_pattern(const config_reader *c, const char *key, const char *path, double otherwise, tn_error *err)
{
    config_reader patterns = config_child(c, key);
    const char *name;
    for (int64_t i = 0; *c->status == TN_OK && (name = config_key(&patterns, i)) != NULL; i++) {
        char pattern[PATTERN];
        if (snprintf(pattern, sizeof pattern, "(?:.*\\.)?(?:%s)", name) >= PATTERN)
            *c->status = unusable(key, name, "it is too long", err);
        else if (fits(key, pattern, path, c->status, err))
            return config_f64(&patterns, name, otherwise);
    }
    return otherwise;
}

peft_scale peft_scale_of(const peft_config *a, const char *path, tn_status *status, tn_error *err)
{
    config_reader c = config_root(a->file, status, err);
    double rank = by_pattern(&c, "rank_pattern", path, (double)a->rank, err);
    double alpha = by_pattern(&c, "alpha_pattern", path, a->alpha, err);
    if (!(rank >= 1 && rank <= PEFT_LARGEST_RANK) || rank != floor(rank)) {
        if (*status == TN_OK)
            config_fail(&c, "rank_pattern", "gives %s rank %g", path, rank);
        return (peft_scale){1, 0};
    }
    return (peft_scale){(int64_t)rank, alpha / (a->rslora ? sqrt(rank) : rank)};
}
