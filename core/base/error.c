/* The error record. */
#include <tenon/error.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Errors are one line each and often quote a file's contents: nothing in them may move a terminal's cursor. */
static void replace_control(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++)
        if (*c < 0x20 || *c == 0x7f)
            *c = '?';
}

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
    snprintf(err->where, sizeof err->where, "%s", where ? where : "");
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    trim_utf8(err->where);
    trim_utf8(err->message);
    replace_control(err->where);
    replace_control(err->message);
    return code;
}

void tn_error_clear(tn_error *err)
{
    if (err)
        *err = (tn_error)TN_ERROR_INIT;
}
