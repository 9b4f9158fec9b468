/* Numbers and quoted texts. */
#include "template/literals.h"
#include "template/chars.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static _Noreturn void too_large(sandbox *s)
{
    sandbox_fail(s, "whole numbers of more than 64 bits are not supported; use a float");
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'z' ? c - 'a' + 10
           : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                  : 99;
}

/* Digits with single underscores between them; returns where they end. */
static size_t digits_end(const char *text, size_t size, size_t at, int base)
{
    while (at < size && (digit_of(text[at]) < base || (text[at] == '_' && at > 0 && digit_of(text[at - 1]) < base &&
                                                       at + 1 < size && digit_of(text[at + 1]) < base)))
        at++;
    return at;
}

static int64_t number_of(sandbox *s, const char *text, size_t size, int base)
{
    int64_t number = 0;
    for (size_t i = 0; i < size; i++)
        if (text[i] != '_' && (__builtin_mul_overflow(number, base, &number) ||
                               __builtin_add_overflow(number, digit_of(text[i]), &number)))
            too_large(s);
    return number;
}

static double real_of(sandbox *s, const char *text, size_t size)
{
    char *plain = sandbox_alloc(s, size + 1);
    size_t n = 0;
    for (size_t i = 0; i < size; i++)
        if (text[i] != '_')
            plain[n++] = text[i];
    return strtod(plain, NULL);
}

/* Where a fraction or an exponent behind whole digits ends; the same place when there is none. */
static size_t real_end(const char *text, size_t size, size_t at)
{
    size_t end = at;
    if (at + 1 < size && text[at] == '.' && isdigit((unsigned char)text[at + 1]))
        end = digits_end(text, size, at + 1, 10);
    if (end < size && (text[end] == 'e' || text[end] == 'E')) {
        size_t power = end + 1;
        power += power < size && (text[power] == '+' || text[power] == '-');
        if (power < size && isdigit((unsigned char)text[power]))
            end = digits_end(text, size, power, 10);
    }
    return end;
}

value literals_number(sandbox *s, const char *text, size_t size, bool behind_dot, size_t *used)
{
    size_t whole = digits_end(text, size, 0, 10), end = behind_dot ? whole : real_end(text, size, whole);
    if (end > whole) {
        *used = end;
        return value_float(real_of(s, text, end));
    }
    if (size > 2 && text[0] == '0' && strchr("bBoOxX", text[1]) && text[1]) {
        int base = tolower((unsigned char)text[1]) == 'b' ? 2 : tolower((unsigned char)text[1]) == 'o' ? 8 : 16;
        end = digits_end(text, size, 2, base);
        if (end > 2) {
            *used = end;
            return value_int(number_of(s, text + 2, end - 2, base));
        }
    }
    if (text[0] == '0') /* a number does not begin with 0 */
        for (whole = 1; whole < size && (text[whole] == '0' || text[whole] == '_');)
            whole++;
    *used = whole;
    return value_int(number_of(s, text, whole, 10));
}

/* \xNN, \uNNNN, \UNNNNNNNN and octal ones: the digits of a character's number. */
static size_t coded(sandbox *s, const char *text, size_t left, size_t digits, int base, int32_t *code)
{
    size_t n = 0;
    uint32_t number = 0;
    while (n < digits && n < left && digit_of(text[n]) < base)
        number = number * (uint32_t)base + (uint32_t)digit_of(text[n++]);
    if (base == 16 && n < digits)
        sandbox_fail(s, "truncated escape in a text; write all %zu digits", digits);
    if (number > 0x10ffff || (number >= 0xd800 && number < 0xe000))
        sandbox_fail(s, "the escape of character %#x in a text is not supported; write the character itself", number);
    *code = (int32_t)number;
    return n;
}

/* The escape behind a backslash; returns its bytes. */
static size_t unescape(sandbox *s, piece_text *to, const char *text, size_t left)
{
    static const char letters[] = "abfnrtv\\'\"", meant[] = "\a\b\f\n\r\t\v\\'\"";
    const char *letter = strchr(letters, text[0]);
    char utf8[4];
    int32_t code = 0;
    size_t used = 0;
    if (text[0] == '\n')
        return 1;
    if (text[0] && letter) {
        repr_add(s, to, &meant[letter - letters], 1);
        return 1;
    }
    if (text[0] == 'N')
        sandbox_fail(s, "the escape \\N in a text is not supported; write the character itself");
    if (text[0] == 'x' || text[0] == 'u' || text[0] == 'U')
        used = 1 + coded(s, text + 1, left - 1, text[0] == 'x' ? 2 : text[0] == 'u' ? 4 : 8, 16, &code);
    else if (text[0] >= '0' && text[0] <= '7')
        used = coded(s, text, left, 3, 8, &code);
    else
        repr_add_text(s, to, "\\"); /* what is no escape stays */
    if (used)
        repr_add(s, to, utf8, chars_write(code, utf8));
    return used;
}

value literals_string(sandbox *s, const char *text, size_t size)
{
    piece_text to = {0};
    for (size_t i = 0; i < size;) {
        const char *slash = memchr(text + i, '\\', size - i);
        size_t plain = slash ? (size_t)(slash - text) : size;
        repr_add(s, &to, text + i, plain - i);
        i = plain + 1;
        if (slash && i < size)
            i += unescape(s, &to, text + i, size - i);
    }
    return repr_done(s, &to);
}

/* The text without white space around it and its sign. */
static const char *bare(sandbox *s, const string *text, size_t *size, bool *negative)
{
    size_t from = 0, to = text->size;
    sandbox_step(s, to); /* each is looked at several times */
    for (size_t at = 0; from < to && chars_is_space(chars_next(s, text->data, to, &at));)
        from = at;
    while (to > from && isspace((unsigned char)text->data[to - 1]))
        to--;
    *negative = from < to && text->data[from] == '-';
    from += from < to && (text->data[from] == '-' || text->data[from] == '+');
    *size = to - from;
    return text->data + from;
}

bool literals_int(sandbox *s, const string *text, int base, int64_t *number)
{
    size_t size;
    bool negative;
    const char *digits = bare(s, text, &size, &negative);
    if (size > 2 && digits[0] == '0' &&
        strchr(base == 2    ? "bB"
               : base == 8  ? "oO"
               : base == 16 ? "xX"
                            : "",
               digits[1])) {
        digits += 2;
        size -= 2;
    }
    if (size == 0 || digit_of(digits[0]) >= base || digits_end(digits, size, 0, base) != size)
        return false;
    *number = number_of(s, digits, size, base) * (negative ? -1 : 1);
    return true;
}

bool literals_float(sandbox *s, const string *text, double *number)
{
    size_t size;
    bool negative;
    const char *digits = bare(s, text, &size, &negative);
    char *plain = sandbox_alloc(s, size + 1), *end;
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        if (digits[i] == '_' && (i == 0 || i + 1 == size || !isdigit((unsigned char)digits[i - 1]) ||
                                 !isdigit((unsigned char)digits[i + 1])))
            return false;
        if (digits[i] != '_')
            plain[n++] = digits[i];
    }
    if (n == 0 || isspace((unsigned char)plain[0]) || strpbrk(plain, "xX(+-") == plain || strchr(plain, 'x') ||
        strchr(plain, 'X') || strchr(plain, '('))
        return false;
    *number = strtod(plain, &end) * (negative ? -1 : 1);
    return (size_t)(end - plain) == n;
}
