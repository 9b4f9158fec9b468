/* Writing a checkpoint's folder with other weights: what stands beside them is copied. */
#include "checkpoint/folder_copy.h"

#include "base/file.h"
#include "base/json_infinity.h"
#include "base/json_memory.h"
#include "base/output.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_LIMIT = 256 << 20 };

/* folder/name; NULL after the error. Owned. */
static char *path_of(const folder_copy *c, const char *folder, const char *name)
{
    char *path = file_join(folder, name);
    if (!path)
        tn_fail(c->err, TN_E_MEMORY, folder, "out of memory");
    return path;
}

/* Of the last call to the system, on a file. */
static tn_status fail_system(const folder_copy *c, const char *path, const char *what)
{
    return tn_fail(c->err, errno == ENOMEM ? TN_E_MEMORY : TN_E_INPUT, path, "%s: %s", what, strerror(errno));
}

static tn_status write_text(const folder_copy *c, const char *name, const char *data, size_t size)
{
    char *path = path_of(c, c->path, name);
    output out = {.fd = -1};
    tn_status status = path ? output_open(&out, path, c->err) : TN_E_MEMORY;
    if (status == TN_OK)
        status = output_write(&out, data, size, c->err);
    if (status == TN_OK)
        status = output_commit(&out, c->err);
    output_close(&out);
    free(path);
    return status;
}

tn_status folder_copy_config(folder_copy *c, void (*change)(void *ctx, json_t *root), void *ctx)
{
    json_error_t at;
    char *path = file_join(c->from, "config.json");
    size_t size = 0;
    char *given = NULL;
    if (path && file_read(path, FILE_LIMIT, &given, &size, c->err) == TN_OK)
        json_infinity_spell(given, size);
    json_memory_watch();
    json_t *root = given ? json_loadb(given, size, 0, &at) : NULL;
    free(given);
    change(ctx, root);
    char *text = json_dumps(root, JSON_INDENT(2));
    tn_status status = TN_OK;
    if (!path || !text || json_memory_failed())
        status = tn_fail(c->err, TN_E_MEMORY, c->from, "out of memory for config.json");
    else
        status = write_text(c, "config.json", text, strlen(text));
    json_decref(root);
    free(text);
    free(path);
    return status;
}

/* Tokenizers, templates and their like; no weights, and not what tells where these are. */
static bool is_copied(const struct dirent *entry)
{
    static const char *const ends[] = {".json", ".jinja", ".model", ".txt", ".gz"};
    const char *name = entry->d_name;
    bool copied = false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        copied = copied || (strlen(name) > strlen(ends[i]) && !strcmp(name + strlen(name) - strlen(ends[i]), ends[i]));
    return copied && strcmp(name, "config.json") != 0 && !strstr(name, ".index.json");
}

static tn_status copy_file(const folder_copy *c, const char *name)
{
    char *path = path_of(c, c->from, name), *data = NULL;
    size_t size = 0;
    struct stat st;
    tn_status status = path ? TN_OK : TN_E_MEMORY;
    if (path && stat(path, &st) == 0 && S_ISREG(st.st_mode))
        status = file_read(path, FILE_LIMIT, &data, &size, c->err);
    if (data && status == TN_OK)
        status = write_text(c, name, data, size);
    free(data);
    free(path);
    return status;
}

tn_status folder_copy_files(folder_copy *c)
{
    DIR *from = opendir(c->from);
    tn_status status = from ? TN_OK : fail_system(c, c->from, "cannot be read");
    for (struct dirent *entry; from && status == TN_OK && (entry = readdir(from));)
        if (is_copied(entry))
            status = copy_file(c, entry->d_name);
    if (from)
        closedir(from);
    return status;
}

tn_status folder_copy_weights(folder_copy *c, const tn_named_tensor *tensors, size_t count,
                              int (*progress)(void *ctx, int64_t done, int64_t total), void *ctx)
{
    return folder_copy_tensors(c, "model.safetensors", tensors, count, progress, ctx);
}

tn_status folder_copy_text(folder_copy *c, const char *name, const char *text, size_t size)
{
    return write_text(c, name, text, size);
}

tn_status folder_copy_tensors(folder_copy *c, const char *name, const tn_named_tensor *tensors, size_t count,
                              int (*progress)(void *ctx, int64_t done, int64_t total), void *ctx)
{
    char *path = path_of(c, c->path, name);
    tn_status status = path ? safetensors_write(path, tensors, count, progress, ctx, c->err) : TN_E_MEMORY;
    free(path);
    return status;
}

static void remove_folder(const char *path)
{
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char *file = file_join(path, entry->d_name);
        if (file)
            unlink(file);
        free(file);
    }
    if (folder)
        closedir(folder);
    rmdir(path);
}

tn_status folder_copy_check(const char *out, tn_error *err)
{
    struct stat st;
    return lstat(out, &st) != 0 ? TN_OK : tn_fail(err, TN_E_INPUT, out, "is there already; choose another name");
}

tn_status folder_copy_begin(folder_copy *c, const char *from, const char *out, tn_error *err)
{
    *c = (folder_copy){.from = from, .err = err};
    size_t length = strlen(out);
    while (length > 1 && out[length - 1] == '/')
        length--;
    if (text_cut(c->path, sizeof c->path, "%.*s.XXXXXX", (int)length, out) + 1 >= sizeof c->path)
        return tn_fail(err, TN_E_INPUT, out, "is too long a name; choose a shorter one");
    mode_t mask = umask(0);
    umask(mask);
    if (!mkdtemp(c->path) || chmod(c->path, 0777 & ~mask) != 0)
        return fail_system(c, out, "cannot be made");
    return TN_OK;
}

tn_status folder_copy_end(folder_copy *c, const char *out, tn_status status)
{
    if (status == TN_OK && rename(c->path, out) != 0)
        status = fail_system(c, out, "cannot be made");
    if (status != TN_OK)
        remove_folder(c->path);
    return status;
}
