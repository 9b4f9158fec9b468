/* Inside core/text: classes of characters as the tokenizers library has them, and what normalization leaves alone. */
#ifndef TENON_CORE_TEXT_UNICODE_H
#define TENON_CORE_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Is the character, whatever stands beside it? nfc: in NFC, else in all four forms. */
bool inert_is(bool nfc, int32_t code);
size_t inert_run(bool nfc, const char *text, size_t length); /* bytes of such characters at the start     */

typedef bool unicode_class(int32_t code);
unicode_class unicode_is_punctuation; /* P*, and all of ASCII's                                  */
unicode_class unicode_is_numeric;     /* N*                                                      */
unicode_class unicode_is_mark;        /* M*                                                      */
unicode_class unicode_is_nonspacing;  /* Mn                                                      */
unicode_class unicode_is_other;       /* Cc, Cf and Co                                           */
unicode_class unicode_is_word;        /* \w of Rust's regular expressions                        */
int32_t unicode_lower(int32_t code);  /* of U+0130 only the first of two                         */
/* The script, a number without further meaning; SCRIPT_ANY joins those around it. */
enum { SCRIPT_ANY = 0 };
int unicode_script(int32_t code);
/* Characters that the library's normalization forms do not know yet: left alone, and no marks. */
unicode_class unicode_is_too_new;

/* Characters of Unicode 15 and 16, which the library's regular expressions know. */
typedef struct unicode_newer_run {
    int32_t first, last;
    const char *category; /* "Lu" and so on                                                        */
    bool alphabetic;
    const char *script; /* in lower case; "" for scripts that are newer themselves, and for none    */
} unicode_newer_run;
const unicode_newer_run *unicode_newer(size_t *count);

#endif
