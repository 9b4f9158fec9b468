/* Opening a plugin for good, through libltdl. Nothing is ever unloaded: registered descriptors and functions lie in the
 * plugin's memory. */
#include "plugin/loader.h"

#include "device/hoststate.h"
#include "device/tasks.h"

#include <ltdl.h>

static lt_dlhandle open_resident(const char *path)
{
    lt_dladvise advise;
    if (lt_dladvise_init(&advise) != 0)
        return NULL;
    lt_dlhandle handle = NULL;
    if (lt_dladvise_local(&advise) == 0 && lt_dladvise_resident(&advise) == 0)
        handle = lt_dlopenadvise(path, advise);
    lt_dladvise_destroy(&advise);
    return handle;
}

tn_status loader_open(const char *path, stage *staged, char *changed, size_t changed_size, size_t *threads,
                      tn_error *err)
{
    *threads = 0;
    if (lt_dlinit() != 0) /* counts its calls; never undone, like the libraries it opens */
        return tn_fail(err, TN_E_INTERNAL, path, "libltdl does not start: %s", lt_dlerror());
    hoststate *before = hoststate_save();
    if (!before)
        return tn_fail(err, TN_E_MEMORY, path, "out of memory");
    size_t tasks = tasks_count();
    stage_begin(staged);
    lt_dlhandle handle = open_resident(path);
    stage_end();
    hoststate_restore(before, changed, changed_size);
    *threads = tasks_left(tasks);
    if (handle)
        return TN_OK;
    const char *why = lt_dlerror();
    return tn_fail(err, TN_E_KERNEL, path, "opened in its trial, but not here: %s", why ? why : "no reason given");
}
