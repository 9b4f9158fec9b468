/* Inside core/grammar: regular expressions, those of ECMA-262 without look-around, back-references, word boundaries and
 * properties of Unicode. */
#ifndef TENON_CORE_PATTERN_H
#define TENON_CORE_PATTERN_H

#include "grammar/codepoints.h"

/* What the expression matches: as a whole, or anywhere within the text, as `pattern` of JSON schemas. out is empty
 * before, to be freed in any case, and has no empty edges then. TN_E_INPUT: at where, with `at` before the message. Too
 * many states are left in out. */
tn_status pattern_parse(const char *text, size_t length, bool whole, codepoints *out, const char *where, const char *at,
                        tn_error *err);

/* The expression for the strings of a format, which matches them as a whole; NULL: none is known by that name. */
const char *pattern_of_format(const char *format);

#endif
