/* chat_template.jinja, tokenizer_config.json and their kin; the metadata of a .gguf. */
#include "template/template_files.h"
#include "base/file.h"
#include "base/gguf.h"
#include "base/json_memory.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The largest tokenizer_config.json published has some ten MB. */
#define FILE_LIMIT ((size_t)64 << 20)

/* Reads a whole regular file into *data (owned: free). A file that is not there: TN_OK and NULL; a link to nothing is
 * an error. */
static tn_status read_file(const char *path, char **data, size_t *size, tn_error *err)
{
    struct stat st;
    *data = NULL;
    *size = 0;
    if (lstat(path, &st) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return TN_OK;
    return file_read(path, FILE_LIMIT, data, size, err);
}

/* An object from a file; NULL with TN_OK when the file is not there. */
static tn_status read_object(const char *folder, const char *name, json_t **object, tn_error *err)
{
    char path[PATH_MAX], *data;
    size_t size;
    json_error_t error;
    *object = NULL;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return tn_fail(err, TN_E_INPUT, folder, "the path is too long; use a shorter one");
    tn_status status = read_file(path, &data, &size, err);
    if (status != TN_OK || !data) {
        free(data);
        return status;
    }
    json_memory_watch();
    *object = json_loadb(data, size, JSON_ALLOW_NUL, &error);
    free(data);
    if (json_memory_failed()) {
        json_decref(*object);
        *object = NULL;
        return tn_fail(err, TN_E_MEMORY, path, "out of memory");
    }
    if (!*object)
        return tn_fail(err, TN_E_INPUT, path, "not valid JSON at line %d, column %d: %s; fetch it again", error.line,
                       error.column, error.text);
    if (json_is_object(*object))
        return TN_OK;
    json_decref(*object);
    *object = NULL;
    return tn_fail(err, TN_E_INPUT, path, "holds no JSON object; fetch it again");
}

static tn_status keep(char **source, size_t *size, const json_t *text, tn_error *err)
{
    *size = json_string_length(text);
    *source = malloc(*size + 1);
    if (!*source)
        return tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
    memcpy(*source, json_string_value(text), *size + 1);
    return TN_OK;
}

/* chat_template: a text, or a list of {"name": ..., "template": ...}. */
static tn_status take_template(template_files *files, const json_t *from, const char *name, tn_error *err)
{
    const json_t *found = json_object_get(from, "chat_template"), *item;
    tn_status status = TN_OK;
    size_t i;
    if (json_is_string(found))
        status = keep(&files->usual, &files->usual_size, found, err);
    json_array_foreach (found, i, item) {
        const char *called = json_string_value(json_object_get(item, "name"));
        const json_t *text = json_object_get(item, "template");
        if (status != TN_OK || !called || !json_is_string(text))
            continue;
        if (strcmp(called, "default") == 0 && !files->usual)
            status = keep(&files->usual, &files->usual_size, text, err);
        if (strcmp(called, "tool_use") == 0 && !files->tools)
            status = keep(&files->tools, &files->tools_size, text, err);
    }
    if (files->usual)
        snprintf(files->name, sizeof files->name, "%s", name);
    else if (found && status == TN_OK && !json_is_null(found))
        status = tn_fail(err, TN_E_INPUT, name, "has no chat_template called 'default'; add one");
    return status;
}

static bool ends_in_token(const char *name)
{
    size_t n = strlen(name);
    return n > 6 && strcmp(name + n - 6, "_token") == 0;
}

/* A token is a text or {"content": ...}. */
static tn_status take_token(template_files *files, const char *name, json_t *token, tn_error *err)
{
    if (json_is_object(token))
        token = json_object_get(token, "content");
    if (!json_is_string(token) || json_object_get(files->tokens, name))
        return TN_OK;
    return json_object_set(files->tokens, name, token) == 0 ? TN_OK : tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
}

static tn_status take_tokens(template_files *files, json_t *from, tn_error *err)
{
    tn_status status = TN_OK;
    const char *name;
    json_t *token;
    json_object_foreach (from, name, token)
        if (status == TN_OK && ends_in_token(name))
            status = take_token(files, name, token, err);
    return status;
}

/* Tokens that a model has beside the usual ones ("image_token") stand in an object of their own, too. */
static tn_status read_tokens(template_files *files, json_t *config, const char *folder, tn_error *err)
{
    json_t *map = NULL;
    files->tokens = json_object();
    if (!files->tokens)
        return tn_fail(err, TN_E_MEMORY, folder, "out of memory");
    tn_status status = take_tokens(files, config, err);
    if (status == TN_OK)
        status = take_tokens(files, json_object_get(config, "extra_special_tokens"), err);
    if (status == TN_OK)
        status = read_object(folder, "special_tokens_map.json", &map, err);
    if (status == TN_OK)
        status = take_tokens(files, map, err);
    json_decref(map);
    return status;
}

static tn_status read_source(template_files *files, const char *folder, const char *name, bool tools, tn_error *err)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return tn_fail(err, TN_E_INPUT, folder, "the path is too long; use a shorter one");
    if (!tools)
        snprintf(files->name, sizeof files->name, "%.60s", name);
    return tools ? read_file(path, &files->tools, &files->tools_size, err)
                 : read_file(path, &files->usual, &files->usual_size, err);
}

static tn_status read_templates(template_files *files, json_t *config, const char *folder, tn_error *err)
{
    json_t *other = NULL;
    tn_status status = read_source(files, folder, "chat_template.jinja", false, err);
    if (status == TN_OK && files->usual)
        return read_source(files, folder, "additional_chat_templates/tool_use.jinja", true, err);
    if (status == TN_OK)
        status = take_template(files, config, "tokenizer_config.json", err);
    if (status == TN_OK && !files->usual)
        status = read_object(folder, "chat_template.json", &other, err);
    if (status == TN_OK && other)
        status = take_template(files, other, "chat_template.json", err);
    json_decref(other);
    files->missing = status == TN_OK && !files->usual;
    if (files->missing)
        status = tn_fail(err, TN_E_INPUT, folder,
                         "has no chat template: there is no chat_template.jinja, and no chat_template in "
                         "tokenizer_config.json or chat_template.json; add one of them");
    return status;
}

/* ---- the metadata of a .gguf --------------------------------------------------------------------------- */

#define GGUF_TEMPLATE "tokenizer.chat_template"

/* The text of a key; one that is absent stays NULL. */
static tn_status keep_value(char **source, size_t *size, const gguf *file, const char *key, tn_error *err)
{
    const char *text = gguf_text(file, key);
    if (!text && gguf_kind_of(file, key) != GGUF_ABSENT)
        return tn_fail(err, TN_E_INPUT, key, "is no string in %s; correct the file", gguf_path(file, 0));
    *size = text ? strlen(text) : 0;
    *source = text ? strdup(text) : NULL;
    return text && !*source ? tn_fail(err, TN_E_MEMORY, key, "out of memory") : TN_OK;
}

/* What is no token is told by whoever reads those. */
static tn_status take_gguf_tokens(template_files *files, const gguf *file, tn_error *err)
{
    static const char *const names[][2] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
                                           {"eos_token", "tokenizer.ggml.eos_token_id"},
                                           {"unk_token", "tokenizer.ggml.unknown_token_id"},
                                           {"pad_token", "tokenizer.ggml.padding_token_id"}};
    files->tokens = json_object();
    for (size_t i = 0; files->tokens && i < sizeof names / sizeof *names; i++) {
        int64_t id = -1;
        size_t length = 0;
        const char *text =
            gguf_integer(file, names[i][1], &id) ? gguf_array_text(file, "tokenizer.ggml.tokens", id, &length) : NULL;
        if (text && json_object_set_new(files->tokens, names[i][0], json_stringn(text, length)) != 0)
            return tn_fail(err, TN_E_MEMORY, gguf_path(file, 0), "out of memory");
    }
    return files->tokens ? TN_OK : tn_fail(err, TN_E_MEMORY, gguf_path(file, 0), "out of memory");
}

static tn_status take_gguf(template_files *files, const gguf *file, tn_error *err)
{
    strcpy(files->name, GGUF_TEMPLATE);
    tn_status status = take_gguf_tokens(files, file, err);
    if (status == TN_OK)
        status = keep_value(&files->usual, &files->usual_size, file, GGUF_TEMPLATE, err);
    files->missing = status == TN_OK && !files->usual;
    if (files->missing)
        status = tn_fail(err, TN_E_INPUT, gguf_path(file, 0),
                         "has no chat template: key '" GGUF_TEMPLATE "' is missing; take a file that has it");
    if (status == TN_OK)
        status = keep_value(&files->tools, &files->tools_size, file, GGUF_TEMPLATE ".tool_use", err);
    return status;
}

static tn_status read_gguf(template_files *files, const char *path, tn_error *err)
{
    gguf *file = gguf_open(path, err);
    if (!file)
        return err->code;
    tn_status status = take_gguf(files, file, err);
    if (status == TN_OK)
        status = gguf_check(file, err);
    gguf_close(file);
    return status;
}

tn_status template_files_read(template_files *files, const char *path, tn_error *err)
{
    struct stat st;
    json_t *config = NULL;
    char folder[PATH_MAX];
    if (stat(path, &st) != 0)
        return tn_fail(err, TN_E_INPUT, path, "cannot be read: %s; give a folder or a template", strerror(errno));
    if (snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder)
        return tn_fail(err, TN_E_INPUT, path, "the path is too long; use a shorter one");
    if (!S_ISDIR(st.st_mode) && gguf_is_named(path))
        return read_gguf(files, path, err);
    bool is_folder = S_ISDIR(st.st_mode);
    char *slash = strrchr(folder, '/');
    const char *name = slash ? path + (slash - folder) + 1 : path;
    if (!is_folder && slash)
        slash[slash == folder] = '\0';
    else if (!is_folder)
        strcpy(folder, ".");
    tn_status status = read_object(folder, "tokenizer_config.json", &config, err);
    if (status == TN_OK)
        status = read_tokens(files, config, folder, err);
    if (status == TN_OK)
        status = is_folder ? read_templates(files, config, folder, err) : read_source(files, folder, name, false, err);
    json_decref(config);
    return status;
}

void template_files_free(template_files *files)
{
    free(files->usual);
    free(files->tools);
    json_decref(files->tokens);
}
