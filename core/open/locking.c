/* Locks: writing one, and comparing a model with one while it is opened. */
#include "open/locking.h"

#include "base/gguf.h"
#include "base/hub.h"
#include "base/place.h"
#include "base/structs.h"
#include "checkpoint/locked.h"
#include "plugin/lock_code.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- comparing ------------------------------------------------------------------------------------------------ */

tn_status locking_begin(tn_model *m, const tn_model_options *options, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    if (!options->lock)
        return TN_OK;
    if (!(m->lock = lockfile_read(options->lock, &why)))
        return tn_fail(err, why.code, why.where, "%s", why.message);
    m->loading = (locked_work){tn_parallel_for, options->progress, options->progress_ctx};
    return lock_code_check(m->lock, err);
}

tn_status locking_folder(const tn_model *m, bool beside, tn_error *err)
{
    return m->lock ? locked_check(m->folder, beside, m->lock, &m->loading, err) : TN_OK;
}

tn_status locking_weights(const tn_model *m, tn_error *err)
{
    return m->lock && !m->group ? locked_check_weights(m->weights, m->lock, &m->loading, err) : TN_OK;
}

tn_status locking_watch(const tn_model *m, tn_error *err)
{
    bool watched = !m->lock || !m->group || shards_watch(m->weights);
    return watched ? TN_OK : tn_fail(err, TN_E_MEMORY, m->folder, "out of memory");
}

tn_status locking_end(const tn_model *m, tn_error *err)
{
    return m->lock && m->group ? locked_check_weights(m->weights, m->lock, &m->loading, err) : TN_OK;
}

/* ---- writing -------------------------------------------------------------------------------------------------- */

static shards *open_gguf(const char *path, tn_error *err)
{
    gguf *file = gguf_open(path, err);
    return file ? shards_empty(path, file, err) : NULL;
}

static shards *open_folder(const char *folder, tn_error *err)
{
    tn_status status = place_check(folder, "config.json", err);
    if (status == TN_OK)
        status = place_check_weights(folder, err);
    return status == TN_OK ? shards_open(folder, err) : NULL;
}

/* set: its weights, which are open. */
static tn_status tell_files(const char *folder, bool beside, const shards *set, const locked_work *work, text *out,
                            tn_error *err)
{
    text_list names = {0};
    tn_status status = beside ? locked_names(folder, &names, err) : TN_OK;
    for (size_t i = 0; i < names.count && status == TN_OK; i++)
        status = locked_tell(folder, names.items[i], work, i == 0, out, err);
    if (status == TN_OK)
        status = locked_tell_weights(set, work, names.count == 0, out, err);
    text_list_clear(&names);
    return status;
}

static tn_status tell_all(const char *folder, const locked_work *work, text *out, tn_error *err)
{
    struct stat st;
    bool single = gguf_is_named(folder) && !(stat(folder, &st) == 0 && S_ISDIR(st.st_mode));
    shards *set = single ? open_gguf(folder, err) : open_folder(folder, err);
    if (!set)
        return err->code;
    text_add(out, "{\n  \"tenon_lock\": 1,\n");
    tn_status status = lock_code_tell(out, err);
    text_add(out, "  \"piece_bytes\": %lld,\n  \"files\": [", (long long)LOCKFILE_PIECE);
    if (status == TN_OK)
        status = tell_files(folder, !single, set, work, out, err);
    text_add(out, "\n  ]\n}\n");
    shards_close(set);
    return status == TN_OK && out->failed ? tn_fail(err, TN_E_MEMORY, folder, "out of memory") : status;
}

char *tn_lock_model(const char *folder, const tn_lock_options *options, tn_error *err)
{
    tn_lock_options own = {.size = sizeof own};
    tn_error why = TN_ERROR_INIT;
    text out = {0};
    tn_status status = folder ? TN_OK : structs_missing("folder", &why);
    if (status == TN_OK && options)
        status = structs_take(&own, sizeof own, options, "tn_lock_options", &why);
    char *found = status == TN_OK ? hub_find(folder, &why) : NULL;
    if (found) {
        const locked_work work = {tn_parallel_for, own.progress, own.progress_ctx};
        threads_set(own.threads);
        status = tell_all(found, &work, &out, &why);
        if (status != TN_OK)
            hub_explain(folder, found, &why);
    }
    free(found);
    if (why.code == TN_OK)
        return out.data;
    free(out.data);
    tn_fail(err, why.code, why.where, "%s", why.message);
    return NULL;
}
