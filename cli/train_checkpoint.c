/* What a training keeps: DIR/checkpoint-STEP, from which it goes on, and in the end DIR itself. A folder is written as
 * NAME.part, reaches the disk and is renamed; and it is renamed so before it is removed. So whatever ends the process,
 * every folder called checkpoint-STEP is whole. */
#include "train.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEPT = 2, NAMES = 4096 };

#define PREFIX "checkpoint-"
#define STATE "state.safetensors"
#define TRAINING "training.json"

typedef char file_path[NAMES];

static tn_status fail_system(const char *path, const char *what, tn_error *err)
{
    return tn_fail(err, errno == ENOMEM ? TN_E_MEMORY : TN_E_INPUT, path, "%s: %s", what, strerror(errno));
}

/* folder/name, and more of it. */
static tn_status join(file_path to, const char *folder, const char *name, const char *more, tn_error *err)
{
    return snprintf(to, NAMES, "%s/%s%s", folder, name, more) < NAMES
               ? TN_OK
               : tn_fail(err, TN_E_INPUT, folder, "is too long a name; choose a shorter one");
}

static tn_status step_path(file_path to, const train_settings *s, int64_t step, const char *more, tn_error *err)
{
    char name[64];
    snprintf(name, sizeof name, PREFIX "%lld", (long long)step);
    return join(to, s->out, name, more, err);
}

static void sync_folder(const char *path)
{
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        fsync(folder);
        close(folder);
    }
}

/* A folder and the files in it. */
static void remove_folder(const char *path)
{
    file_path file;
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        if (join(file, path, entry->d_name, "", NULL) == TN_OK)
            unlink(file);
    if (folder)
        closedir(folder);
    rmdir(path);
}

/* ---- which there are ------------------------------------------------------------------------------ */

/* The steps of a folder's name; 0: it is no checkpoint's. */
static int64_t step_of(const char *name)
{
    char *end = NULL;
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 || name[strlen(PREFIX)] < '1' || name[strlen(PREFIX)] > '9')
        return 0;
    errno = 0;
    long long step = strtoll(name + strlen(PREFIX), &end, 10);
    return *end || errno ? 0 : step;
}

tn_status train_checkpoint_find(const char *out, int64_t *step, tn_error *err)
{
    DIR *folder = opendir(out);
    *step = 0;
    if (!folder)
        return errno == ENOENT ? TN_OK : fail_system(out, "cannot be read", err);
    for (struct dirent *entry; (entry = readdir(folder));) {
        int64_t own = step_of(entry->d_name);
        *step = own > *step ? own : *step;
    }
    closedir(folder);
    return TN_OK;
}

void train_checkpoint_clean(const char *out)
{
    file_path path;
    DIR *folder = opendir(out);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        /* "checkpoint-12.part", "result.part", and what lies beside these while they are written */
        const char *part = strstr(entry->d_name, ".part");
        if (part && (part[5] == '\0' || part[5] == '.') && join(path, out, entry->d_name, "", NULL) == TN_OK)
            remove_folder(path);
    }
    if (folder)
        closedir(folder);
}

/* The newest ones stay. */
static void prune(const train_settings *s)
{
    file_path path, part;
    int64_t newest[KEPT] = {0};
    DIR *folder = opendir(s->out);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        int64_t own = step_of(entry->d_name);
        for (int i = 0; i < KEPT; i++)
            if (own > newest[i]) {
                int64_t before = newest[i];
                newest[i] = own;
                own = before;
            }
        /* own is the least now, of those that are known: 0, or one too many */
        if (own > 0 && step_path(path, s, own, "", NULL) == TN_OK && step_path(part, s, own, ".part", NULL) == TN_OK &&
            rename(path, part) == 0)
            remove_folder(part);
    }
    if (folder)
        closedir(folder);
}

/* ---- of what it is -------------------------------------------------------------------------------- */

static json_t *read_training(const train_settings *s, int64_t step, tn_error *err)
{
    file_path path;
    json_error_t at;
    if (step_path(path, s, step, "/" TRAINING, err) != TN_OK)
        return NULL;
    json_t *root = json_load_file(path, 0, &at);
    if (!root && json_lost())
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
    else if (!root)
        tn_fail(err, TN_E_INPUT, path, "cannot be read: %s; remove the folder to go on from the one before", at.text);
    return root;
}

static tn_status compare(const char *out, const char *what, const char *then, const char *now, tn_error *err)
{
    if (strcmp(then ? then : "", now) == 0)
        return TN_OK;
    return tn_fail(err, TN_E_USAGE, out, "was begun with another %s; give the same, or begin anew with another --out",
                   what);
}

tn_status train_checkpoint_compare(const train_settings *s, const train_identity *id, int64_t step, tn_error *err)
{
    json_t *root = read_training(s, step, err), *now;
    const char *name;
    if (!root)
        return err->code;
    tn_status status = compare(s->out, "MODEL", json_string_value(json_object_get(root, "model")), id->model, err);
    if (status == TN_OK)
        status = compare(s->out, "--adapter", json_string_value(json_object_get(root, "adapter")), id->adapter, err);
    json_object_foreach (s->record, name, now) {
        const char *then = json_string_value(json_object_get(json_object_get(root, "options"), name));
        if (status == TN_OK && strcmp(then ? then : "", json_string_value(now)) != 0)
            status = tn_fail(err, TN_E_USAGE, s->out,
                             "was begun with --%s %s, and this is %s; give the same, or begin anew with another --out",
                             name, then ? then : "(none)", json_string_value(now));
    }
    if (status == TN_OK)
        status = compare(s->out, "DATA", json_string_value(json_object_get(root, "data")), id->data, err);
    json_decref(root);
    return status;
}

tn_status train_checkpoint_load(tn_trainer *trainer, const train_settings *s, int64_t step, tn_error *err)
{
    file_path path;
    tn_status status = step_path(path, s, step, "/" STATE, err);
    return status == TN_OK ? tn_trainer_load_state(trainer, path, err) : status;
}

/* ---- writing -------------------------------------------------------------------------------------- */

static tn_status save_result(const tn_trainer *trainer, const train_settings *s, const char *folder, tn_error *err)
{
    return s->full ? tn_trainer_save(trainer, folder, err) : tn_trainer_save_adapter(trainer, folder, err);
}

static tn_status write_training(const train_settings *s, const train_identity *id, const char *path, int64_t step,
                                int64_t steps, double epoch, tn_error *err)
{
    json_t *root = json_pack("{s:s, s:I, s:I, s:f, s:s, s:s, s:s, s:O}", "tenon", tn_version(), "step",
                             (json_int_t)step, "total_steps", (json_int_t)steps, "epoch", epoch, "model", id->model,
                             "adapter", id->adapter, "data", id->data, "options", s->record);
    char *text = root && !json_lost() ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (!text)
        return tn_fail(err, TN_E_MEMORY, path, "out of memory");
    FILE *file = fopen(path, "wxe");
    bool written = file && fprintf(file, "%s\n", text) > 0 && fflush(file) == 0 && fsync(fileno(file)) == 0;
    int why = errno;
    free(text);
    if (file)
        written = fclose(file) == 0 && written;
    errno = why;
    return written ? TN_OK : fail_system(path, "cannot be written", err);
}

tn_status train_checkpoint_write(const tn_trainer *trainer, const train_settings *s, const train_identity *id,
                                 int64_t step, int64_t steps, double epoch, tn_error *err)
{
    file_path path, part, file;
    tn_status status = step_path(path, s, step, "", err);
    if (status == TN_OK)
        status = step_path(part, s, step, ".part", err);
    if (status == TN_OK)
        status = save_result(trainer, s, part, err);
    if (status == TN_OK && (status = join(file, part, STATE, "", err)) == TN_OK)
        status = tn_trainer_save_state(trainer, file, err);
    if (s->rank > 0)
        return status;
    if (status == TN_OK && (status = join(file, part, TRAINING, "", err)) == TN_OK)
        status = write_training(s, id, file, step, steps, epoch, err);
    sync_folder(part);
    if (status == TN_OK && rename(part, path) != 0)
        status = fail_system(path, "cannot be made", err);
    if (status != TN_OK) {
        remove_folder(part);
        return status;
    }
    sync_folder(s->out);
    prune(s);
    return TN_OK;
}

/* ---- the result ----------------------------------------------------------------------------------- */

/* Without its config.json a folder is no model, so that comes last. */
static bool comes_last(const char *name)
{
    return strcmp(name, "config.json") == 0 || strcmp(name, "adapter_config.json") == 0;
}

static tn_status move_files(const char *from, const char *to, bool last, tn_error *err)
{
    file_path file, target;
    tn_status status = TN_OK;
    DIR *folder = opendir(from);
    if (!folder)
        return fail_system(from, "cannot be read", err);
    for (struct dirent *entry; status == TN_OK && (entry = readdir(folder));) {
        if (entry->d_name[0] == '.' || comes_last(entry->d_name) != last)
            continue;
        status = join(file, from, entry->d_name, "", err);
        if (status == TN_OK)
            status = join(target, to, entry->d_name, "", err);
        if (status == TN_OK && rename(file, target) != 0)
            status = fail_system(target, "cannot be made", err);
    }
    closedir(folder);
    return status;
}

tn_status train_checkpoint_finish(const tn_trainer *trainer, const train_settings *s, tn_error *err)
{
    file_path part;
    tn_status status = join(part, s->out, "result", ".part", err);
    if (status == TN_OK)
        status = save_result(trainer, s, part, err);
    if (s->rank > 0)
        return status;
    if (status == TN_OK)
        status = move_files(part, s->out, false, err);
    if (status == TN_OK)
        status = move_files(part, s->out, true, err);
    remove_folder(part);
    sync_folder(s->out);
    return status;
}
