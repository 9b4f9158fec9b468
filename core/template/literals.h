/* Inside core: numbers and quoted texts in a template's source, and numbers that are read from texts. */
#ifndef TENON_CORE_LITERALS_H
#define TENON_CORE_LITERALS_H

#include "template/value.h"

/* The number at the beginning of a text; used: its bytes. behind_dot: it is an index (`x.0`) and no fraction. */
value literals_number(sandbox *s, const char *text, size_t size, bool behind_dot, size_t *used);

/* What stands between quotes, with the escapes of Python. */
value literals_string(sandbox *s, const char *text, size_t size);

/* int(text, base) and float(text); false: it is none. Fails when a whole number has more than 64 bits. */
bool literals_int(sandbox *s, const string *text, int base, int64_t *number);
bool literals_float(sandbox *s, const string *text, double *number);

#endif
