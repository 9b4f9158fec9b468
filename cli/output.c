/* What sub-commands print: tables, JSON, notes. Results go to stdout, notes to stderr. */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- stdout --------------------------------------------------------------------------------- */

static tn_status write_failed(tn_error *err)
{
    /* The reader has what it wanted ("| head"): nobody is left to tell. The status is the one that a shell shows for
     * the same end by SIGPIPE. */
    if (errno == EPIPE)
        _exit(128 + 13);
    return tn_fail(err, TN_E_INTERNAL, "standard output", "cannot write: %s; free space or write elsewhere",
                   strerror(errno));
}

tn_status write_text(const char *text, size_t length, tn_error *err)
{
    return length == 0 || fwrite(text, 1, length, stdout) == length ? TN_OK : write_failed(err);
}

tn_status write_flush(tn_error *err)
{
    return fflush(stdout) == 0 && !ferror(stdout) ? TN_OK : write_failed(err);
}

/* ---- for terminals -------------------------------------------------------------------------- */

/* The bytes of the UTF-8 character at the beginning of text, or 0. */
static size_t character_length(const unsigned char *text, size_t length)
{
    size_t n = text[0] < 0x80   ? 1
               : text[0] < 0xC2 ? 0
               : text[0] < 0xE0 ? 2
               : text[0] < 0xF0 ? 3
               : text[0] < 0xF5 ? 4
                                : 0;
    if (n > length)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((text[i] & 0xC0) != 0x80)
            return 0;
    return n;
}

/* The number of the character of n bytes. */
static unsigned code_of(const unsigned char *c, size_t n)
{
    unsigned code = n == 1 ? c[0] : c[0] & (0xFFu >> (n + 1));
    for (size_t i = 1; i < n; i++)
        code = code << 6 | (c[i] & 0x3Fu);
    return code;
}

/* What moves a terminal's cursor or makes a line read in another order than it has: controls of ASCII; the second set,
 * in which some terminals see escape sequences, too; ends of lines and paragraphs; and what changes the direction of
 * writing. */
static bool moves(unsigned code)
{
    return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x61C || code == 0x200E || code == 0x200F ||
           (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

/* CLEAN_JSON: escapes are those of JSON, in whose text such characters stand in strings alone. */
typedef enum cleaning { CLEAN_LINE, CLEAN_LINES, CLEAN_JSON } cleaning;

/* A character of n bytes, or a byte that is none (0). */
static bool put_escape(FILE *to, const unsigned char *at, size_t n, cleaning how)
{
    if (how == CLEAN_JSON)
        return fprintf(to, "\\u%04x", n > 0 ? code_of(at, n) : 0xFFFD) > 0;
    for (size_t k = 0; k < (n ? n : 1); k++)
        if (fprintf(to, "\\x%02x", at[k]) < 0)
            return false;
    return true;
}

static bool put_clean(FILE *to, const char *text, size_t length, cleaning how)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t plain = 0; /* where what is not written yet begins                                       */
    for (size_t i = 0, n; i < length; i += n ? n : 1) {
        n = character_length(at + i, length - i);
        bool layout = how != CLEAN_LINE && (at[i] == '\n' || at[i] == '\t');
        if (n > 0 && (layout || !moves(code_of(at + i, n))))
            continue;
        if (fwrite(at + plain, 1, i - plain, to) != i - plain || !put_escape(to, at + i, n, how))
            return false;
        plain = i + (n ? n : 1);
    }
    return fwrite(at + plain, 1, length - plain, to) == length - plain;
}

tn_status write_clean(const char *text, size_t length, tn_error *err)
{
    return put_clean(stdout, text, length, CLEAN_LINES) ? TN_OK : write_failed(err);
}

tn_status write_shown(const char *text, size_t length, tn_error *err)
{
    return isatty(STDOUT_FILENO) ? write_clean(text, length, err) : write_text(text, length, err);
}

void print_clean(FILE *to, const char *text, bool one_line)
{
    put_clean(to, text, strlen(text), one_line ? CLEAN_LINE : CLEAN_LINES);
}

/* ---- tables --------------------------------------------------------------------------------- */

void table_start(table *t, size_t columns, unsigned right)
{
    *t = (table){.columns = columns, .right = right};
}

void table_cell(table *t, const char *format, ...)
{
    if (t->count == t->capacity) {
        size_t capacity = t->capacity ? t->capacity * 2 : 64;
        char **cells = realloc(t->cells, capacity * sizeof *cells);
        if (!cells) {
            t->failed = true;
            return;
        }
        t->cells = cells;
        t->capacity = capacity;
    }
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&t->cells[t->count], format, arguments) < 0)
        t->failed = true;
    else
        t->count++;
    va_end(arguments);
}

/* Columns on a terminal: bytes less those that continue a UTF-8 character. */
static int cell_width(const char *cell)
{
    int width = 0;
    for (; *cell; cell++)
        width += ((unsigned char)*cell & 0xC0) != 0x80;
    return width;
}

static void print_row(const table *t, char *const *cells, const int *width)
{
    for (size_t c = 0; c < t->columns; c++) {
        int pad = width[c] - cell_width(cells[c]);
        bool right = t->right >> c & 1, last = c + 1 == t->columns;
        printf("%*s%s%*s%s", right ? pad : 0, "", cells[c], right || last ? 0 : pad, "", last ? "\n" : "  ");
    }
}

void table_free(table *t)
{
    for (size_t i = 0; i < t->count; i++)
        free(t->cells[i]);
    free(t->cells);
    *t = (table){0};
}

tn_status table_print(table *t, tn_error *err)
{
    int width[16] = {0};
    size_t rows = t->count / t->columns;
    for (size_t i = 0; i < rows * t->columns; i++)
        if (cell_width(t->cells[i]) > width[i % t->columns])
            width[i % t->columns] = cell_width(t->cells[i]);
    for (size_t r = 0; r < rows; r++)
        print_row(t, t->cells + r * t->columns, width);
    bool failed = t->failed;
    table_free(t);
    return failed ? tn_fail(err, TN_E_MEMORY, NULL, "out of memory; close other programs") : TN_OK;
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static bool json_failed;
static json_malloc_t json_allocate;

static void *json_watched(size_t size)
{
    void *memory = json_allocate(size);
    json_failed = json_failed || !memory;
    return memory;
}

void json_watch(void)
{
    json_free_t release;
    json_get_alloc_funcs(&json_allocate, &release);
    json_set_alloc_funcs(json_watched, release);
}

bool json_lost(void)
{
    return json_failed;
}

json_t *json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *json_ids(const int64_t *ids, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < count; i++)
        if (json_array_append_new(list, json_integer(ids[i]))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

tn_status json_print(json_t *root, bool one_line, tn_error *err)
{
    if (!root && !json_failed)
        return tn_fail(err, TN_E_INPUT, "JSON",
                       "a name or a text is not UTF-8, which JSON cannot hold; rename the file, "
                       "or leave --json out");
    char *text = root && !json_failed
                     ? json_dumps(root, JSON_ENCODE_ANY | JSON_REAL_PRECISION(10) | (one_line ? 0 : JSON_INDENT(2)))
                     : NULL;
    json_decref(root);
    if (!text || json_failed) {
        free(text);
        return tn_fail(err, TN_E_MEMORY, NULL, "out of memory; close other programs");
    }
    bool written = put_clean(stdout, text, strlen(text), CLEAN_JSON) && fputc('\n', stdout) != EOF;
    free(text);
    return written ? TN_OK : write_failed(err);
}

/* ---- small things --------------------------------------------------------------------------- */

const char *bytes_text(double bytes, char buffer[32])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    for (; bytes >= 1024 && unit < 4; unit++)
        bytes /= 1024;
    snprintf(buffer, 32, unit && bytes < 100 ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
    return buffer;
}

const char *seconds_text(double seconds, char buffer[32])
{
    snprintf(buffer, 32, seconds < 0.1 ? "%.2f ms" : "%.2f s", seconds < 0.1 ? seconds * 1e3 : seconds);
    return buffer;
}

double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

bool ranks_silent;

void note(const options *o, const char *format, ...)
{
    /* A warning is about what comes out: --quiet leaves those. */
    if (ranks_silent)
        return;
    if (option_given(o, OPT_QUIET) && strncmp(format, WARNING, strlen(WARNING)) != 0)
        return;
    char *line = NULL;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&line, format, arguments);
    va_end(arguments);
    /* Names of files and folders may hold anything; a note is one line that moves no cursor. */
    if (length >= 0) {
        print_clean(stderr, line, true);
        free(line);
    }
    fputc('\n', stderr);
}

void note_unfiltered(const options *o)
{
    const char *why = tn_trial_unfiltered();
    if (why)
        note(o, UNFILTERED, why);
}
