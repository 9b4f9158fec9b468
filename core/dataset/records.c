/* Cutting a file into records without understanding them: lines, or values of JSON by their brackets and strings. */
#include "dataset/records.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

tn_status records_fail(const char *path, int64_t line, tn_status code, const char *what, tn_error *err)
{
    char *where;
    size_t most = sizeof err->where - 1;
    if (asprintf(&where, line > 0 ? "%s:%lld" : "%s", path, (long long)line) < 0)
        return tn_fail(err, TN_E_MEMORY, path, "out of memory");
    size_t length = strlen(where), left_out = length > most ? length - most : 0;
    if (left_out > 0)
        memcpy(where + left_out, "...", 3);
    tn_status status = tn_fail(err, code, where + left_out, "%s", what);
    free(where);
    return status;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void skip_spaces(records *r)
{
    for (; r->at < r->size && is_space(r->data[r->at]); r->at++)
        r->line += r->data[r->at] == '\n';
}

/* The length of the value of JSON that begins at text, as its brackets and quotation marks have it; 0: it does not end.
 */
static size_t value_length(const char *text, size_t size)
{
    int64_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
            if (!in_string && depth == 0)
                return i + 1;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (--depth <= 0)
                return depth < 0 ? i : i + 1;
        } else if (depth == 0 && (is_space(c) || c == ',')) {
            return i;
        }
    }
    return in_string || depth > 0 ? 0 : size;
}

static bool ends_in(const char *path, const char *ending)
{
    size_t n = strlen(path), m = strlen(ending);
    return n >= m && strcasecmp(path + n - m, ending) == 0;
}

/* What stands in the file counts more than its name: lists are called .jsonl, and lines .json. */
static records_kind kind_of(const records *r)
{
    const char *begin = r->data + r->at;
    size_t left = r->size - r->at;
    if (left > 0 && *begin == '[')
        return RECORDS_LIST;
    const char *end = left > 0 ? memchr(begin, '\n', left) : NULL;
    size_t first = end ? (size_t)(end - begin) : left;
    return ends_in(r->path, ".json") && value_length(begin, first) == 0 ? RECORDS_VALUES : RECORDS_LINES;
}

tn_status records_open(records *r, const char *path, tn_error *err)
{
    static const char mark[] = "\xef\xbb\xbf"; /* some editors begin every file with it              */
    *r = (records){.path = path, .line = 1};
    bool text = ends_in(path, ".txt") || ends_in(path, ".md");
    if (!text && !ends_in(path, ".json") && !ends_in(path, ".jsonl"))
        return tn_fail(err, TN_E_INPUT, path, "is no data by its name, which must end in .json, .jsonl, .txt or .md");
    r->map = file_map(path, &r->size, err);
    if (!r->map)
        return err->code;
    r->data = mapped_data(r->map);
    if (r->size >= 3 && memcmp(r->data, mark, 3) == 0)
        r->at = 3;
    if (!text)
        skip_spaces(r);
    r->kind = text ? RECORDS_TEXT : kind_of(r);
    return TN_OK;
}

void records_close(records *r)
{
    if (r->map)
        mapped_close(r->map);
    r->map = NULL;
}

tn_status records_done(records *r, tn_error *err)
{
    mapped_forget(r->data + r->forgotten, r->at - r->forgotten);
    r->forgotten = r->at;
    return mapped_check(r->map, err);
}

/* Takes the next bytes as a record. */
static tn_status take(records *r, size_t length, record *next, bool *there)
{
    *next = (record){r->data + r->at, length, r->line, !r->begun, r->at + length == r->size};
    r->begun = true;
    *there = true;
    for (const char *at = next->text, *end = at + length; (at = memchr(at, '\n', (size_t)(end - at))); at++)
        r->line++;
    r->at += length;
    return TN_OK;
}

static tn_status next_line(records *r, record *next, bool *there)
{
    skip_spaces(r);
    if (r->at == r->size)
        return TN_OK;
    const char *end = memchr(r->data + r->at, '\n', r->size - r->at);
    return take(r, end ? (size_t)(end - (r->data + r->at)) : r->size - r->at, next, there);
}

static tn_status next_value(records *r, record *next, bool *there, tn_error *err)
{
    skip_spaces(r);
    if (r->at == r->size)
        return TN_OK;
    size_t length = value_length(r->data + r->at, r->size - r->at);
    if (length > 0)
        return take(r, length, next, there);
    return records_fail(r->path, r->line, TN_E_INPUT, "no record of JSON ends that begins here; correct the file", err);
}

/* Brackets and commas between the records. */
static tn_status next_of_list(records *r, record *next, bool *there, tn_error *err)
{
    bool first = !r->begun;
    r->at += first;
    r->begun = true;
    skip_spaces(r);
    char c = r->at < r->size ? r->data[r->at] : '\0';
    if (r->ended)
        return r->at == r->size ? TN_OK
                                : records_fail(r->path, r->line, TN_E_INPUT,
                                               "something follows the list that the file is; correct it", err);
    if (c == ']') {
        r->at++;
        r->ended = true;
        return next_of_list(r, next, there, err);
    }
    if (!first && c == ',') {
        r->at++;
        skip_spaces(r);
        c = r->at < r->size ? r->data[r->at] : '\0';
    } else if (!first) {
        return records_fail(r->path, r->line, TN_E_INPUT,
                            "the list that the file is has neither a comma nor its end here; correct it", err);
    }
    if (c == ',' || c == ']' || c == '}' || c == '\0')
        return records_fail(r->path, r->line, TN_E_INPUT, "the list that the file is lacks a record here; correct it",
                            err);
    return next_value(r, next, there, err);
}

/* Pieces end where a line does, if there is such a place, and never within a character. */
static tn_status next_piece(records *r, record *next, bool *there)
{
    size_t left = r->size - r->at, length = left;
    if (left == 0)
        return TN_OK;
    if (left > RECORDS_PIECE) {
        const char *begin = r->data + r->at, *end = memrchr(begin, '\n', RECORDS_PIECE);
        length = end ? (size_t)(end - begin) + 1 : RECORDS_PIECE;
        while (!end && length > 1 && ((unsigned char)begin[length] & 0xC0) == 0x80)
            length--;
    }
    return take(r, length, next, there);
}

tn_status records_next(records *r, record *next, bool *there, tn_error *err)
{
    *there = false;
    switch (r->kind) {
    case RECORDS_LINES:
        return next_line(r, next, there);
    case RECORDS_VALUES:
        return next_value(r, next, there, err);
    case RECORDS_LIST:
        return next_of_list(r, next, there, err);
    default:
        return next_piece(r, next, there);
    }
}
