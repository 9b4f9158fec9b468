/* A slow and simple validator of JSON schemas. What it does not know it ends the program for. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "validate.h"

#include <arpa/inet.h>
#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void unknown(const char *what, const char *word)
{
    fprintf(stderr, "the validator does not know %s '%s'\n", what, word);
    exit(1);
}

bool validate_pattern(const char *pattern, const char *text, bool whole)
{
    int number;
    PCRE2_SIZE at;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_ALT_BSUX | PCRE2_DOLLAR_ENDONLY |
                                         (whole ? PCRE2_ANCHORED | PCRE2_ENDANCHORED : 0),
                                     &number, &at, NULL);
    if (!code)
        unknown("the pattern", pattern);
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(code, NULL);
    bool matches = pcre2_match(code, (PCRE2_SPTR)text, strlen(text), 0, 0, data, NULL) >= 0;
    pcre2_match_data_free(data);
    pcre2_code_free(code);
    return matches;
}

/* ---- formats: by hand, where the grammar has an expression ---------------------------------------------------------
 */

static bool is_date(const char *text, size_t length)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int y, m, d, end = 0;
    if (length != 10 || sscanf(text, "%4d-%2d-%2d%n", &y, &m, &d, &end) != 3 || end != 10 || m < 1 || m > 12 || y < 1)
        return false;
    bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
    return d >= 1 && d <= days[m - 1] + (m == 2 && leap);
}

static bool is_time(const char *text)
{
    int h, m, s, end = 0, zone_h, zone_m, zone_end = 0;
    if (sscanf(text, "%2d:%2d:%2d%n", &h, &m, &s, &end) != 3 || end != 8 || h > 23 || m > 59 || s > 59)
        return false;
    text += 8;
    if (*text == '.')
        text += 1 + strspn(text + 1, "0123456789");
    if (strcmp(text, "Z") == 0)
        return true;
    return (*text == '+' || *text == '-') && sscanf(text + 1, "%2d:%2d%n", &zone_h, &zone_m, &zone_end) == 2 &&
           zone_end == 5 && !text[6] && zone_h < 24 && zone_m < 60;
}

static bool is_host(const char *text)
{
    size_t label = 0;
    for (const char *c = text;; c++) {
        bool alone = c == text || c[-1] == '.' || c[1] == '.' || !c[1];
        if (*c == '.' || !*c) {
            if (label < 1 || label > 63)
                return false;
            label = 0;
            if (!*c)
                return true;
            continue;
        }
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
        if (!letter && (*c != '-' || alone))
            return false;
        label++;
    }
}

static bool is_uuid(const char *text)
{
    for (int i = 0; i < 36; i++)
        if (i == 8 || i == 13 || i == 18 || i == 23 ? text[i] != '-'
                                                    : !text[i] || !strchr("0123456789abcdefABCDEF", text[i]))
            return false;
    return !text[36];
}

/* Units in their order, each once, with a number before it; at least one, behind a T too. */
static bool is_duration(const char *text)
{
    const char *units = "YMD";
    bool any = false, week = false;
    if (*text++ != 'P')
        return false;
    for (; *text; text++) {
        if (*text == 'T' && strcmp(units, "HMS") != 0 && !week) {
            units = "HMS";
            any = false;
            text++;
        }
        size_t digits = strspn(text, "0123456789");
        text += digits;
        if (digits && *text == 'W' && !any && !text[1])
            return true;
        const char *unit = *text ? strchr(units, *text) : NULL;
        if (!digits || !unit)
            return false;
        units = unit + 1 == units + strlen(units) && *unit != 'S' ? "" : unit + 1;
        any = true;
    }
    return any;
}

static bool is_mail(const char *text)
{
    const char *at = strrchr(text, '@');
    return at && at > text && *text != '.' && at[-1] != '.' && !strstr(text, "..") && is_host(at + 1);
}

static bool fits_format(const char *format, const char *text)
{
    unsigned char address[16];
    if (strcmp(format, "date") == 0)
        return is_date(text, strlen(text));
    if (strcmp(format, "time") == 0)
        return is_time(text);
    if (strcmp(format, "date-time") == 0)
        return strlen(text) > 11 && is_date(text, 10) && text[10] == 'T' && is_time(text + 11);
    if (strcmp(format, "uuid") == 0)
        return is_uuid(text);
    if (strcmp(format, "ipv4") == 0 || strcmp(format, "ipv6") == 0)
        return inet_pton(format[3] == '4' ? AF_INET : AF_INET6, text, address) == 1;
    if (strcmp(format, "hostname") == 0)
        return is_host(text);
    if (strcmp(format, "email") == 0)
        return is_mail(text);
    if (strcmp(format, "duration") == 0)
        return is_duration(text);
    if (strcmp(format, "uri") == 0)
        return strchr(text, ':') > text && !strpbrk(text, " \"<>\\^`{|}");
    return true;
}

/* ---- keywords
 * ---------------------------------------------------------------------------------------------------------- */

static bool is_type(const char *type, const json_t *v)
{
    double number = json_number_value(v);
    return (strcmp(type, "null") == 0 && json_is_null(v)) || (strcmp(type, "boolean") == 0 && json_is_boolean(v)) ||
           (strcmp(type, "object") == 0 && json_is_object(v)) || (strcmp(type, "array") == 0 && json_is_array(v)) ||
           (strcmp(type, "string") == 0 && json_is_string(v)) || (strcmp(type, "number") == 0 && json_is_number(v)) ||
           (strcmp(type, "integer") == 0 && json_is_number(v) && number == floor(number));
}

static bool fits_type(const json_t *type, const json_t *v)
{
    bool any = json_is_string(type) && is_type(json_string_value(type), v);
    for (size_t i = 0; i < json_array_size(type); i++)
        any = any || is_type(json_string_value(json_array_get(type, i)), v);
    return any;
}

static bool equal(const json_t *a, const json_t *b)
{
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b) : json_equal(a, b);
}

static bool is_among(const json_t *list, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (equal(json_array_get(list, i), v))
            return true;
    return false;
}

static size_t characters(const json_t *v)
{
    size_t n = 0;
    for (const char *c = json_string_value(v); *c; c++)
        n += (*c & 0xc0) != 0x80;
    return n;
}

static bool fits_object(const json_t *root, const json_t *node, const json_t *v)
{
    const json_t *properties = json_object_get(node, "properties"),
                 *others = json_object_get(node, "additionalProperties");
    const json_t *required = json_object_get(node, "required");
    const char *name;
    json_t *value;
    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_object_get(v, json_string_value(json_array_get(required, i))))
            return false;
    json_object_foreach ((json_t *)(uintptr_t)v, name, value) {
        const json_t *own = json_object_get(properties, name);
        if (own ? !validate(root, own, value) : others && !validate(root, others, value))
            return false;
    }
    return true;
}

static bool fits_array(const json_t *root, const json_t *node, const json_t *v)
{
    const json_t *prefix = json_object_get(node, "prefixItems"), *items = json_object_get(node, "items");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *own = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
        if (own && !validate(root, own, json_array_get(v, i)))
            return false;
    }
    return true;
}

/* "#", then names and numbers; %XX and tildes as far as the tests have them. */
static const json_t *target(const json_t *root, const char *ref)
{
    const json_t *node = root;
    char step[200];
    for (const char *c = ref + 1; *c == '/';) {
        size_t n = 0;
        for (c++; *c && *c != '/'; c++) {
            if (c[0] == '%' && c[1] == '2' && c[2] == '0') {
                step[n++] = ' ';
                c += 2;
            } else if (*c == '~') {
                step[n++] = *++c == '0' ? '~' : '/';
            } else {
                step[n++] = *c;
            }
        }
        step[n] = '\0';
        node = json_is_array(node) ? json_array_get(node, (size_t)atoi(step)) : json_object_get(node, step);
    }
    if (!node)
        unknown("the reference", ref);
    return node;
}

static size_t count_fits(const json_t *root, const json_t *list, const json_t *v)
{
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        n += validate(root, json_array_get(list, i), v);
    return n;
}

static bool fits_number(const char *word, double bound, double n)
{
    if (strcmp(word, "multipleOf") == 0)
        return fabs(n / bound - round(n / bound)) <= 1e-9 * fmax(1, fabs(n / bound));
    return strcmp(word, "minimum") == 0            ? n >= bound
           : strcmp(word, "maximum") == 0          ? n <= bound
           : strcmp(word, "exclusiveMinimum") == 0 ? n > bound
                                                   : n < bound;
}

static bool is_one_of(const char *word, const char *list)
{
    char padded[64];
    snprintf(padded, sizeof padded, " %s ", word);
    return strstr(list, padded) != NULL;
}

static bool fits_keyword(const json_t *root, const json_t *node, const char *word, const json_t *is, const json_t *v)
{
    if (is_one_of(word,
                  " $defs definitions title description default examples discriminator $schema uniqueItems x-note "))
        return true;
    if (is_one_of(word, " minimum maximum exclusiveMinimum exclusiveMaximum multipleOf "))
        return !json_is_number(v) || fits_number(word, json_number_value(is), json_number_value(v));
    if (is_one_of(word, " properties required additionalProperties "))
        return !json_is_object(v) || fits_object(root, node, v);
    if (is_one_of(word, " prefixItems items "))
        return !json_is_array(v) || fits_array(root, node, v);
    if (is_one_of(word, " minItems maxItems "))
        return !json_is_array(v) || (word[1] == 'i' ? (double)json_array_size(v) >= json_number_value(is)
                                                    : (double)json_array_size(v) <= json_number_value(is));
    if (is_one_of(word, " minLength maxLength "))
        return !json_is_string(v) || (word[1] == 'i' ? (double)characters(v) >= json_number_value(is)
                                                     : (double)characters(v) <= json_number_value(is));
    if (strcmp(word, "pattern") == 0)
        return !json_is_string(v) || validate_pattern(json_string_value(is), json_string_value(v), false);
    if (strcmp(word, "format") == 0)
        return !json_is_string(v) || fits_format(json_string_value(is), json_string_value(v));
    if (strcmp(word, "type") == 0)
        return fits_type(is, v);
    if (strcmp(word, "enum") == 0)
        return is_among(is, v);
    if (strcmp(word, "const") == 0)
        return equal(is, v);
    if (strcmp(word, "$ref") == 0)
        return validate(root, target(root, json_string_value(is)), v);
    if (strcmp(word, "anyOf") == 0 || strcmp(word, "oneOf") == 0)
        return word[0] == 'a' ? count_fits(root, is, v) > 0 : count_fits(root, is, v) == 1;
    if (strcmp(word, "allOf") == 0)
        return count_fits(root, is, v) == json_array_size(is);
    unknown("the keyword", word);
    return false;
}

bool validate(const json_t *root, const json_t *node, const json_t *value)
{
    const char *word;
    json_t *is;
    if (json_is_boolean(node))
        return json_is_true(node);
    json_object_foreach ((json_t *)(uintptr_t)node, word, is)
        if (!fits_keyword(root, node, word, is, value))
            return false;
    return true;
}
