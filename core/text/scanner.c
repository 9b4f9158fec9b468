/* The expressions have the form: a contraction, a word, a number, signs, space that ends in a line end, space but for
 * its last character, space. Each place of a text begins with one of these, so the matches lie side by side. */
#include "text/scanner.h"

#include "text/buffer.h"
#include "text/doc.h"
#include "text/regex.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

const scanner_rule scanner_rules[] = {
    {.pattern = SCANNER_GPT2, .spaced_numbers = true, .most_digits = SIZE_MAX},
    {.pattern = SCANNER_QWEN2, .any_case = true, .any_prefix = true, .lines = true, .most_digits = 1},
    {.pattern = SCANNER_LLAMA3, .any_case = true, .any_prefix = true, .lines = true, .most_digits = 3},
    {.pattern = SCANNER_QWEN35, .any_case = true, .any_prefix = true, .marks = true, .lines = true, .most_digits = 1},
};
const size_t scanner_count = sizeof scanner_rules / sizeof scanner_rules[0];

enum { LETTER = 1, NUMBER = 2, BLANK = 4, MARK = 8, LINE = 16 /* \r and \n, which are also BLANK */ };

/* Classes are kept for the planes that hold letters; what lies elsewhere is unassigned or private, and in no class. */
#define BLOCK 256
#define PLANE_BLOCKS (0x10000 / BLOCK)
#define PLANES 15 /* 4 to 13 share one plane without classes                                         */

struct scanner {
    const scanner_rule *rule;
    unsigned word; /* classes that belong to words                                                   */
    uint8_t *blocks[PLANES * PLANE_BLOCKS]; /* of BLOCK classes; blank where all are 0                */
    uint8_t blank[BLOCK];
};

const scanner_rule *scanner_find(const char *pattern, size_t length)
{
    for (size_t i = 0; i < scanner_count; i++)
        if (strlen(scanner_rules[i].pattern) == length && memcmp(scanner_rules[i].pattern, pattern, length) == 0)
            return &scanner_rules[i];
    return NULL;
}

/* ---- classes ---------------------------------------------------------------------------------------- */

static bool set_class(scanner *s, int32_t code, unsigned class)
{
    uint8_t **block = &s->blocks[code / BLOCK];
    if (*block == s->blank && !(*block = calloc(BLOCK, 1))) {
        *block = s->blank;
        return false;
    }
    (*block)[code % BLOCK] |= (uint8_t) class;
    return true;
}

/* Gives a class to what an expression finds in a text of all characters. */
static bool add_class(scanner *s, const buffer *all, const char *pattern, unsigned class)
{
    tn_error err = TN_ERROR_INIT;
    regex *re = regex_new(pattern, strlen(pattern), false, &(doc_reader){{"", ""}, &err, TN_OK});
    regex_walk walk;
    if (!re || regex_open(&walk, re, &err) != TN_OK) {
        regex_free(re);
        return false;
    }
    regex_start(&walk, all->data, all->size);
    bool found = true, good = true;
    size_t start, end;
    while (good && (good = regex_next(&walk, &found, &start, &end, &err) == TN_OK) && found)
        while (good && start < end) {
            utf8_char c = utf8_read(all->data + start, end - start);
            good = set_class(s, c.code, class);
            start += c.length;
        }
    regex_close(&walk);
    regex_free(re);
    return good;
}

static bool add_classes(scanner *s)
{
    buffer all = {0};
    bool good = true;
    for (int32_t code = 0; code < 0xf0000 && good; code++) {
        if (code == 0xd800) /* surrogates */
            code = 0xe000;
        if (code == 0x40000)
            code = 0xe0000;
        good = utf8_add(&all, code);
    }
    good = good && add_class(s, &all, "\\p{L}+", LETTER) && add_class(s, &all, "\\p{N}+", NUMBER) &&
           add_class(s, &all, "\\s+", BLANK) && add_class(s, &all, "[\\r\\n]+", LINE) &&
           (!s->rule->marks || add_class(s, &all, "\\p{M}+", MARK));
    buffer_free(&all);
    return good;
}

scanner *scanner_new(const scanner_rule *rule)
{
    scanner *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->rule = rule;
    s->word = rule->marks ? LETTER | MARK : LETTER;
    for (size_t i = 0; i < PLANES * PLANE_BLOCKS; i++)
        s->blocks[i] = s->blank;
    if (add_classes(s))
        return s;
    scanner_free(s);
    return NULL;
}

void scanner_free(scanner *s)
{
    for (size_t i = 0; s && i < PLANES * PLANE_BLOCKS; i++)
        if (s->blocks[i] != s->blank)
            free(s->blocks[i]);
    free(s);
}

/* ---- matching --------------------------------------------------------------------------------------- */

typedef struct reader {
    const scanner *s;
    const unsigned char *text;
    size_t length;
} reader;

/* The classes of the character at i, and in *end where it ends. */
static inline unsigned class_at(const reader *r, size_t i, size_t *end)
{
    const unsigned char *c = r->text + i;
    if (c[0] < 0x80) {
        *end = i + 1;
        return r->s->blocks[0][c[0]];
    }
    uint32_t code;
    if (c[0] < 0xe0) {
        code = (c[0] & 0x1fu) << 6 | (c[1] & 0x3fu);
        *end = i + 2;
    } else if (c[0] < 0xf0) {
        code = (c[0] & 0x0fu) << 12 | (c[1] & 0x3fu) << 6 | (c[2] & 0x3fu);
        *end = i + 3;
    } else {
        code = (c[0] & 0x07u) << 18 | (c[1] & 0x3fu) << 12 | (c[2] & 0x3fu) << 6 | (c[3] & 0x3fu);
        *end = i + 4;
        if (code >= PLANES * 0x10000)
            return 0;
    }
    return r->s->blocks[code / BLOCK][code % BLOCK];
}

/* The end of the run of characters from i on of which (classes & mask) is not 0, or, when none, is 0. */
static inline size_t run(const reader *r, size_t i, unsigned mask, bool none)
{
    for (size_t end; i < r->length && ((class_at(r, i, &end) & mask) == 0) == none; i = end)
        ;
    return i;
}

/* The end of 's, 't, 're, 've, 'm, 'll or 'd at i; i: there is none. */
static size_t contraction(const reader *r, size_t i)
{
    bool any_case = r->s->rule->any_case;
    const unsigned char *c = r->text + i;
    size_t left = r->length - i;
    if (left < 2 || c[0] != '\'')
        return i;
    unsigned char fold = any_case ? 0x20 : 0, first = c[1] | fold, second = left > 2 ? c[2] | fold : 0;
    if (first == 's' || first == 't' || first == 'm' || first == 'd')
        return i + 2;
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
        return i + 3;
    bool long_s = any_case && left > 2 && c[1] == 0xc5 && c[2] == 0xbf; /* U+017F is an s in another case      */
    return long_s ? i + 3 : i;
}

/* From the blank at start. */
static size_t space(const reader *r, size_t start)
{
    size_t last = start, line = 0, i = start, end; /* last: where the last blank begins                 */
    for (unsigned class; i < r->length && ((class = class_at(r, i, &end)) & BLANK); i = end) {
        last = i;
        if (class & LINE)
            line = end;
    }
    if (r->s->rule->lines && line > 0)
        return line;
    return i == r->length || last == start ? i : last; /* the last one goes to what follows               */
}

static size_t number(const reader *r, size_t i)
{
    size_t end;
    for (size_t n = 0; n < r->s->rule->most_digits && i < r->length && class_at(r, i, &end) & NUMBER; n++)
        i = end;
    return i;
}

size_t scanner_next(const scanner *s, const char *text, size_t length, size_t start)
{
    const scanner_rule *rule = s->rule;
    reader r = {s, (const unsigned char *)text, length};
    size_t i = contraction(&r, start), second, after = length;
    if (i > start)
        return i;
    unsigned class = class_at(&r, start, &second), not_sign = s->word | NUMBER | BLANK;
    if (class & s->word)
        return run(&r, second, s->word, false);
    unsigned next = second < length ? class_at(&r, second, &after) : BLANK;
    bool one_space = text[start] == ' ';
    if ((rule->any_prefix ? !(class & (LINE | NUMBER)) : one_space) && (next & s->word))
        return run(&r, after, s->word, false);
    if (class & NUMBER)
        return number(&r, start);
    if (rule->spaced_numbers && one_space && (next & NUMBER))
        return number(&r, second);
    if (!(class & not_sign) || (one_space && !(next & not_sign))) {
        i = run(&r, second, not_sign, true);
        return rule->lines ? run(&r, i, LINE, false) : i;
    }
    return space(&r, start);
}
