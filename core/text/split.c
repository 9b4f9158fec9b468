/* Pre-tokenizers that need no regular expression: they look at one character at a time. */
#include "text/buffer.h"
#include "text/pretok.h"
#include "text/spans.h"
#include "text/unicode.h"
#include "text/utf8.h"

static bool is_cut(const pretok_op *op, int32_t code)
{
    return op->class ? op->class(code) : code == op->code;
}

bool split_cut(split_cutter *c, size_t start, size_t end, bool match)
{
    bool join = false, added = true;
    span *last = c->any ? &c->out->spans[c->out->count - 1] : NULL;
    match = match != c->op->invert;
    switch (c->op->behaviour) {
    case PRETOK_ISOLATED:
        break;
    case PRETOK_REMOVED:
        if (match)
            return true;
        break;
    case PRETOK_CONTIGUOUS:
        join = match == c->previous;
        break;
    case PRETOK_WITH_PREVIOUS:
        join = match && !c->previous;
        break;
    case PRETOK_WITH_NEXT:
        if (c->held && match)
            added = buffer_add_piece(c->out, c->held_start, c->held_end, -1);
        else if (c->held)
            start = c->held_start;
        c->held = match;
        c->held_start = start;
        c->held_end = end;
        if (match)
            return added;
        break;
    }
    c->previous = match;
    if (join && last) {
        last->end = end;
        return added;
    }
    c->any = true;
    return added && buffer_add_piece(c->out, start, end, -1);
}

bool split_cut_end(split_cutter *c)
{
    return !c->held || buffer_add_piece(c->out, c->held_start, c->held_end, -1);
}

bool split_class(const pretok_op *op, const char *text, span piece, pieces *out)
{
    split_cutter c = {.op = op, .out = out};
    size_t done = piece.start;
    for (size_t i = piece.start, n; i < piece.end; i += n) {
        utf8_char at = utf8_read(text + i, piece.end - i);
        n = at.length;
        if (!is_cut(op, at.code))
            continue;
        if ((done < i && !split_cut(&c, done, i, false)) || !split_cut(&c, i, i + n, true))
            return false;
        done = i + n;
    }
    return (done >= piece.end || split_cut(&c, done, piece.end, false)) && split_cut_end(&c);
}

/* What a character is for split_words: 0 a space, 1 a part of a word, 2 anything else. */
static int kind_of(int32_t code)
{
    return unicode_is_word(code) ? 1 : utf8_is_space(code) ? 0 : 2;
}

bool split_words(const char *text, span piece, pieces *out)
{
    size_t start = piece.start;
    int last = 0;
    for (size_t i = piece.start; i < piece.end;) {
        utf8_char c = utf8_read(text + i, piece.end - i);
        int kind = kind_of(c.code);
        if (kind != last) {
            if (last && !buffer_add_piece(out, start, i, -1))
                return false;
            start = i;
            last = kind;
        }
        i += c.length;
    }
    return !last || buffer_add_piece(out, start, piece.end, -1);
}

bool split_fixed(const pretok_op *op, const char *text, span piece, pieces *out)
{
    for (size_t start = piece.start, end = start; start < piece.end; start = end) {
        for (int64_t n = 0; n < op->length && end < piece.end; n++)
            end += utf8_read(text + end, piece.end - end).length;
        if (!buffer_add_piece(out, start, end, -1))
            return false;
    }
    return true;
}

/* Japanese syllables count as Han, so that they stay with ideographs. What comes before the first character with a
 * script is dropped, as the library does it. */
bool split_scripts(const char *text, span piece, pieces *out)
{
    int last = -1; /* script of the last character that has one */
    size_t start = SIZE_MAX;
    for (size_t i = piece.start; i < piece.end;) {
        utf8_char c = utf8_read(text + i, piece.end - i);
        int script = unicode_script(c.code);
        if (script != SCRIPT_ANY && script != last) {
            if (start != SIZE_MAX && !buffer_add_piece(out, start, i, -1))
                return false;
            start = i;
        }
        if (script != SCRIPT_ANY)
            last = script;
        i += c.length;
    }
    return start == SIZE_MAX || buffer_add_piece(out, start, piece.end, -1);
}

/* Appends the piece with its spaces replaced, and the replacement in front where it is wanted. Cutting at the
 * replacement is an op of its own. *origin: as in pieces, within the piece. */
bool split_metaspace(const pretok_op *op, const char *text, size_t length, size_t *origin, buffer *out)
{
    bool starts = text[0] == ' ' || utf8_read(text, length).code == op->code;
    bool prepend = !starts && (op->prepend == PRETOK_ALWAYS || (op->prepend == PRETOK_FIRST && *origin > 0));
    size_t before = out->size, follows = 0;
    if (prepend && !utf8_add(out, op->code))
        return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == ' ' ? !utf8_add(out, op->code) : !buffer_add(out, text + i, 1))
            return false;
        if (i + 1 == *origin)
            follows = out->size - before;
    }
    *origin = follows;
    return true;
}
