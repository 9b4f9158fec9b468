/* The regular expressions of tokenizer.json are written for Oniguruma's Ruby syntax; here they become PCRE2's. */
#ifndef TENON_CORE_TEXT_ONIGURUMA_H
#define TENON_CORE_TEXT_ONIGURUMA_H

#include "text/buffer.h"

/* Appends what PCRE2 reads as Oniguruma reads the pattern. *refused: what cannot be translated, for an error; NULL:
 * nothing. False: no memory. */
bool oniguruma_translate(const char *pattern, size_t length, buffer *out, const char **refused);

/* ---- oniguruma_class.c ----------------------------------------------------------------------- */

/* What stands in brackets for characters of a class, as Oniguruma has them: "\\p{Nd}" with what PCRE2 does not know
 * yet. negated: the class is written as what it leaves out. */
typedef struct oniguruma_class {
    buffer items;
    bool negated;
} oniguruma_class;

/* Classes by the letter of an escape: d, s, w, h and those in capitals. outside: not within brackets, where w takes the
 * fractions and raised digits of Latin-1, too. False: no class, or no memory: *memory tells. */
bool oniguruma_class_escape(char letter, bool outside, oniguruma_class *class, bool *memory);
/* \p{name}, or \P{name} with negated; name may begin with a circumflex. What nobody knows is left to PCRE2. */
bool oniguruma_class_property(const char *name, size_t length, bool negated, bool outside, oniguruma_class *class,
                              bool *memory);
/* [:name:]; name may begin with a circumflex. */
bool oniguruma_class_posix(const char *name, size_t length, oniguruma_class *class, bool *memory);

#endif
