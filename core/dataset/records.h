/* Inside core: the records of a file of data, one after the other, as they stand in it. */
#ifndef TENON_CORE_RECORDS_H
#define TENON_CORE_RECORDS_H

#include "base/mapped.h"

#include <stdbool.h>
#include <stdint.h>

/* The largest record; what a text that goes on is cut into, at ends of lines. */
#define RECORDS_LARGEST ((size_t)64 << 20)
#define RECORDS_PIECE ((size_t)4 << 20)

typedef struct record {
    const char *text; /* in the mapping */
    size_t length;
    int64_t line;     /* where it begins, from 1 on                                                */
    bool first, last; /* of a text that is no JSON: its first piece, its last                       */
} record;

typedef enum records_kind {
    RECORDS_LINES,  /* an object in each line that is not empty                                      */
    RECORDS_VALUES, /* objects one after the other, each in many lines                               */
    RECORDS_LIST,   /* a list of them                                                                */
    RECORDS_TEXT    /* no JSON                                                                       */
} records_kind;

typedef struct records {
    const char *path;
    records_kind kind;
    mapped *map;
    const char *data;
    size_t size, at, forgotten;
    int64_t line;
    bool begun, ended; /* of a list                                                                  */
} records;

/* TN_E_INPUT: no such file, its name ends in none of .json, .jsonl, .txt, .md, or it is empty. */
tn_status records_open(records *r, const char *path, tn_error *err);
void records_close(records *r);

/* *there false: that was the last one. An error is the end, too: nobody can say where the next record begins. */
tn_status records_next(records *r, record *next, bool *there, tn_error *err);

/* What was read so far is not needed any more. TN_E_INPUT: the file was changed meanwhile. */
tn_status records_done(records *r, tn_error *err);

/* The error of a record: "PATH:LINE", of a path that is too long the end. what is a whole message. */
tn_status records_fail(const char *path, int64_t line, tn_status code, const char *what, tn_error *err);

#endif
