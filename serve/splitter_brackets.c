/* Brackets byte by byte; see splitter_brackets.h. */
#include "splitter_brackets.h"

/* Opens and closes strings; true: c is within one, or of its marks. */
static bool in_string(splitter_brackets *b, char c)
{
    if (b->mark) {
        b->matched = c == b->mark[b->matched] ? b->matched + 1 : c == b->mark[0];
        if (!b->mark[b->matched]) {
            b->quote = b->quote ? '\0' : c;
            b->matched = 0;
        }
        return b->quote || b->matched;
    }
    if (!b->quote) {
        b->quote = c == '"' || c == '\'' ? c : '\0';
        return b->quote;
    }
    if (b->escaped || c == '\\')
        b->escaped = !b->escaped;
    else if (c == b->quote)
        b->quote = '\0';
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
