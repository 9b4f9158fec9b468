/* Brackets byte by byte; see splitter_brackets.h. */
#include "splitter_brackets.h"

static bool between_marks(splitter_brackets *b, char c)
{
    b->matched = c == b->mark[b->matched] ? b->matched + 1 : c == b->mark[0];
    if (!b->mark[b->matched]) {
        b->quote = b->quote ? '\0' : c;
        b->matched = 0;
    }
    return b->quote || b->matched;
}

/* In a string. Two quotes at once are an empty one, unless a third follows: then three end it. false: it has ended
 * before c. */
static bool in_quotes(splitter_brackets *b, char c)
{
    bool quote = c == b->quote && !b->escaped, empty = !b->triple && b->run == 2;
    if (empty && !quote) {
        b->quote = '\0';
        return false;
    }
    b->triple |= empty;
    b->escaped = c == '\\' && !b->escaped;
    b->run = quote && !empty ? b->run + 1 : 0;
    if (b->run == (b->triple ? 3 : 1))
        b->quote = '\0';
    return true;
}

/* Opens and closes strings; true: c is within one, or of its marks. */
static bool in_string(splitter_brackets *b, char c)
{
    if (b->mark)
        return between_marks(b, c);
    if (b->quote && in_quotes(b, c))
        return true;
    if (c != '"' && c != '\'')
        return false;
    b->quote = c;
    b->run = 1;
    b->escaped = b->triple = false;
    return true;
}

bool splitter_brackets_step(splitter_brackets *b, char c)
{
    if (in_string(b, c))
        return false;
    if (c == '(' || c == '[' || c == '{')
        b->depth++;
    return (c == ')' || c == ']' || c == '}') && --b->depth <= 0;
}
