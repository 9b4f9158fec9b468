/* Good model folders, broken on purpose. */
#include "broken.h"
#include "tempdir.h"

#include <check.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *broken_copy(const char *name)
{
    char *from = tempdir_path("tests/data/models", name), *folder = tempdir_new();
    tempdir_copy(from, folder);
    free(from);
    return folder;
}

/* Keys hold dots, so a slash separates the levels. */
static void edit(json_t *root, const char *path, const char *value)
{
    char *copy = strdup(path), *key = copy;
    json_t *object = root;
    for (char *slash; (slash = strchr(key, '/')); key = slash + 1) {
        *slash = '\0';
        object = json_object_get(object, key);
        ck_assert_msg(json_is_object(object), "%s: no object %s", path, key);
    }
    if (value)
        ck_assert_int_eq(json_object_set_new(object, key, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
    else
        ck_assert_int_eq(json_object_del(object, key), 0);
    free(copy);
}

void broken_json(const char *folder, const char *file, const char *path, const char *value)
{
    char *name = tempdir_path(folder, file);
    json_t *root = json_load_file(name, 0, NULL);
    ck_assert_ptr_nonnull(root);
    edit(root, path, value);
    ck_assert_int_eq(json_dump_file(root, name, 0), 0);
    json_decref(root);
    free(name);
}

static void write_with_header(const char *path, const char *header, const void *data, size_t size)
{
    size_t length = strlen(header);
    char *all = malloc(8 + length + size + 1);
    ck_assert_ptr_nonnull(all);
    for (int i = 0; i < 8; i++)
        all[i] = (char)(length >> (8 * i));
    memcpy(all + 8, header, length);
    if (data)
        memcpy(all + 8 + length, data, size);
    else
        memset(all + 8 + length, 0, size);
    tempdir_write(path, all, 8 + length + size);
    free(all);
}

void broken_header(const char *folder, const char *file, const char *path, const char *value)
{
    char *name = tempdir_path(folder, file);
    size_t size, length = 0;
    unsigned char *data = tempdir_read(name, &size);
    for (int i = 7; i >= 0; i--)
        length = length << 8 | data[i];
    ck_assert_uint_le(length + 8, size);
    json_t *root = json_loadb((char *)data + 8, length, 0, NULL);
    ck_assert_ptr_nonnull(root);
    edit(root, path, value);
    char *text = json_dumps(root, JSON_COMPACT);
    write_with_header(name, text, data + 8 + length, size - 8 - length);
    free(text);
    json_decref(root);
    free(data);
    free(name);
}

void broken_remove_tensor(const char *folder, const char *file, const char *name)
{
    char *path = tempdir_path(folder, file);
    tn_error err = TN_ERROR_INIT;
    tn_safetensors *st = tn_safetensors_open(path, &err);
    ck_assert_msg(st != NULL, "%s", err.message);
    size_t count = tn_safetensors_count(st), kept = 0;
    tn_named_tensor *tensors = calloc(count + 1, sizeof *tensors);
    for (size_t i = 0; i < count; i++) {
        tensors[kept].name = tn_safetensors_name(st, i);
        tn_safetensors_get(st, tensors[kept].name, &tensors[kept].tensor);
        kept += strcmp(tensors[kept].name, name) != 0;
    }
    ck_assert_uint_eq(kept + 1, count);
    ck_assert_msg(tn_safetensors_write(path, tensors, kept, &err) == TN_OK, "%s", err.message);
    tn_safetensors_close(st);
    free(tensors);
    free(path);
}

void broken_truncate(const char *folder, const char *file, size_t size)
{
    char *path = tempdir_path(folder, file);
    ck_assert_int_eq(truncate(path, (off_t)size), 0);
    free(path);
}

void broken_raw(const char *path, const char *header, size_t size)
{
    write_with_header(path, header, NULL, size);
}

void broken_expect(const tn_error *err, tn_status code, ...)
{
    ck_assert_msg(err->code == code, "code %d, expected %d: %s: %s", err->code, code, err->where, err->message);
    ck_assert_msg(err->message[0] && !strchr(err->message, '\n'), "not one line: '%s'", err->message);
    va_list words;
    va_start(words, code);
    for (const char *word; (word = va_arg(words, const char *));)
        ck_assert_msg(strstr(err->where, word) || strstr(err->message, word), "'%s' is not in '%s: %s'", word,
                      err->where, err->message);
    va_end(words);
}
