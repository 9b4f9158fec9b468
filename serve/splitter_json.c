/* JSON byte by byte; see splitter_json.h. */
#include "splitter_json.h"

#include <ctype.h>
#include <string.h>

static splitter_json_result go(splitter_json *j, splitter_json_state state)
{
    j->state = state;
    return SCAN_MORE;
}

static splitter_json_result ended(splitter_json *j)
{
    j->state = SCAN_AFTER;
    return j->depth ? SCAN_MORE : SCAN_END;
}

static splitter_json_result open_bracket(splitter_json *j, char c)
{
    if (j->depth == SPLITTER_JSON_DEPTH)
        return SCAN_WRONG;
    j->open[j->depth++] = c;
    return go(j, c == '{' ? SCAN_FIRST_KEY : SCAN_FIRST_VALUE);
}

static splitter_json_result close_bracket(splitter_json *j, char c)
{
    if (!j->depth || j->open[j->depth - 1] != (c == '}' ? '{' : '['))
        return SCAN_WRONG;
    j->depth--;
    return ended(j);
}

static splitter_json_result begin_string(splitter_json *j, bool key)
{
    j->key = key;
    return go(j, SCAN_STRING);
}

static splitter_json_result begin_word(splitter_json *j, const char *rest)
{
    j->word = rest;
    return go(j, SCAN_WORD);
}

static splitter_json_result begin_value(splitter_json *j, char c)
{
    switch (c) {
    case '{':
    case '[':
        return open_bracket(j, c);
    case '"':
        return begin_string(j, false);
    case '-':
        return go(j, SCAN_MINUS);
    case '0':
        return go(j, SCAN_ZERO);
    case 't':
        return begin_word(j, "rue");
    case 'f':
        return begin_word(j, "alse");
    case 'n':
        return begin_word(j, "ull");
    default:
        return c >= '1' && c <= '9' ? go(j, SCAN_DIGITS) : SCAN_WRONG;
    }
}

static splitter_json_result behind_value(splitter_json *j, char c)
{
    if (c == '}' || c == ']')
        return close_bracket(j, c);
    if (c != ',' || !j->depth)
        return SCAN_WRONG;
    return go(j, j->open[j->depth - 1] == '{' ? SCAN_NEXT_KEY : SCAN_VALUE);
}

static splitter_json_result in_string(splitter_json *j, char c)
{
    if (c == '"')
        return j->key ? go(j, SCAN_COLON) : ended(j);
    if (c == '\\')
        return go(j, SCAN_ESCAPE);
    return (unsigned char)c < 0x20 ? SCAN_WRONG : SCAN_MORE;
}

static splitter_json_result in_escape(splitter_json *j, char c)
{
    if (j->state == SCAN_HEX)
        return !isxdigit((unsigned char)c) ? SCAN_WRONG : --j->left ? SCAN_MORE : go(j, SCAN_STRING);
    j->left = 4;
    if (c == 'u')
        return go(j, SCAN_HEX);
    return c && strchr("\"\\/bfnrt", c) ? go(j, SCAN_STRING) : SCAN_WRONG;
}

/* What is none of a number's bytes ends it where it may end. */
static splitter_json_result in_number(splitter_json *j, char c)
{
    bool digit = c >= '0' && c <= '9', e = c == 'e' || c == 'E';
    switch (j->state) {
    case SCAN_MINUS:
        return !digit ? SCAN_WRONG : go(j, c == '0' ? SCAN_ZERO : SCAN_DIGITS);
    case SCAN_POINT:
    case SCAN_FRACTION:
        if (digit)
            return go(j, SCAN_FRACTION);
        if (j->state == SCAN_POINT)
            return SCAN_WRONG;
        break;
    case SCAN_E:
    case SCAN_SIGN:
    case SCAN_EXPONENT:
        if (digit)
            return go(j, SCAN_EXPONENT);
        if (j->state == SCAN_E && (c == '+' || c == '-'))
            return go(j, SCAN_SIGN);
        if (j->state != SCAN_EXPONENT)
            return SCAN_WRONG;
        break;
    default:
        if (digit)
            return j->state == SCAN_DIGITS ? SCAN_MORE : SCAN_WRONG;
        if (c == '.')
            return go(j, SCAN_POINT);
    }
    if (e && j->state != SCAN_EXPONENT)
        return go(j, SCAN_E);
    j->state = SCAN_AFTER;
    return splitter_space(c) ? SCAN_MORE : behind_value(j, c);
}

splitter_json_result splitter_json_step(splitter_json *j, char c)
{
    if (j->state <= SCAN_AFTER && splitter_space(c))
        return SCAN_MORE;
    switch (j->state) {
    case SCAN_FIRST_VALUE:
        return c == ']' ? close_bracket(j, c) : begin_value(j, c);
    case SCAN_VALUE:
        return begin_value(j, c);
    case SCAN_FIRST_KEY:
        return c == '}' ? close_bracket(j, c) : c == '"' ? begin_string(j, true) : SCAN_WRONG;
    case SCAN_NEXT_KEY:
        return c == '"' ? begin_string(j, true) : SCAN_WRONG;
    case SCAN_COLON:
        return c == ':' ? go(j, SCAN_VALUE) : SCAN_WRONG;
    case SCAN_AFTER:
        return behind_value(j, c);
    case SCAN_STRING:
        return in_string(j, c);
    case SCAN_ESCAPE:
    case SCAN_HEX:
        return in_escape(j, c);
    case SCAN_WORD:
        if (*j->word++ != c)
            return SCAN_WRONG;
        return *j->word ? SCAN_MORE : ended(j);
    default:
        return in_number(j, c);
    }
}

json_t *splitter_json_load(const char *bytes, size_t length, bool *memory)
{
    json_error_t err = {0};
    /* Integers that the machine has stay some; longer ones, and a NUL in a string, are JSON, too. */
    json_t *value = json_loadb(bytes, length, JSON_DECODE_ANY | JSON_ALLOW_NUL, &err);
    if (!value && json_error_code(&err) == json_error_numeric_overflow)
        value = json_loadb(bytes, length, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &err);
    /* Where jansson lacks memory it often says nothing. */
    if (!value && (!err.text[0] || json_error_code(&err) == json_error_out_of_memory))
        *memory = false;
    return value;
}

bool splitter_json_is_object(const char *bytes, size_t length, bool *memory)
{
    json_t *value = splitter_json_load(bytes, length, memory);
    bool is = json_is_object(value);
    json_decref(value);
    return is;
}

bool splitter_json_add_object(splitter_text *out, const char *bytes, size_t length, bool *memory)
{
    json_t *value = splitter_json_load(bytes, length, memory);
    if (json_is_string(value)) {
        bytes = json_string_value(value);
        length = json_string_length(value);
    }
    bool is = json_is_object(value) || (json_is_string(value) && splitter_json_is_object(bytes, length, memory));
    bool ok = is && splitter_text_add(out, bytes, length);
    *memory = *memory && ok == is;
    json_decref(value);
    return ok;
}
