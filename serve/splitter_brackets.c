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
    if (empty && !quote)
        b->quote = '\0';
    else if (empty)
        b->triple = true;
    else if (quote && !b->triple && !b->run)
        b->quote = '\0';
    if (!quote || empty)
        b->run = 0;
    else if (++b->run == 3)
        b->quote = '\0';
    b->escaped = c == '\\' && !b->escaped;
    return !(empty && !quote);
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
