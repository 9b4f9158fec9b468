/* Classes of characters in regular expressions: Oniguruma's have more names than PCRE2's, mean scripts without their
 * extensions, and know newer characters. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/oniguruma.h"
#include "text/unicode.h"

#include <pcre2.h>
#include <stdio.h>
#include <string.h>

/* Letters that became alphabetic after their first version of Unicode, and letters that became lower case. */
#define LATER_ALPHABETIC "\\x{363}-\\x{36f}\\x{c04}\\x{f82}\\x{f83}\\x{1dd3}-\\x{1de6}\\x{11080}\\x{11081}"
#define LATER_LOWERCASE "\\x{10fc}\\x{a7f2}-\\x{a7f4}\\x{ab69}\\x{1e030}-\\x{1e06d}"

/* How a class is put together. With what lies between commas in categories come the newer characters of those general
 * categories, by their beginnings; "alphabetic" is the property. */
typedef struct class_name {
    const char *name, *items, *categories;
} class_name;

#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define LATIN "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

/* Names of Oniguruma's in lower case, without spaces, '-' and '_'. */
static const class_name class_names[] = {
    {"alpha", "\\p{Alphabetic}" LATER_ALPHABETIC, "alphabetic"},
    {"alphabetic", "\\p{Alphabetic}" LATER_ALPHABETIC, "alphabetic"},
    {"alnum", "\\p{Alphabetic}\\p{Nd}" LATER_ALPHABETIC, "alphabetic,Nd"},
    {"ascii", "\\x{0}-\\x{7f}", ""},
    {"blank", "\\p{Zs}\\t", ""},
    {"cntrl", "\\p{Cc}", ""},
    {"digit", "\\p{Nd}", "Nd"},
    {"graph", "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}", "L,M,N,P,S,Cf"},
    {"lower", "\\p{Lowercase}" LATER_LOWERCASE, "Ll"},
    {"lowercase", "\\p{Lowercase}" LATER_LOWERCASE, "Ll"},
    {"print", "\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{Cf}\\p{Co}\\p{Zs}", "L,M,N,P,S,Cf"},
    {"punct", "\\p{P}\\p{S}", "P,S"},
    {"space", "\\p{White_Space}", ""},
    {"whitespace", "\\p{White_Space}", ""},
    {"upper", "\\p{Uppercase}", "Lu"},
    {"uppercase", "\\p{Uppercase}", "Lu"},
    {"xdigit", "0-9A-Fa-f", ""},
    {"word", WORD, "alphabetic,M,Nd"},
    {"letter", "\\p{L}", "L"},
    {"casedletter", "\\p{Lu}\\p{Ll}\\p{Lt}", "Lu,Ll,Lt"},
    {"lc", "\\p{Lu}\\p{Ll}\\p{Lt}", "Lu,Ll,Lt"},
    {"uppercaseletter", "\\p{Lu}", "Lu"},
    {"lowercaseletter", "\\p{Ll}", "Ll"},
    {"titlecaseletter", "\\p{Lt}", ""},
    {"modifierletter", "\\p{Lm}", "Lm"},
    {"otherletter", "\\p{Lo}", "Lo"},
    {"mark", "\\p{M}", "M"},
    {"combiningmark", "\\p{M}", "M"},
    {"nonspacingmark", "\\p{Mn}", "Mn"},
    {"spacingmark", "\\p{Mc}", "Mc"},
    {"enclosingmark", "\\p{Me}", ""},
    {"number", "\\p{N}", "N"},
    {"decimalnumber", "\\p{Nd}", "Nd"},
    {"letternumber", "\\p{Nl}", ""},
    {"othernumber", "\\p{No}", "No"},
    {"punctuation", "\\p{P}", "P"},
    {"connectorpunctuation", "\\p{Pc}", ""},
    {"dashpunctuation", "\\p{Pd}", "Pd"},
    {"openpunctuation", "\\p{Ps}", ""},
    {"closepunctuation", "\\p{Pe}", ""},
    {"initialpunctuation", "\\p{Pi}", ""},
    {"finalpunctuation", "\\p{Pf}", ""},
    {"otherpunctuation", "\\p{Po}", "Po"},
    {"symbol", "\\p{S}", "S"},
    {"mathsymbol", "\\p{Sm}", "Sm"},
    {"currencysymbol", "\\p{Sc}", ""},
    {"modifiersymbol", "\\p{Sk}", "Sk"},
    {"othersymbol", "\\p{So}", "So"},
    {"separator", "\\p{Z}", ""},
    {"spaceseparator", "\\p{Zs}", ""},
    {"lineseparator", "\\p{Zl}", ""},
    {"paragraphseparator", "\\p{Zp}", ""},
    {"control", "\\p{Cc}", ""},
    {"format", "\\p{Cf}", "Cf"},
    {"privateuse", "\\p{Co}", ""},
};

/* Does a list such as "alphabetic,Nd" name what the run is? */
static bool is_wanted(const unicode_newer_run *run, const char *list)
{
    for (size_t n; *list; list += n + (list[n] == ',')) {
        n = strcspn(list, ",");
        if (n > 2 ? run->alphabetic : strncmp(list, run->category, n) == 0)
            return true;
    }
    return false;
}

static bool add_string(buffer *b, const char *text)
{
    return buffer_add(b, text, strlen(text));
}

static bool add_run(buffer *b, const unicode_newer_run *run)
{
    char text[40];
    snprintf(text, sizeof text, "\\x{%x}-\\x{%x}", (unsigned)run->first, (unsigned)run->last);
    return add_string(b, text);
}

/* The characters that came into general categories, or into a script where that is given. */
static bool add_newer(buffer *b, const char *categories, const char *script)
{
    size_t count;
    const unicode_newer_run *runs = unicode_newer(&count);
    bool memory = true;
    for (size_t i = 0; i < count && memory; i++)
        if (script ? strcmp(script, runs[i].script) == 0 : is_wanted(&runs[i], categories))
            memory = add_run(b, &runs[i]);
    return memory;
}

static bool add_named(oniguruma_class *class, const class_name *name)
{
    return add_string(&class->items, name->items) && add_newer(&class->items, name->categories, NULL);
}

static const class_name *find_name(const char *name)
{
    for (size_t i = 0; i < sizeof class_names / sizeof class_names[0]; i++)
        if (strcmp(class_names[i].name, name) == 0)
            return &class_names[i];
    return NULL;
}

bool oniguruma_class_escape(char letter, bool outside, oniguruma_class *class, bool *memory)
{
    static const char *const names[] = {"digit", "space", "word", "xdigit"};
    const char *letters = "dDsSwWhH", *at = strchr(letters, letter);
    if (!letter || !at)
        return false;
    const class_name *name = find_name(names[(at - letters) / 2]);
    class->negated = (at - letters) % 2;
    *memory =
        add_named(class, name) && (!outside || strcmp(name->name, "word") != 0 || add_string(&class->items, LATIN));
    return *memory;
}

bool oniguruma_class_posix(const char *name, size_t length, oniguruma_class *class, bool *memory)
{
    char plain[16];
    class->negated = length && *name == '^';
    name += class->negated;
    length -= class->negated;
    if (length >= sizeof plain)
        return false;
    memcpy(plain, name, length);
    plain[length] = '\0';
    static const char *const posix[] = {"alpha", "alnum", "ascii", "blank", "cntrl", "digit",  "graph",
                                        "lower", "print", "punct", "space", "upper", "xdigit", "word"};
    bool known = false;
    for (size_t i = 0; i < sizeof posix / sizeof posix[0]; i++)
        known = known || strcmp(posix[i], plain) == 0;
    if (!known)
        return false;
    *memory = add_named(class, find_name(plain));
    return *memory;
}

/* Is it a script's name? PCRE2 says so; it would take a name without "sc:" for the script with its extensions. */
static bool is_script(const char *name, bool *memory)
{
    char pattern[64];
    int code = 0;
    PCRE2_SIZE offset;
    snprintf(pattern, sizeof pattern, "\\p{sc:%s}", name);
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &offset, NULL);
    pcre2_code_free(compiled);
    *memory = compiled || code != PCRE2_ERROR_HEAP_FAILED;
    return compiled != NULL;
}

/* A name as Oniguruma compares it. False: it is too long, or holds what no name does. */
static bool fold_name(const char *name, size_t length, char *plain, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < length; i++) {
        char c = name[i];
        if (c == ' ' || c == '_' || c == '-')
            continue;
        c = (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
        if (n + 1 >= size || !((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')))
            return false;
        plain[n++] = c;
    }
    plain[n] = '\0';
    return n > 0;
}

static bool is_category(const char *plain)
{
    return strchr("cflmnpsz", plain[0]) && (!plain[1] || (!plain[2] && strcmp(plain, "cs") != 0));
}

/* The items of a name that class_names lacks. */
static bool add_other(const char *plain, buffer *items)
{
    char text[64], category[3] = {(char)(plain[0] - 'a' + 'A'), plain[1], '\0'};
    if (is_category(plain)) {
        snprintf(text, sizeof text, "\\p{%s}", category);
        /* What PCRE2 does not know yet counts as unassigned there: nothing to add. */
        return add_string(items, text) &&
               (plain[0] == 'c' && plain[1] != 'f' ? true : add_newer(items, category, NULL));
    }
    bool memory, script = is_script(plain, &memory);
    snprintf(text, sizeof text, "\\p{%s%s}", script ? "sc:" : "", plain);
    return memory && add_string(items, text) && (!script || add_newer(items, "", plain));
}

bool oniguruma_class_property(const char *name, size_t length, bool negated, bool outside, oniguruma_class *class,
                              bool *memory)
{
    char plain[48];
    bool reversed = length && *name == '^';
    if (!fold_name(name + reversed, length - reversed, plain, sizeof plain))
        return false;
    class->negated = negated != reversed;
    /* The abbreviation of a category; in [: :] it takes symbols, too. */
    const class_name *known = find_name(strcmp(plain, "punct") == 0 ? "punctuation" : plain);
    bool latin = known && outside && strcmp(plain, "word") == 0;
    *memory = (!latin || add_string(&class->items, LATIN)) &&
              (known ? add_named(class, known) : add_other(plain, &class->items));
    return *memory;
}
