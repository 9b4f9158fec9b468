/* Keys: read from a file, compared in constant time, and never written anywhere. */
#include "keys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static tn_status add(key_list *list, const char *key, tn_error *err)
{
    char **more = realloc(list->keys, (list->count + 1) * sizeof *more);
    if (more)
        list->keys = more;
    char *copy = more ? strdup(key) : NULL;
    if (!copy)
        return tn_fail(err, TN_E_MEMORY, "keys", "out of memory");
    list->keys[list->count++] = copy;
    return TN_OK;
}

static tn_status read_lines(key_list *list, const char *path, FILE *file, tn_error *err)
{
    char line[4096];
    tn_status status = TN_OK;
    setvbuf(file, NULL, _IONBF, 0); /* no copy of them stays behind                                       */
    while (status == TN_OK && fgets(line, sizeof line, file)) {
        char *begin = line + strspn(line, " \t"), *end = begin + strcspn(begin, "\r\n");
        if (!*end && !feof(file)) { /* in pieces each would be a key                                          */
            status =
                tn_fail(err, TN_E_INPUT, path, "holds a line of more than %zu characters, or a NUL", sizeof line - 2);
            break;
        }
        while (end > begin && (end[-1] == ' ' || end[-1] == '\t'))
            end--;
        *end = '\0';
        if (*begin && *begin != '#')
            status = add(list, begin, err);
    }
    if (status == TN_OK && ferror(file))
        status = tn_fail(err, TN_E_INPUT, path, "the file of keys cannot be read: %s", strerror(errno));
    explicit_bzero(line, sizeof line);
    return status;
}

tn_status keys_read(key_list *list, const char *path, tn_error *err)
{
    struct stat st;
    *list = (key_list){.asked = path != NULL};
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!path)
        return TN_OK;
    if (!file || fstat(fileno(file), &st) != 0) {
        tn_status status = tn_fail(err, TN_E_INPUT, path, "the file of keys cannot be read: %s", strerror(errno));
        if (file)
            fclose(file);
        return status;
    }
    tn_status status = TN_OK;
    if (S_ISREG(st.st_mode) && st.st_mode & 077)
        status = tn_fail(err, TN_E_INPUT, path, "others can read these keys (mode %03o); chmod 600 it",
                         (unsigned)(st.st_mode & 0777));
    if (status == TN_OK)
        status = read_lines(list, path, file, err);
    fclose(file);
    if (status == TN_OK && list->count == 0)
        status = tn_fail(err, TN_E_INPUT, path, "holds no key; write one a line");
    return status;
}

void keys_close(key_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        explicit_bzero(list->keys[i], strlen(list->keys[i]));
        free(list->keys[i]);
    }
    free(list->keys);
    *list = (key_list){0};
}

/* As many steps as the given one is long, whatever the key. */
static bool equal(const char *key, const char *given)
{
    size_t length = strlen(key), n = strlen(given);
    volatile unsigned char different = length != n;
    for (size_t i = 0; i < n; i++)
        different |= (unsigned char)(given[i] ^ key[length > 0 ? i % length : 0]);
    return different == 0;
}

static bool is_one(const key_list *list, const char *given)
{
    bool found = false;
    for (size_t i = 0; given && *given && i < list->count; i++)
        found |= equal(list->keys[i], given);
    return found;
}

/* Clients that have a key of another kind to send it always may have ours besides. */
bool keys_match(const key_list *list, const char *authorization, const char *plain)
{
    static const char scheme[] = "Bearer ";
    bool bearer = authorization && strncasecmp(authorization, scheme, sizeof scheme - 1) == 0;
    const char *given = bearer ? authorization + sizeof scheme - 1 : NULL;
    bool first = is_one(list, given ? given + strspn(given, " ") : NULL), second = is_one(list, plain);
    return !list->asked || first || second;
}
