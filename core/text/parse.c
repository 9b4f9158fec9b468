/* JSON as a tree. Values wait on a stack until the list or object that holds them ends; then they move, side by side,
 * into memory of the tree. Texts lose their escapes where they stand, which never makes them longer. */
#include "text/parse.h"

#include "base/siphash.h"
#include "base/text.h"
#include "text/buffer.h"
#include "text/doc.h"
#include "text/utf8.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_LIMIT 2048
#define BLOCK_NODES 4096

typedef struct parser {
    parse_tree *tree;
    char *data;
    size_t size, at;
    doc_node *stack;
    size_t count, capacity;
    unsigned depth;
    size_t line, line_start; /* number, and where it begins                                          */
    locale_t locale;         /* whose decimal point is a point                                              */
    siphash_key key;
    parse_error *error;
} parser;

static bool fail(parser *p, const char *text)
{
    *p->error = (parse_error){p->line, p->at - p->line_start + 1, text};
    return false;
}

static char peek(const parser *p)
{
    return p->data[p->at]; /* NUL behind the end */
}

static void skip_space(parser *p)
{
    for (char c; (c = peek(p)) == ' ' || c == '\n' || c == '\r' || c == '\t';) {
        p->at++;
        if (c == '\n') {
            p->line++;
            p->line_start = p->at;
        }
    }
}

/* Memory for bytes, aligned for nodes. */
static void *take(parse_tree *tree, size_t bytes)
{
    size_t need = (bytes + sizeof(doc_node) - 1) / sizeof(doc_node) * sizeof(doc_node);
    if (need > tree->room) {
        size_t room = need > BLOCK_NODES * sizeof(doc_node) ? need : BLOCK_NODES * sizeof(doc_node);
        void **grown = buffer_grow(tree->blocks, &tree->block_capacity, tree->block_count + 1, sizeof *grown);
        if (!grown)
            return NULL;
        tree->blocks = grown;
        if (!(grown[tree->block_count] = malloc(room)))
            return NULL;
        tree->block_count++;
        tree->used = 0;
        tree->room = room;
    }
    char *start = (char *)tree->blocks[tree->block_count - 1] + tree->used;
    tree->used += need;
    tree->room -= need;
    return start;
}

static bool push(parser *p, doc_node node)
{
    doc_node *grown = buffer_grow(p->stack, &p->capacity, p->count + 1, sizeof *grown);
    if (!grown)
        return fail(p, NULL);
    p->stack = grown;
    p->stack[p->count++] = node;
    return true;
}

/* ---- texts --------------------------------------------------------------------------------------- */

/* The four digits behind \u; -1: there are none. */
static int32_t read_unit(parser *p)
{
    int32_t unit = 0;
    for (int i = 0; i < 4; i++) {
        int digit = text_hex(peek(p));
        if (digit < 0)
            return -1;
        unit = unit << 4 | digit;
        p->at++;
    }
    return unit;
}

/* Behind \u: a character, of two escapes where it needs them. Writes it; 0: not valid. */
static size_t read_escaped_code(parser *p, char *out)
{
    int32_t code = read_unit(p);
    if (code >= 0xd800 && code < 0xdc00) {
        if (peek(p) != '\\' || p->data[p->at + 1] != 'u')
            return 0;
        p->at += 2;
        int32_t low = read_unit(p);
        if (low < 0xdc00 || low > 0xdfff)
            return 0;
        code = 0x10000 + ((code - 0xd800) << 10 | (low - 0xdc00));
    } else if (code < 0 || (code >= 0xdc00 && code <= 0xdfff)) {
        return 0;
    }
    return utf8_write(code, out);
}

/* Behind a backslash. Writes the character; 0: not valid. */
static size_t read_escape(parser *p, char *out)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = peek(p);
    if (c == 'u') {
        p->at++;
        return read_escaped_code(p, out);
    }
    const char *found = c ? strchr(names, c) : NULL;
    if (!found)
        return 0;
    p->at++;
    *out = values[found - names];
    return 1;
}

/* Behind the opening quote. What it leaves behind is a text that ends in NUL. */
static bool read_text(parser *p, doc_node *node)
{
    char *start = p->data + p->at, *out = start;
    for (;;) {
        unsigned char c = (unsigned char)peek(p);
        size_t n = 1;
        if (c == '"') {
            break;
        } else if (c < 0x20) {
            return fail(p, p->at >= p->size ? "the file ends inside a string" : "a control character in a string");
        } else if (c == '\\') {
            p->at++;
            if ((n = read_escape(p, out)) == 0)
                return fail(p, "an escape that is not valid");
            out += n;
            continue;
        } else if (c >= 0x80) {
            utf8_char whole = utf8_read(p->data + p->at, p->size - p->at);
            if (whole.code < 0)
                return fail(p, "a string is not UTF-8");
            n = whole.length;
        }
        for (size_t i = 0; i < n; i++)
            *out++ = p->data[p->at++];
    }
    p->at++;
    *out = '\0';
    *node = (doc_node){.kind = PARSE_TEXT, .count = (uint32_t)(out - start), .is.text = start};
    return true;
}

/* ---- numbers and words ------------------------------------------------------------------------------ */

static bool skip_digits(parser *p)
{
    size_t start = p->at;
    while (peek(p) >= '0' && peek(p) <= '9')
        p->at++;
    return p->at > start;
}

static bool read_real(parser *p, size_t start, doc_node *node)
{
    errno = 0;
    double real = strtod_l(p->data + start, NULL, p->locale);
    if (errno == ERANGE && isinf(real))
        return fail(p, "a number is too large");
    *node = (doc_node){.kind = PARSE_REAL, .is.real = real};
    return true;
}

static bool read_number(parser *p, doc_node *node)
{
    size_t start = p->at;
    bool negative = peek(p) == '-', real = false, good = true;
    p->at += negative;
    if (peek(p) == '0')
        p->at++;
    else
        good = skip_digits(p);
    if (good && peek(p) == '.') {
        p->at++;
        real = true;
        good = skip_digits(p);
    }
    if (good && (peek(p) == 'e' || peek(p) == 'E')) {
        p->at++;
        real = true;
        p->at += peek(p) == '+' || peek(p) == '-';
        good = skip_digits(p);
    }
    if (!good)
        return fail(p, "a number that is not valid");
    if (real)
        return read_real(p, start, node);
    errno = 0;
    int64_t integer = strtoll(p->data + start, NULL, 10);
    if (errno == ERANGE)
        return fail(p, "an integer is too large");
    *node = (doc_node){.kind = PARSE_INTEGER, .is.integer = integer};
    return true;
}

static bool read_word(parser *p, doc_node *node)
{
    static const struct {
        const char *word;
        parse_kind kind;
    } words[] = {{"null", PARSE_NULL}, {"false", PARSE_FALSE}, {"true", PARSE_TRUE}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t length = strlen(words[i].word);
        if (strncmp(p->data + p->at, words[i].word, length) == 0) {
            p->at += length;
            *node = (doc_node){.kind = words[i].kind};
            return true;
        }
    }
    return fail(p, p->at >= p->size ? "the file ends where a value is expected" : "a value is expected");
}

/* ---- lists and objects ------------------------------------------------------------------------------ */

static size_t slots_for(size_t members)
{
    size_t slots = 16;
    while (slots < 2 * members)
        slots *= 2;
    return slots;
}

static bool key_is(const doc_node *key, const char *text, size_t length)
{
    return key->count == length && memcmp(key->is.text, text, length) == 0;
}

/* The slot of a key in an indexed object: its own, or the free one where it belongs. */
static uint32_t *find_slot(const doc_node *object, const char *key, size_t length)
{
    parse_index *index = (parse_index *)(uintptr_t)(object->is.children + 2 * (size_t)object->count);
    uint32_t *slots = index->slots;
    size_t mask = slots_for(object->count) - 1, i = siphash(index->key, key, length) & mask;
    while (slots[i] != PARSE_FREE && !key_is(&object->is.children[2 * (size_t)slots[i]], key, length))
        i = (i + 1) & mask;
    return &slots[i];
}

const doc_node *parse_find(const doc_node *object, const char *key, size_t length)
{
    if (object->count > PARSE_INDEXED) {
        uint32_t member = *find_slot(object, key, length);
        return member == PARSE_FREE ? NULL : &object->is.children[2 * (size_t)member + 1];
    }
    for (size_t i = 0; i < object->count; i++)
        if (key_is(&object->is.children[2 * i], key, length))
            return &object->is.children[2 * i + 1];
    return NULL;
}

/* Looks for keys that come twice; those of a large object go into its table. */
static bool check_keys(parser *p, const doc_node *object)
{
    bool indexed = object->count > PARSE_INDEXED;
    for (uint32_t i = 0; i < object->count; i++) {
        const doc_node *key = &object->is.children[2 * (size_t)i];
        if (indexed) {
            uint32_t *slot = find_slot(object, key->is.text, key->count);
            if (*slot != PARSE_FREE)
                return fail(p, "duplicate key in the object that ends here");
            *slot = i;
            continue;
        }
        for (uint32_t k = 0; k < i; k++)
            if (key_is(&object->is.children[2 * (size_t)k], key->is.text, key->count))
                return fail(p, "duplicate key in the object that ends here");
    }
    return true;
}

/* Makes a node of what lies on the stack above first. */
static bool close_container(parser *p, size_t first, bool object, doc_node *node)
{
    size_t count = p->count - first, members = object ? count / 2 : count;
    bool indexed = object && members > PARSE_INDEXED;
    size_t bytes = count * sizeof(doc_node), slots = indexed ? slots_for(members) * sizeof(uint32_t) : 0;
    parse_index *index = NULL;
    *node = (doc_node){.kind = object ? PARSE_OBJECT : PARSE_LIST, .count = (uint32_t)members};
    if (count == 0)
        return true;
    char *children = take(p->tree, bytes + (indexed ? sizeof *index + slots : 0));
    if (!children)
        return fail(p, NULL);
    memcpy(children, p->stack + first, bytes);
    if (indexed) {
        index = (parse_index *)(void *)(children + bytes);
        index->key = p->key;
        memset(index->slots, 0xff, slots); /* PARSE_FREE */
    }
    node->is.children = (const doc_node *)(const void *)children;
    p->count = first;
    return !object || check_keys(p, node);
}

static bool read_value(parser *p, doc_node *node);

static bool read_key(parser *p)
{
    doc_node key;
    if (peek(p) != '"')
        return fail(p, "a key is expected");
    p->at++;
    if (!read_text(p, &key))
        return false;
    skip_space(p);
    if (peek(p) != ':')
        return fail(p, "':' is expected");
    p->at++;
    skip_space(p);
    return push(p, key);
}

/* Behind the opening bracket. */
static bool read_container(parser *p, bool object, doc_node *node)
{
    size_t first = p->count;
    char end = object ? '}' : ']';
    skip_space(p);
    for (bool more = peek(p) != end; more;) {
        doc_node child;
        if ((object && !read_key(p)) || !read_value(p, &child) || !push(p, child))
            return false;
        skip_space(p);
        more = peek(p) == ',';
        if (!more && peek(p) != end)
            return fail(p, object ? "',' or '}' is expected" : "',' or ']' is expected");
        if (more) {
            p->at++;
            skip_space(p);
        }
    }
    p->at++;
    return close_container(p, first, object, node);
}

static bool read_value(parser *p, doc_node *node)
{
    char c = peek(p);
    if (++p->depth > DEPTH_LIMIT)
        return fail(p, "values are nested too deeply");
    bool good;
    if (c == '{' || c == '[') {
        p->at++;
        good = read_container(p, c == '{', node);
    } else if (c == '"') {
        p->at++;
        good = read_text(p, node);
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        good = read_number(p, node);
    } else {
        good = read_word(p, node);
    }
    p->depth--;
    return good;
}

bool parse_json(parse_tree *tree, char *data, size_t size, parse_error *error)
{
    *tree = (parse_tree){.used = 0};
    *error = (parse_error){1, 1, NULL};
    parser p = {.tree = tree, .data = data, .size = size, .line = 1, .key = siphash_draw(), .error = error};
    p.locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!p.locale)
        return false;
    skip_space(&p);
    bool good = peek(&p) == '{' || peek(&p) == '[' ? read_value(&p, &tree->root) : fail(&p, "'{' or '[' is expected");
    if (good) {
        skip_space(&p);
        good = p.at == size || fail(&p, "something stands behind the end");
    }
    free(p.stack);
    freelocale(p.locale);
    return good;
}

void parse_free(parse_tree *tree)
{
    for (size_t i = 0; i < tree->block_count; i++)
        free(tree->blocks[i]);
    free(tree->blocks);
    *tree = (parse_tree){0};
}
