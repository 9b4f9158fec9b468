/* Opening a plugin for good, through libltdl. Nothing is ever unloaded: registered descriptors and functions lie in the
 * plugin's memory. */
#include "plugin/loader.h"

#include "base/edge.h"
#include "device/hoststate.h"
#include "device/tasks.h"
#include "device/visit.h"

#include <ltdl.h>

typedef struct loading {
    const char *path;
    lt_dladvise advise; /* may be left behind by what opens                                             */
    lt_dlhandle handle;
} loading;

static void open_resident(void *argument)
{
    loading *l = argument;
    if (lt_dladvise_init(&l->advise) == 0 && lt_dladvise_local(&l->advise) == 0 &&
        lt_dladvise_resident(&l->advise) == 0)
        l->handle = lt_dlopenadvise(l->path, l->advise);
}

tn_status loader_open(const char *path, stage *staged, char *changed, size_t changed_size, size_t *threads,
                      tn_error *err)
{
    static bool lost; /* it met a null pointer of its own: no memory; one thread scans at a time         */
    *threads = 0;
    if (lost)
        return tn_fail(err, TN_E_MEMORY, path, "not opened: libltdl ran out of memory before");
    if (lt_dlinit() != 0) /* counts its calls; never undone, like the libraries it opens */
        return tn_fail(err, TN_E_INTERNAL, path, "libltdl does not start: %s", lt_dlerror());
    edge_install(); /* its handler belongs to the host, not to what a plugin changed                 */
    hoststate *before = hoststate_save();
    if (!before)
        return tn_fail(err, TN_E_MEMORY, path, "out of memory");
    size_t tasks = tasks_count();
    stage_begin(staged);
    loading l = {.path = path};
    visit outer = visit_begin("a plugin", path, "its constructor");
    lost = !edge_call(open_resident, &l);
    visit_end(outer, NULL);
    if (l.advise)
        lt_dladvise_destroy(&l.advise);
    stage_end();
    hoststate_restore(before, changed, changed_size);
    *threads = tasks_left(tasks);
    if (l.handle)
        return TN_OK;
    if (lost)
        return tn_fail(err, TN_E_MEMORY, path, "not opened: libltdl ran out of memory");
    const char *why = lt_dlerror();
    return tn_fail(err, TN_E_KERNEL, path, "opened in its trial, but not here: %s", why ? why : "no reason given");
}
