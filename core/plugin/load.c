/* How a plugin is loaded, on one page. Each of the nine steps can end it, with the reason in candidate.why. None of its
 * code runs before the sixth, which is in a child process, and none of it here before the seventh. */
#include "plugin/load.h"

#include "base/notices.h"
#include "plugin/loader.h"
#include "plugin/plugins.h"
#include "plugin/stage.h"

#include <stdio.h>
#include <stdlib.h>

/* Part of the program, or opened by it already: nothing is left to show in a trial. NULL: it is not. */
static const tn_plugin *find_foreign(const candidate *c)
{
    return stage_foreign_in((uint64_t)c->st.st_dev, (uint64_t)c->st.st_ino);
}

/* Is the same content loaded, under this or another name? */
static bool is_known(const candidate *c)
{
    return plugins_is_loaded(NULL, (uint64_t)c->st.st_dev, (uint64_t)c->st.st_ino, c->sha256);
}

static tn_status examine(candidate *c, const tn_config *config, char **content, tn_error *err)
{
    /* 1. Who may write it, and what its bytes are. */
    tn_status status = candidate_read(c, content, err);
    size_t size = (size_t)c->st.st_size;
    /* 2. Is it the one that is pinned? */
    if (status == TN_OK)
        status = candidate_check_pin(c, config, err);
    /* 3. Is it here already? */
    if (status == TN_OK)
        c->known = is_known(c);
    if (status != TN_OK || c->known)
        return status;
    /* 4. Its note: is it a plugin, for this machine and this interface? Then, is it one that a lock knows? */
    status = elfnote_read(*content, size, c->file, &c->note, err);
    if (status == TN_OK)
        status = candidate_check_lock(c, config, err);
    if (status != TN_OK || find_foreign(c))
        return status;
    /* 5. The libraries that it needs. */
    status = needs_read(*content, size, c->path, c->named, &c->need, err);
    if (status == TN_OK)
        status = candidate_check_library_pins(c, &c->need.found, config, err);
    if (status == TN_OK)
        status = candidate_check_library_lock(c, &c->need.found, config, err);
    /* 6. A trial in a child, which shows what else it loads. */
    if (status == TN_OK)
        status = candidate_try(c, err);
    if (status == TN_OK)
        status = candidate_check_library_pins(c, &c->verdict.objects, config, err);
    if (status == TN_OK)
        status = candidate_check_library_lock(c, &c->verdict.objects, config, err);
    return status;
}

void load_examine(candidate *c, const tn_config *config)
{
    char *content = NULL;
    tn_status status = examine(c, config, &content, &c->why);
    free(content);
    if (status == TN_OK)
        c->state = TN_PLUGIN_LOADED;
    else if (status == TN_DECLINED)
        c->state = TN_PLUGIN_SKIPPED;
    else if (c->state == TN_PLUGIN_LOADED)
        c->state = TN_PLUGIN_REFUSED;
}

/* What its constructor did to the process that was put right, or stays. */
static void note_conduct(candidate *c, const char *changed, size_t threads)
{
    if (changed[0])
        snprintf(c->warning, sizeof c->warning, "its constructor changed: %s; put back", changed);
    else if (threads > 0)
        snprintf(c->warning, sizeof c->warning, "its constructor leaves %zu thread%s behind", threads,
                 threads == 1 ? "" : "s");
    if (threads > 0)
        notices_add("%s left a thread behind in its constructor; while it is in use the file is not to be written to",
                    c->shown);
}

static tn_status open_and_register(candidate *c, const tn_plugin *foreign, tn_error *err)
{
    stage staged;
    char changed[200];
    size_t threads;
    objects_loaded before;
    /* 7. Opening it here, if it is still what was tried: its constructor registers a descriptor. */
    if (candidate_check_unchanged(c, err) != TN_OK)
        return TN_E_KERNEL;
    objects_look(&before);
    tn_status status = loader_open(c->path, &staged, changed, sizeof changed, &threads, err);
    note_conduct(c, changed, threads);
    /* 8. Its pages, out of the hands of whoever can write the file. */
    if (status == TN_OK)
        status = candidate_take_pages(c, &before, threads, err);
    if (status != TN_OK)
        return status;
    /* 9. The descriptor, read and checked; then its kernels can be chosen. */
    if (staged.count == 0 && foreign)
        staged = (stage){.plugin = foreign, .count = 1};
    if (staged.count != 1)
        return tn_fail(err, TN_E_KERNEL, c->file, "it registered %zu times; once is needed", staged.count);
    descriptor *d = descriptor_read(staged.plugin, &c->note, c->file, err);
    if (!d)
        return TN_E_KERNEL;
    status = registry_add(d, c->shown, err);
    if (status != TN_OK)
        descriptor_free(d);
    return status;
}

void load_open(candidate *c)
{
    /* Another file of this scan may have had the same content. */
    if (c->state == TN_PLUGIN_LOADED && !c->known)
        c->known = is_known(c);
    if (c->state != TN_PLUGIN_LOADED || c->known)
        return;
    const tn_plugin *foreign = find_foreign(c);
    c->state = TN_PLUGIN_REFUSED;
    if (open_and_register(c, foreign, &c->why) != TN_OK)
        return;
    stage_foreign_take(foreign);
    c->state = TN_PLUGIN_LOADED;
}
