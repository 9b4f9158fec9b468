/* Parsing SPEC: "auto", "none", or ids separated by commas. */
#include "plugin/registry.h"

#include <stdlib.h>
#include <string.h>

static const char blanks[] = " \t\r\n";

/* Adds the id of length n unless it is there already. */
static tn_status add_id(select_spec *spec, const char *id, size_t n, tn_error *err)
{
    for (size_t i = 0; i < spec->count; i++)
        if (strlen(spec->ids[i]) == n && memcmp(spec->ids[i], id, n) == 0)
            return TN_OK;
    char **ids = realloc(spec->ids, (spec->count + 1) * sizeof *ids);
    if (!ids)
        return tn_fail(err, TN_E_MEMORY, "kernels", "out of memory");
    spec->ids = ids;
    ids[spec->count] = strndup(id, n);
    if (!ids[spec->count])
        return tn_fail(err, TN_E_MEMORY, "kernels", "out of memory");
    spec->count++;
    return TN_OK;
}

static tn_status parse_ids(const char *text, select_spec *spec, tn_error *err)
{
    for (const char *at = text;; at++) {
        at += strspn(at, blanks);
        size_t whole = strcspn(at, ","), n = whole;
        while (n > 0 && strchr(blanks, at[n - 1]))
            n--;
        if (n == 0)
            return tn_fail(err, TN_E_KERNEL, "kernels", "'%s' has an empty id; write auto, none or ids like a,b", text);
        if (n == 4 && (memcmp(at, "auto", 4) == 0 || memcmp(at, "none", 4) == 0))
            return tn_fail(err, TN_E_KERNEL, "kernels", "'%.4s' cannot be combined with ids; write it alone", at);
        tn_status status = add_id(spec, at, n, err);
        if (status != TN_OK)
            return status;
        at += whole;
        if (!*at)
            return TN_OK;
    }
}

tn_status spec_parse(const char *text, select_spec *spec, tn_error *err)
{
    *spec = (select_spec){.mode = SELECT_NONE};
    if (!text)
        return tn_fail(err, TN_E_KERNEL, "kernels", "no kernels given; write auto, none or ids like a,b");
    const char *at = text + strspn(text, blanks);
    size_t n = strlen(at);
    while (n > 0 && strchr(blanks, at[n - 1]))
        n--;
    if (n == 4 && memcmp(at, "none", 4) == 0)
        return TN_OK;
    if (n == 4 && memcmp(at, "auto", 4) == 0) {
        spec->mode = SELECT_AUTO;
        return TN_OK;
    }
    spec->mode = SELECT_IDS;
    tn_status status = parse_ids(text, spec, err);
    if (status != TN_OK)
        spec_free(spec);
    return status;
}

void spec_free(select_spec *spec)
{
    if (!spec)
        return;
    for (size_t i = 0; i < spec->count; i++)
        free(spec->ids[i]);
    free(spec->ids);
    *spec = (select_spec){.mode = SELECT_NONE};
}
