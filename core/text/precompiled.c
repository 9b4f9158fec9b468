/* The character maps of SentencePiece ("precompiled_charsmap"): a double-array trie over the bytes of what is replaced,
 * whose values are places in a table of replacements. In base64: the size of the trie in bytes, its units (all of them
 * little-endian, 32 bits), then the replacements, each ended by a NUL. */
#include "text/buffer.h"
#include "text/decode.h"
#include "text/doc.h"
#include "text/normalize.h"
#include "text/trie.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

struct charsmap {
    uint32_t *units;
    size_t unit_count;
    buffer replacements;
};

static int base64_value(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* The bytes that text stands for. Owned; NULL with *size 0: want of memory, with *size 1: not base64. */
static unsigned char *decode_base64(const char *text, size_t length, size_t *size)
{
    size_t padding = 0;
    while (padding < 2 && padding < length && text[length - 1 - padding] == '=')
        padding++;
    *size = 1;
    if (length % 4 != 0)
        return NULL;
    unsigned char *data = malloc(length / 4 * 3 + 1);
    if (!data) {
        *size = 0;
        return NULL;
    }
    uint32_t bits = 0;
    size_t got = 0;
    for (size_t i = 0; i < length; i++) {
        int value = i < length - padding ? base64_value(text[i]) : 0;
        if (value < 0) {
            free(data);
            return NULL;
        }
        bits = bits << 6 | (uint32_t)value;
        if (i % 4 != 3)
            continue;
        data[got++] = (unsigned char)(bits >> 16);
        data[got++] = (unsigned char)(bits >> 8);
        data[got++] = (unsigned char)bits;
    }
    *size = got - padding;
    return data;
}

static uint32_t read_unit(const unsigned char *data)
{
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
}

static bool is_utf8(const char *text, size_t length)
{
    for (size_t i = 0; i < length;) {
        utf8_char c = utf8_read(text + i, length - i);
        if (c.code < 0)
            return false;
        i += c.length;
    }
    return true;
}

static tn_status fill(charsmap *c, const unsigned char *data, size_t size, doc_reader *r)
{
    size_t trie = size < 4 ? 0 : read_unit(data) / 4;
    if (trie == 0 || trie > (size - 4) / 4)
        return doc_fail(r, "'precompiled_charsmap' holds no whole trie; fetch the file again");
    const char *rest = (const char *)data + 4 + trie * 4;
    size_t left = size - 4 - trie * 4;
    if (!is_utf8(rest, left))
        return doc_fail(r, "'precompiled_charsmap' is not UTF-8; fetch the file again");
    c->units = malloc(trie * sizeof *c->units);
    if (!c->units || !buffer_add(&c->replacements, rest, left))
        return doc_no_memory(r);
    for (size_t i = 0; i < trie; i++)
        c->units[i] = read_unit(data + 4 + i * 4);
    c->unit_count = trie;
    return TN_OK;
}

charsmap *precompiled_load(const doc_node *node, doc_reader *r)
{
    const char *text = "";
    size_t length = 0, size;
    doc_need_text(node, "precompiled_charsmap", &text, &length, r);
    if (r->status != TN_OK)
        return NULL;
    unsigned char *data = decode_base64(text, length, &size);
    charsmap *c = data ? calloc(1, sizeof *c) : NULL;
    if (!data && size)
        doc_fail(r, "'precompiled_charsmap' is not base64; fetch the file again");
    else if (!c)
        doc_no_memory(r);
    else
        fill(c, data, size, r);
    free(data);
    if (r->status == TN_OK)
        return c;
    precompiled_free(c);
    return NULL;
}

void precompiled_free(charsmap *c)
{
    if (!c)
        return;
    free(c->units);
    buffer_free(&c->replacements);
    free(c);
}

/* A unit has: bits 0 to 7 the byte that leads to it, bit 8 whether a text ends here (then its first child, by byte 0,
 * holds the value in bits 0 to 30, and bit 31), bits 10 to 30 the distance to its children, 256 times that with
 * bit 9. */
static size_t children(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
}

/* What text is replaced by, as the library does it: by what stands for its shortest beginning in the map. */
static bool replacement(const charsmap *c, const char *text, size_t length, const char **with, size_t *with_length)
{
    size_t at = children(c->units[0]);
    for (size_t i = 0; i < length && text[i]; i++) {
        at ^= (unsigned char)text[i];
        if (at >= c->unit_count || (c->units[at] & (1u << 31 | 0xff)) != (unsigned char)text[i])
            return false;
        uint32_t unit = c->units[at];
        at ^= children(unit);
        if (!(unit >> 8 & 1))
            continue;
        size_t place = at < c->unit_count ? c->units[at] & ~(1u << 31) : SIZE_MAX;
        if (place > c->replacements.size)
            return false;
        *with = place < c->replacements.size ? c->replacements.data + place : "";
        *with_length = strnlen(*with, c->replacements.size - place);
        return *with_length == 0 || ((unsigned char)(*with)[0] & 0xc0) != 0x80;
    }
    return false;
}

/* Each character that a grapheme cluster consists of. */
static bool apply_characters(const charsmap *c, const char *text, size_t length, buffer *out)
{
    for (size_t i = 0; i < length;) {
        size_t n = utf8_read(text + i, length - i).length, size = n;
        const char *with = text + i;
        if (!replacement(c, text + i, n, &with, &size)) {
            with = text + i;
            size = n;
        }
        if (!buffer_add(out, with, size))
            return false;
        i += n;
    }
    return true;
}

/* Clusters of fewer bytes than this are looked up as a whole first. */
#define WHOLE_CLUSTER_LIMIT 6

bool precompiled_apply(const charsmap *c, const char *text, size_t length, buffer *out)
{
    for (size_t start = 0, end; start < length; start = end) {
        utf8_char last = utf8_read(text + start, length - start);
        utf8proc_int32_t state = 0;
        for (end = start + last.length; end < length; end += last.length) {
            utf8_char next = utf8_read(text + end, length - end);
            if (utf8proc_grapheme_break_stateful(last.code, next.code, &state))
                break;
            last = next;
        }
        const char *with;
        size_t size;
        bool whole = end - start < WHOLE_CLUSTER_LIMIT && replacement(c, text + start, end - start, &with, &size);
        if (!(whole ? buffer_add(out, with, size) : apply_characters(c, text + start, end - start, out)))
            return false;
    }
    return true;
}
