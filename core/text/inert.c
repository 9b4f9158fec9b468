/* Characters that normalization leaves alone whatever stands beside them: no combining marks, nothing that decomposes
 * in the form, and nothing that a character in front of it could take in. A text is cut in front of them, and stretches
 * of them need no work. */
#include "text/unicode.h"
#include "text/utf8.h"

/* For NFC, by the blocks of common scripts that hold nothing else; what is left out only takes longer. Hangul syllables
 * are inert: the letters that one may take in follow it, and are not. */
static const struct {
    int32_t first, last;
} composed[] = {{0x0000, 0x02ff}, /* Latin                                                                    */
                {0x0400, 0x0482}, /* Cyrillic                                                                 */
                {0x048a, 0x052f},   {0x2010, 0x2027}, /* dashes, quotation marks, bullets                        */
                {0x2030, 0x205e},   {0x20a0, 0x20bf}, /* currencies                                              */
                {0x2190, 0x21ff}, /* arrows                                                                   */
                {0x2500, 0x27bf}, /* boxes, shapes, symbols                                                   */
                {0x3001, 0x3029},   {0x3041, 0x3096}, /* Hiragana                                                */
                {0x309b, 0x30ff}, /* Katakana                                                                 */
                {0x3400, 0x4dbf},   {0x4e00, 0x9fff}, /* Chinese characters                                      */
                {0xac00, 0xd7a3}, /* Hangul                                                                   */
                {0xff01, 0xff60}, /* wide forms                                                               */
                {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}};

bool inert_is(bool nfc, int32_t code)
{
    if (code < 0x80)
        return true;
    for (size_t i = 0; nfc && i < sizeof composed / sizeof composed[0] && code >= composed[i].first; i++)
        if (code <= composed[i].last)
            return true;
    return false;
}

size_t inert_run(bool nfc, const char *text, size_t length)
{
    size_t i = 0;
    while (i < length) {
        i += utf8_ascii(text + i, length - i);
        if (i == length)
            break;
        utf8_char c = utf8_read(text + i, length - i);
        if (!inert_is(nfc, c.code))
            break;
        i += c.length;
    }
    return i;
}
