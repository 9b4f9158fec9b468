/* JSON that comes byte by byte: whether it may still be JSON, and where it ends. */
#ifndef TENON_SERVE_SPLITTER_JSON_H
#define TENON_SERVE_SPLITTER_JSON_H

#include "splitter_text.h"

#include <jansson.h>

enum { SPLITTER_JSON_DEPTH = 128 };

typedef enum splitter_json_state {
    SCAN_VALUE, /* zero: begins so                                                                       */
    SCAN_FIRST_VALUE,
    SCAN_FIRST_KEY,
    SCAN_NEXT_KEY,
    SCAN_COLON,
    SCAN_AFTER, /* a value                                                                             */
    SCAN_STRING,
    SCAN_ESCAPE,
    SCAN_HEX,
    SCAN_WORD,
    SCAN_MINUS, /* from here on: in a number                                                             */
    SCAN_ZERO,
    SCAN_DIGITS,
    SCAN_POINT,
    SCAN_FRACTION,
    SCAN_E,
    SCAN_SIGN,
    SCAN_EXPONENT
} splitter_json_state;

typedef struct splitter_json {
    splitter_json_state state;
    int depth, left;  /* left: hexadecimal digits                                                          */
    bool key;         /* the string is one                                                                */
    const char *word; /* what is left of true, false, null                                                */
    char open[SPLITTER_JSON_DEPTH];
} splitter_json;

typedef enum splitter_json_result { SCAN_WRONG, SCAN_MORE, SCAN_END } splitter_json_result;

/* SCAN_END: the value, an array, object, or string, ends with this byte. */
splitter_json_result splitter_json_step(splitter_json *j, char c);

/* A value of JSON, as jansson reads it, with integers of any length. NULL: it is none, or no memory, which *memory
 * tells where jansson does. */
json_t *splitter_json_load(const char *bytes, size_t length, bool *memory);

/* Adds the JSON text of an object, or of the object that is written in a string, as models write arguments; false: it
 * is none, or no memory, which *memory tells. */
bool splitter_json_add_object(splitter_text *out, const char *bytes, size_t length, bool *memory);

bool splitter_json_is_object(const char *bytes, size_t length, bool *memory);

#endif
