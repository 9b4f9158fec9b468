/* Which sizes of calls were compared with eager on live data, by kernel and shape: in this process, and beside the
 * remembered check (check_cache.h) as one line. "first COMPARED SIZES": all were right; "wrong REASON": one was not. */
#include "select/first_calls.h"

#include "plugin/registry.h"
#include "select/check_cache.h"
#include "select/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char wrong[] = "wrong ";

const char *first_calls_reason(char *known)
{
    if (strncmp(known, wrong, sizeof wrong - 1) != 0)
        return NULL;
    known[strcspn(known, "\n")] = '\0';
    return known + sizeof wrong - 1;
}

/* What is not such a line is nothing: everything is compared anew. */
static void read_known(first_calls *f, const char *known)
{
    int at = 0;
    sizes met;
    int64_t compared = 0;
    if (known && sscanf(known, "first %" SCNd64 " %n", &compared, &at) == 1 && at > 0 && compared > 0 &&
        sizes_read(&met, known + at)) {
        sizes_join(&f->met, &met);
        f->compared = compared > f->compared ? compared : f->compared;
    }
}

char *first_calls_key(const tn_impl *impl, uint64_t shape)
{
    text key = {0};
    text_add(&key, "%p %016" PRIx64, (const void *)impl, shape);
    if (!key.failed)
        return key.data;
    free(key.data);
    return NULL;
}

static first_calls *find(const apply_target *target, const char *key)
{
    first_calls *f = target->first;
    while (f && strcmp(f->key, key) != 0)
        f = f->next;
    return f;
}

first_calls *first_calls_open(apply_target *target, const struct registry_kernel *kernel, char *key, bool kept,
                              const char *known, tn_error *err)
{
    first_calls *f = key ? find(target, key) : NULL;
    if (f) {
        free(key);
        return f;
    }
    if (!key || !(f = calloc(1, sizeof *f))) {
        free(key);
        plan_no_memory(err);
        return NULL;
    }
    *f = (first_calls){.next = target->first, .kernel = kernel, .key = key, .kept = kept, .threads = tn_thread_count()};
    read_known(f, known);
    return target->first = f;
}

void first_calls_close(apply_target *target)
{
    first_calls_keep(target);
    for (first_calls *f = target->first, *next; f; f = next) {
        next = f->next;
        free(f->key);
        free(f);
    }
    target->first = NULL;
}

bool first_calls_is_new(first_calls *f, const tn_call *call)
{
    if (f->threads != tn_thread_count()) { /* what a call is divided into is another thing then           */
        f->threads = tn_thread_count();
        f->met = (sizes){0};
        f->kept = false;
    }
    return !sizes_meet(&f->met, call, false);
}

bool first_calls_is_known(const first_calls *f, const tn_call *call)
{
    return f->threads == tn_thread_count() && sizes_meet((sizes *)(uintptr_t)&f->met, call, false);
}

void first_calls_passed(apply_target *target, first_calls *f, const tn_call *call)
{
    sizes_meet(&f->met, call, true);
    f->grown = true;
    f->compared++;
    target->first_now++;
}

static void keep(first_calls *f)
{
    text line = {0};
    char *known = check_cache_recall(f->key);
    f->grown = false;
    /* Another process may have found out more meanwhile. */
    if (known && first_calls_reason(known)) {
        free(known);
        return;
    }
    read_known(f, known);
    text_add(&line, "first %" PRId64 " ", f->compared);
    sizes_write(&f->met, &line);
    text_add(&line, "\n");
    if (!line.failed)
        check_cache_remember(f->key, line.data);
    free(line.data);
    free(known);
}

void first_calls_keep(apply_target *target)
{
    for (first_calls *f = target->first; f; f = f->next)
        if (f->grown && f->kept && !f->busy)
            keep(f);
}

void first_calls_failed(apply_target *target, const struct registry_kernel *kernel, const char *reason)
{
    for (first_calls *f = target->first; f; f = f->next) {
        text line = {0};
        if (f->kernel != kernel)
            continue;
        f->failed = true;
        f->grown = false;
        if (!f->kept)
            continue;
        text_add(&line, "%s%s\n", wrong, reason);
        if (!line.failed)
            check_cache_remember(f->key, line.data);
        free(line.data);
    }
}

int64_t first_calls_count(const apply_target *target)
{
    int64_t count = 0;
    for (const first_calls *f = target->first; f; f = f->next)
        count += f->compared;
    return count;
}
