/* What tenon bench --profile prints. */
#include "profile.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Columns of the terminal that stdout is; 0: it is none, and lines may be as long as they like. */
static size_t columns_of_stdout(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

/* "1.19 GB": three digits and a prefix of thousands. */
static const char *amount_text(double value, const char *unit, char buffer[32])
{
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P"};
    size_t p = 0;
    for (; value >= 999.5 && p < 5; p++)
        value /= 1000;
    int digits = value >= 99.95 || p == 0 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(buffer, 32, "%.*f %s%s", digits, value, prefixes[p], unit);
    return buffer;
}

static const char *time_text(double seconds, char buffer[32])
{
    static const char *const units[] = {"s", "ms", "us"};
    size_t u = 0;
    for (; seconds < 0.9995 && u < 2; u++)
        seconds *= 1000;
    snprintf(buffer, 32, "%.*f %s", seconds >= 99.95 ? 0 : seconds >= 9.995 ? 1 : 2, seconds, units[u]);
    return buffer;
}

/* ---- one row ----------------------------------------------------------------------------------- */

enum { TIME, PART, CALLS, BYTES, OPERATIONS, LIMIT, CELLS };
static const char *const headings[CELLS] = {"TIME", "PART", "CALLS", "BYTES", "FLOP", "OF LIMIT"};

typedef struct line {
    const char *op, *kernel; /* kernel "": there is none                                        */
    char module[96], cell[CELLS][32];
} line;

/* Where there is no limit (nothing was computed or moved) the last cells are empty. */
static line line_of(const profile_row *row, double all)
{
    line l = {.op = row->op, .kernel = row->kernel ? row->kernel : "eager"};
    snprintf(l.module, sizeof l.module, "%s", row->module);
    time_text(row->seconds, l.cell[TIME]);
    snprintf(l.cell[PART], sizeof l.cell[PART], "%.1f %%", all > 0 ? 100 * row->seconds / all : 0);
    snprintf(l.cell[CALLS], sizeof l.cell[CALLS], "%lld", (long long)row->calls);
    amount_text(row->bytes, "B", l.cell[BYTES]);
    amount_text(row->operations, "FLOP", l.cell[OPERATIONS]);
    if (row->seconds > 0 && row->least > 0)
        snprintf(l.cell[LIMIT], sizeof l.cell[LIMIT], "%.0f %% %s", 100 * row->least / row->seconds,
                 profile_row_by(row));
    return l;
}

static line line_between(const profile_run *run, const char *what, double seconds)
{
    line l = {.op = what, .kernel = ""};
    time_text(seconds, l.cell[TIME]);
    snprintf(l.cell[PART], sizeof l.cell[PART], "%.1f %%", run->seconds > 0 ? 100 * seconds / run->seconds : 0);
    return l;
}

/* Between ranks; waiting for the others is part of it. */
static line line_of_messages(const profile_run *run)
{
    line l = line_between(run, "messages", run->message_seconds);
    snprintf(l.cell[CALLS], sizeof l.cell[CALLS], "%lld", (long long)run->messages);
    amount_text((double)run->message_bytes, "B", l.cell[BYTES]);
    return l;
}

/* All of them, over the time of the whole run. */
static profile_row total_of(const profile_run *run, const profile_row *rows, size_t count)
{
    profile_row all = {.op = "all", .kernel = "", .seconds = run->seconds, .by = "mem"};
    double arithmetic = 0;
    for (size_t i = 0; i < count; i++) {
        all.calls += rows[i].calls;
        all.bytes += rows[i].bytes;
        all.operations += rows[i].operations;
        all.least += rows[i].least;
        all.least_memory += rows[i].least_memory;
        if (rows[i].least - rows[i].least_memory > arithmetic) {
            arithmetic = rows[i].least - rows[i].least_memory;
            all.by = rows[i].by;
        }
    }
    return all;
}

/* ---- tables ------------------------------------------------------------------------------------ */

static size_t width_of(const line *lines, size_t count, bool modules)
{
    size_t width[CELLS + 3] = {0}, all = 0;
    for (size_t i = 0; i < count; i++) {
        const char *texts[CELLS + 3] = {lines[i].op, lines[i].kernel, modules ? lines[i].module : ""};
        for (int c = 0; c < CELLS; c++)
            texts[3 + c] = lines[i].cell[c];
        for (int c = 0; c < CELLS + 3; c++)
            width[c] = strlen(texts[c]) > width[c] ? strlen(texts[c]) : width[c];
    }
    for (int c = 0; c < CELLS + 3; c++)
        all += width[c] + 2;
    return all - 2;
}

static tn_status print_wide(const line *lines, size_t count, bool modules, tn_error *err)
{
    table t;
    int names = modules ? 3 : 2;
    table_start(&t, (size_t)CELLS + (size_t)names, (1u << (CELLS + names)) - (1u << names));
    for (size_t i = 0; i < count; i++) {
        table_cell(&t, "%s", lines[i].op);
        table_cell(&t, "%s", lines[i].kernel);
        if (modules)
            table_cell(&t, "%s", lines[i].module);
        for (int c = 0; c < CELLS; c++)
            table_cell(&t, "%s", *lines[i].cell[c] ? lines[i].cell[c] : "-");
    }
    return table_print(&t, err);
}

/* Words, none beyond the columns that there are, further lines indented. */
typedef struct paragraph {
    size_t columns, at;
    bool begun; /* the line has a word                                                           */
} paragraph;

static void print_word(paragraph *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void print_word(paragraph *p, const char *format, ...)
{
    char word[192];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(word, sizeof word, format, arguments);
    va_end(arguments);
    if (p->begun && p->at + 1 + strlen(word) > p->columns) {
        printf("\n  ");
        p->at = 2;
        p->begun = false;
    }
    p->at += (size_t)printf("%s%s", p->begun ? " " : "", word);
    p->begun = true;
}

/* A paragraph for each row: "LINEAR, eager: 402 ms, 81.0 %, 197 calls, ..." */
static void print_narrow(const line *lines, size_t count, size_t columns)
{
    for (size_t i = 0; i < count; i++) {
        const line *l = &lines[i];
        paragraph p = {.columns = columns};
        print_word(&p, "%s%s", l->op, *l->kernel ? "," : ":");
        if (*l->kernel)
            print_word(&p, "%s%s", l->kernel, *l->module ? "," : ":");
        if (*l->module)
            print_word(&p, "%s:", l->module);
        print_word(&p, "%s,", l->cell[TIME]);
        print_word(&p, "%s%s", l->cell[PART], *l->cell[CALLS] ? "," : "");
        if (*l->cell[CALLS]) {
            print_word(&p, "%s call%s,", l->cell[CALLS], strcmp(l->cell[CALLS], "1") ? "s" : "");
            print_word(&p, "%s%s", l->cell[BYTES], *l->cell[OPERATIONS] ? "," : "");
            if (*l->cell[OPERATIONS])
                print_word(&p, "%s%s", l->cell[OPERATIONS], *l->cell[LIMIT] ? "," : "");
        }
        if (*l->cell[LIMIT])
            print_word(&p, "limit: %s", l->cell[LIMIT]);
        putchar('\n');
    }
}

/* The heading, the rows with what lies between them in its place, and all of it. Owned; NULL: no memory. */
static line *lines_of(const profile_run *run, const tn_machine *m, bool modules, size_t *n)
{
    size_t count;
    profile_row *rows = profile_rows(run, m, modules, &count);
    line *lines = rows ? calloc(count + 4, sizeof *lines) : NULL;
    bool placed = false;
    *n = 0;
    if (lines) {
        lines[*n] = (line){.op = "OPERATION", .kernel = "KERNEL"};
        snprintf(lines[*n].module, sizeof lines[*n].module, "MODULE");
        for (int i = 0; i < CELLS; i++)
            snprintf(lines[*n].cell[i], sizeof lines[*n].cell[i], "%s", headings[i]);
        ++*n;
    }
    for (size_t i = 0; lines && i <= count; i++) {
        if (!placed && (i == count || rows[i].seconds < profile_between(run))) {
            lines[(*n)++] = line_between(run, "between operations", profile_between(run));
            placed = true;
        }
        if (i < count)
            lines[(*n)++] = line_of(&rows[i], run->seconds);
    }
    if (lines && run->messages > 0)
        lines[(*n)++] = line_of_messages(run);
    if (lines) {
        profile_row all = total_of(run, rows, count);
        lines[(*n)++] = line_of(&all, run->seconds);
    }
    free(rows);
    return lines;
}

static bool by_modules(const bench *b)
{
    return *option_text(b->w.options, OPT_PROFILE, "") != '\0';
}

static tn_status print_case(const bench *b, size_t c, const tn_machine *m, tn_error *err)
{
    char name[96];
    bool modules = by_modules(b);
    size_t count, columns = columns_of_stdout();
    line *lines = lines_of(&b->profile->run[c], m, modules, &count);
    if (!lines)
        return tn_fail(err, TN_E_MEMORY, "bench", "out of memory; close other programs");
    printf("\n%s, %s:\n", profile_case_name(&b->cases[c], name), b->side[0].spec);
    tn_status status = TN_OK;
    if (columns == 0 || width_of(lines, count, modules) <= columns)
        status = print_wide(lines, count, modules, err);
    else
        print_narrow(lines + 1, count - 1, columns);
    free(lines);
    return status;
}

tn_status profile_print(const bench *b, const tn_machine *m, tn_error *err)
{
    char text[] =
        "OF LIMIT is the least time that this machine needs for the bytes (mem) or the operations (f32, bf16, "
        "amx), over the time that they took: more than 100 % where the data came from a cache.";
    size_t columns = columns_of_stdout();
    paragraph p = {.columns = columns ? columns : 120};
    tn_status status = TN_OK;
    for (size_t c = 0; c < b->case_count && status == TN_OK; c++)
        status = print_case(b, c, m, err);
    putchar('\n');
    for (char *rest = text, *word; status == TN_OK && (word = strsep(&rest, " "));)
        print_word(&p, "%s", word);
    putchar('\n');
    return status;
}

/* ---- JSON -------------------------------------------------------------------------------------- */

static json_t *json_row(const profile_row *row)
{
    bool limited = row->least > 0 && row->seconds > 0;
    json_t *o =
        json_pack("{s:s, s:s?, s:I, s:o, s:o, s:o, s:o, s:o, s:s?}", "operation", row->op, "kernel", row->kernel,
                  "calls", (json_int_t)row->calls, "seconds", json_number(row->seconds), "bytes",
                  json_number(row->bytes), "operations", json_number(row->operations), "limit_seconds",
                  json_number(row->least), "of_limit", limited ? json_number(row->least / row->seconds) : json_null(),
                  "limited_by", limited ? profile_row_by(row) : NULL);
    if (o && *row->module)
        json_object_set_new(o, "module", json_string(row->module));
    return o;
}

static json_t *json_case(const bench *b, size_t c, const tn_machine *m)
{
    const profile_run *run = &b->profile->run[c];
    size_t count = 0;
    profile_row *rows = profile_rows(run, m, by_modules(b), &count);
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_row(&rows[i]));
    json_t *o =
        !rows ? NULL
              : json_pack("{s:s, s:I, s:I, s:s, s:o, s:o, s:o}", "phase", b->cases[c].decode ? "decode" : "prompt",
                          "tokens", (json_int_t)b->cases[c].tokens, "context", (json_int_t)b->cases[c].context,
                          "kernels", b->side[0].spec, "seconds", json_number(run->seconds), "between_seconds",
                          json_number(profile_between(run)), "rows", list);
    if (o && run->messages > 0)
        json_object_set_new(o, "messages",
                            json_pack("{s:I, s:I, s:o}", "calls", (json_int_t)run->messages, "bytes",
                                      (json_int_t)run->message_bytes, "seconds", json_number(run->message_seconds)));
    free(rows);
    return o;
}

json_t *profile_json(const bench *b, const tn_machine *m)
{
    json_t *list = json_array();
    for (size_t c = 0; c < b->case_count; c++)
        json_array_append_new(list, json_case(b, c, m));
    return list;
}
