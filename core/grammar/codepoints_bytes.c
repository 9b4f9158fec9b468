/* Characters as bytes: UTF-8, and within a JSON string its escapes. */
#include "grammar/codepoints.h"

#include <stdlib.h>

/* So many continuation bytes, whichever, then `to`; kept for it in tails[3]. */
static uint32_t tail(automaton *a, uint32_t to, int bytes, uint32_t tails[4])
{
    if (bytes == 0)
        return to;
    if (tails[bytes] == AUTOMATON_NONE) {
        uint32_t next = tail(a, to, bytes - 1, tails);
        tails[bytes] = automaton_state(a);
        automaton_bytes(a, tails[bytes], 0x80, 0xbf, next);
    }
    return tails[bytes];
}

static uint8_t continuation(int32_t c, int shift)
{
    return (uint8_t)(0x80 | (c >> shift & 0x3f));
}

/* The last `left` bytes of characters low..high, whose bytes before are the same: low and high are the bits left. */
static void continue_range(automaton *a, uint32_t from, int32_t low, int32_t high, int left, uint32_t to,
                           uint32_t tails[4])
{
    if (left == 0)
        return;
    int shift = 6 * (left - 1);
    int32_t rest = (1 << shift) - 1;
    for (int32_t at = low; at <= high;) {
        int32_t end = at | rest;
        if ((at & rest) == 0 && end <= high) { /* whole blocks, as many as there are */
            int32_t blocks = ((high + 1) >> shift) - (at >> shift);
            automaton_bytes(a, from, continuation(at, shift), continuation(at + ((blocks - 1) << shift), shift),
                            tail(a, to, left - 1, tails));
            at += blocks << shift;
            continue;
        }
        end = end < high ? end : high;
        uint32_t next = automaton_state(a);
        automaton_bytes(a, from, continuation(at, shift), continuation(at, shift), next);
        continue_range(a, next, at & rest, end & rest, left - 1, to, tails);
        at = end + 1;
    }
}

/* low..high of one length of UTF-8. */
static void lead_range(automaton *a, uint32_t from, int32_t low, int32_t high, int left, uint32_t to, uint32_t tails[4])
{
    static const uint8_t leads[] = {0, 0xc0, 0xe0, 0xf0};
    int shift = 6 * left;
    int32_t rest = (1 << shift) - 1;
    for (int32_t at = low; at <= high;) {
        int32_t end = (at | rest) < high ? at | rest : high;
        uint8_t lead = (uint8_t)(leads[left] | at >> shift);
        if ((at & rest) == 0 && (end & rest) == rest) {
            int32_t blocks = ((high + 1) >> shift) - (at >> shift);
            automaton_bytes(a, from, lead, (uint8_t)(lead + blocks - 1), tail(a, to, left, tails));
            at += blocks << shift;
            continue;
        }
        uint32_t next = automaton_state(a);
        automaton_bytes(a, from, lead, lead, next);
        continue_range(a, next, at & rest, end & rest, left, to, tails);
        at = end + 1;
    }
}

/* Characters low..high as UTF-8, without surrogates. */
static void utf8_range(automaton *a, uint32_t from, int32_t low, int32_t high, uint32_t to, uint32_t tails[4])
{
    static const struct {
        int32_t low, high;
        int left;
    } parts[] = {
        {0, 0x7f, 0}, {0x80, 0x7ff, 1}, {0x800, 0xd7ff, 2}, {0xe000, 0xffff, 2}, {0x10000, CODEPOINTS_LAST, 3}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        int32_t first = low > parts[i].low ? low : parts[i].low, last = high < parts[i].high ? high : parts[i].high;
        if (first > last)
            continue;
        if (parts[i].left == 0)
            automaton_bytes(a, from, (uint8_t)first, (uint8_t)last, to);
        else
            lead_range(a, from, first, last, parts[i].left, to, tails);
    }
}

/* ---- JSON ---------------------------------------------------------------------------------------------------- */

static const struct {
    char letter;
    int32_t code;
} escapes[] = {{'b', 8}, {'t', 9}, {'n', 10}, {'f', 12}, {'r', 13}, {'"', '"'}, {'\\', '\\'}};

static const char hex_ranges[][2] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};

/* Hexadecimal digits low..high, of either case. */
static void hex_digit(automaton *a, uint32_t from, int low, int high, uint32_t to)
{
    for (int i = 0; i < 3; i++) {
        int base = i == 0 ? 0 : 10, most = i == 0 ? 9 : 15;
        int first = low > base ? low : base, last = high < most ? high : most;
        if (first <= last)
            automaton_bytes(a, from, (uint8_t)(hex_ranges[i][0] + first - base),
                            (uint8_t)(hex_ranges[i][0] + last - base), to);
    }
}

/* Those of low..high that JSON escapes, with the shortest escape; control characters also by number. */
static void escaped_range(automaton *a, uint32_t from, int32_t low, int32_t high, uint32_t to)
{
    uint32_t escape = AUTOMATON_NONE;
    for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++)
        if (low <= escapes[i].code && escapes[i].code <= high) {
            if (escape == AUTOMATON_NONE)
                escape = automaton_literal(a, from, "\\", 1);
            automaton_bytes(a, escape, (uint8_t)escapes[i].letter, (uint8_t)escapes[i].letter, to);
        }
    if (low > 0x1f)
        return;
    high = high < 0x1f ? high : 0x1f;
    if (escape == AUTOMATON_NONE)
        escape = automaton_literal(a, from, "\\", 1);
    uint32_t zeros = automaton_literal(a, escape, "u00", 3);
    for (int32_t tens = 0; tens <= 1; tens++) {
        int32_t first = low > 16 * tens ? low : 16 * tens, last = high < 16 * tens + 15 ? high : 16 * tens + 15;
        if (first > last)
            continue;
        uint32_t digit = automaton_literal(a, zeros, tens ? "1" : "0", 1);
        hex_digit(a, digit, first & 15, last & 15, to);
    }
}

static void json_range(automaton *a, uint32_t from, int32_t low, int32_t high, uint32_t to, uint32_t tails[4])
{
    static const int32_t raw[][2] = {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, CODEPOINTS_LAST}};
    if (low == 0 && high == CODEPOINTS_LAST) {
        automaton_call(a, from, codepoints_rule(a), to);
        return;
    }
    low = low ? low : 1;
    for (int i = 0; i < 3; i++) {
        int32_t first = low > raw[i][0] ? low : raw[i][0], last = high < raw[i][1] ? high : raw[i][1];
        if (first <= last)
            utf8_range(a, from, first, last, to, tails);
    }
    escaped_range(a, from, low, high, to);
}

/* Four hexadecimal digits that are no half of a pair, nor U+0000; or two halves. */
static void unicode_escape(automaton *a, uint32_t from, uint32_t to)
{
    uint32_t last = automaton_state(a), third = automaton_state(a), second = automaton_state(a);
    hex_digit(a, last, 0, 15, to);
    hex_digit(a, third, 0, 15, last);
    hex_digit(a, second, 0, 15, third);
    hex_digit(a, from, 1, 12, second);
    hex_digit(a, from, 14, 15, second);
    uint32_t zero = automaton_state(a), zeros = automaton_state(a), last_zero = automaton_state(a);
    hex_digit(a, from, 0, 0, zero);
    hex_digit(a, zero, 1, 15, third);
    hex_digit(a, zero, 0, 0, zeros);
    hex_digit(a, zeros, 1, 15, last);
    hex_digit(a, zeros, 0, 0, last_zero);
    hex_digit(a, last_zero, 1, 15, to);
    uint32_t d = automaton_state(a), high[2] = {automaton_state(a), automaton_state(a)}, half = automaton_state(a);
    hex_digit(a, from, 13, 13, d);
    hex_digit(a, d, 0, 7, third);
    hex_digit(a, d, 8, 11, high[0]);
    hex_digit(a, high[0], 0, 15, high[1]);
    hex_digit(a, high[1], 0, 15, half);
    uint32_t low = automaton_literal(a, half, "\\u", 2), low_second = automaton_state(a);
    hex_digit(a, low, 13, 13, low_second);
    hex_digit(a, low_second, 12, 15, third);
}

uint32_t codepoints_rule(automaton *a)
{
    if (a->plain != AUTOMATON_NONE)
        return a->plain;
    a->plain = automaton_add_rule(a);
    if (a->full || a->lack)
        return 0;
    uint32_t start = a->rules[a->plain].start, end = a->rules[a->plain].end;
    uint32_t tails[4] = {AUTOMATON_NONE, AUTOMATON_NONE, AUTOMATON_NONE, AUTOMATON_NONE};
    utf8_range(a, start, 0x20, '"' - 1, end, tails);
    utf8_range(a, start, '"' + 1, '\\' - 1, end, tails);
    utf8_range(a, start, '\\' + 1, CODEPOINTS_LAST, end, tails);
    uint32_t escape = automaton_literal(a, start, "\\", 1);
    for (const char *c = "\"\\/bfnrt"; *c; c++)
        automaton_bytes(a, escape, (uint8_t)*c, (uint8_t)*c, end);
    unicode_escape(a, automaton_literal(a, escape, "u", 1), end);
    return a->plain;
}

void codepoints_lower(const codepoints *c, automaton *a, uint32_t from, char end, uint32_t to, bool json)
{
    a->full = a->full || c->full;
    a->lack = a->lack || c->lack;
    automaton_spend(a, c->work);
    uint32_t *states = malloc((c->count + 1) * sizeof *states);
    uint32_t(*tails)[4] = malloc((c->count + 1) * sizeof *tails);
    a->lack = a->lack || !states || !tails;
    for (size_t i = 0; i < c->count && !a->lack && !a->full; i++) {
        states[i] = automaton_state(a);
        for (int k = 0; k < 4; k++)
            tails[i][k] = AUTOMATON_NONE;
        if (c->accepts[i] && end)
            automaton_bytes(a, states[i], (uint8_t)end, (uint8_t)end, to);
        else if (c->accepts[i])
            automaton_empty(a, states[i], to);
    }
    if (c->count && !a->lack && !a->full)
        automaton_empty(a, from, states[0]);
    for (size_t i = 0; i < c->count && !a->lack && !a->full; i++)
        for (uint32_t e = c->first[i]; e != AUTOMATON_NONE; e = c->edges[e].next) {
            const codepoints_edge *edge = &c->edges[e];
            if (json)
                json_range(a, states[i], edge->low, edge->high, states[edge->to], tails[edge->to]);
            else
                utf8_range(a, states[i], edge->low, edge->high, states[edge->to], tails[edge->to]);
        }
    free(states);
    free(tails);
}
