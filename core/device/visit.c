/* Which function of which plugin is being called: each thread notes its own, and all of them the last that began, for
 * threads that a plugin started. */
#include "device/visit.h"

#include "base/text.h"

#include <tenon/tenon.h>

#include <stdatomic.h>
#include <string.h>

static _Thread_local visit own;

/* Of the thread that began or ended last. The three may be of different calls for a moment. */
static struct {
    _Atomic(const char *) who, file, where;
} last;

static void note(visit now)
{
    own = now;
    atomic_store_explicit(&last.who, now.who, memory_order_relaxed);
    atomic_store_explicit(&last.file, now.file, memory_order_relaxed);
    atomic_store_explicit(&last.where, now.where, memory_order_relaxed);
}

visit visit_begin(const char *who, const char *file, const char *where)
{
    visit before = own;
    note((visit){who, file, where});
    return before;
}

static void seal(char *text, size_t size)
{
    char whole[sizeof((tn_error *)0)->message];
    text[size - 1] = '\0';
    text_cut(whole, sizeof whole, "%s", text);
    text_escape(text, size, whole);
}

void visit_seal(tn_error *err)
{
    if (!err || (!err->where[0] && !err->message[0]))
        return;
    seal(err->where, sizeof err->where);
    seal(err->message, sizeof err->message);
}

void visit_end(visit before, tn_error *err)
{
    note(before);
    visit_seal(err);
}

bool tn_plugin_called(char *text, size_t size)
{
    visit now = own;
    if (!now.who)
        now = (visit){atomic_load(&last.who), atomic_load(&last.file), atomic_load(&last.where)};
    bool wanted = text && size > 0;
    if (wanted)
        text[0] = '\0';
    if (!now.who || !now.where)
        return false;
    const char *slash = now.file ? strrchr(now.file, '/') : NULL, *file = slash ? slash + 1 : now.file;
    if (wanted)
        text_cut(text, size, "%s%s%s%s in %s", now.who, file ? " (" : "", file ? file : "", file ? ")" : "", now.where);
    return true;
}
