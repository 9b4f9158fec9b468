/* Inside core/text: characters of UTF-8. */
#ifndef TENON_CORE_TEXT_UTF8_H
#define TENON_CORE_TEXT_UTF8_H

#include "text/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct utf8_char {
    int32_t code;    /* -1: not UTF-8                                                           */
    uint32_t length; /* bytes taken, at least 1; of a bad sequence, those one U+FFFD replaces    */
    bool cut;        /* bad only because the text ends here                                     */
} utf8_char;

utf8_char utf8_read(const char *text, size_t length); /* length at least 1 */
size_t utf8_ascii(const char *text, size_t length);   /* bytes of ASCII that text begins with */
size_t utf8_write(int32_t code, char out[4]);         /* bytes written; 0: no character */
bool utf8_add(buffer *b, int32_t code);
bool utf8_add_clean(buffer *b, const char *text, size_t length); /* bad sequences become U+FFFD */
bool utf8_is_space(int32_t code);                                /* White_Space                 */

#define UTF8_REPLACEMENT "\xef\xbf\xbd"

#endif
