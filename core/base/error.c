/* The error record. */
#include <tenon/error.h>

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Cuts an unfinished UTF-8 sequence that truncation left at the end. */
static void trim_utf8(char *text)
{
    size_t n = strlen(text), back = 0;
    while (back < 3 && back < n && ((unsigned char)text[n - 1 - back] & 0xc0) == 0x80)
        back++;
    if (back == n)
        return;
    unsigned char lead = (unsigned char)text[n - 1 - back];
    size_t want = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
    if (lead >= 0xc0 && back < want)
        text[n - 1 - back] = '\0';
}

tn_status tn_fail(tn_error *err, tn_status code, const char *where, const char *format, ...)
{
    if (!err || err->code != TN_OK)
        return code;
    err->code = code;
    /* Errors are one line each and often quote what a file says: nothing in them may move a terminal's cursor. */
    char message[sizeof err->message];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(message, sizeof message, format ? format : "it gives no reason", args);
    va_end(args);
    if (length >= (int)sizeof message)
        trim_utf8(message);
    text_escape(err->where, sizeof err->where, where ? where : "");
    text_escape(err->message, sizeof err->message, message);
    return code;
}

void tn_error_clear(tn_error *err)
{
    if (err)
        *err = (tn_error)TN_ERROR_INIT;
}
