/* Regular expressions: read into a tree, which becomes an automaton over characters. */
#include "grammar/pattern.h"

#include "base/text.h"
#include "grammar/pattern_sets.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Of groups; of the nodes of a tree. */
enum { DEEPEST = 200, MOST_NODES = 1 << 16 };

typedef enum node_kind { NODE_EMPTY, NODE_SET, NODE_CAT, NODE_ALT, NODE_REPEAT, NODE_START, NODE_END } node_kind;

typedef struct node {
    node_kind kind;
    int32_t left, right; /* CAT, ALT: both; REPEAT: left                                                          */
    int32_t min, max;    /* REPEAT; max -1: no bound                                                              */
    pattern_set set;
} node;

typedef struct parser {
    const char *text, *where, *at;
    size_t length, position;
    node *nodes;
    size_t count, capacity;
    int depth;
    tn_error *err;
    tn_status status;
} parser;

static void fail(parser *p, const char *what)
{
    if (p->status == TN_OK)
        p->status = tn_fail(p->err, TN_E_INPUT, p->where, "%sthe pattern '%.*s' %s (at byte %zu)", p->at,
                            p->length < 60 ? (int)p->length : 60, p->text, what, p->position);
}

static void no_memory(parser *p)
{
    if (p->status == TN_OK)
        p->status = tn_fail(p->err, TN_E_MEMORY, p->where, "out of memory");
}

static int32_t add(parser *p, node n)
{
    if (p->count == MOST_NODES)
        fail(p, "is too long");
    if (p->status == TN_OK && p->count == p->capacity) {
        size_t capacity = p->capacity ? 2 * p->capacity : 64;
        node *nodes = realloc(p->nodes, capacity * sizeof *nodes);
        if (nodes) {
            p->nodes = nodes;
            p->capacity = capacity;
        } else {
            no_memory(p);
        }
    }
    if (p->status != TN_OK) {
        free(n.set.ranges);
        return 0;
    }
    p->nodes[p->count] = n;
    return (int32_t)p->count++;
}

static bool more(const parser *p)
{
    return p->status == TN_OK && p->position < p->length;
}

static bool next_is(const parser *p, const char *text)
{
    size_t n = strlen(text);
    return more(p) && p->length - p->position >= n && memcmp(p->text + p->position, text, n) == 0;
}

static bool take(parser *p, const char *text)
{
    bool is = next_is(p, text);
    p->position += is ? strlen(text) : 0;
    return is;
}

static int32_t take_character(parser *p)
{
    utf8_char c = utf8_read(p->text + p->position, p->length - p->position);
    if (c.code < 0)
        fail(p, "is not UTF-8");
    p->position += c.length;
    return c.code < 0 ? 0 : c.code;
}

/* ---- escapes ------------------------------------------------------------------------------------------------------
 */

/* So many hexadecimal digits, or as many as stand before a brace (digits 0); -1: there are not. */
static int32_t take_hex(parser *p, int digits)
{
    int32_t value = 0;
    int n = 0;
    for (; more(p) && (digits ? n < digits : p->text[p->position] != '}'); n++) {
        char c = p->text[p->position];
        int digit = text_hex(c);
        if (digit < 0 || value > CODEPOINTS_LAST)
            return -1;
        value = value * 16 + digit;
        p->position++;
    }
    return n && (!digits || n == digits) && value <= CODEPOINTS_LAST ? value : -1;
}

static int32_t take_unicode(parser *p)
{
    if (take(p, "{")) {
        int32_t c = take_hex(p, 0);
        return take(p, "}") ? c : -1;
    }
    int32_t c = take_hex(p, 4);
    if (c >= 0xd800 && c <= 0xdbff && take(p, "\\u")) {
        int32_t low = take_hex(p, 4);
        return low >= 0xdc00 && low <= 0xdfff ? 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00) : -1;
    }
    return c;
}

/* Behind a backslash: a character; or a class, which goes into set, and -1. */
static int32_t take_escape(parser *p, bool in_class, pattern_set *set)
{
    static const char letters[] = "tnrfv0", meant[] = "\t\n\r\f\v\0";
    if (!more(p)) {
        fail(p, "ends with a backslash");
        return 0;
    }
    int32_t c = take_character(p);
    const char *known = c && c < 0x80 ? strchr(letters, (char)c) : NULL;
    if (c < 0x80 && c && strchr("dDwWsS", (char)c)) {
        if (!pattern_set_class(set, (char)c))
            no_memory(p);
        return -1;
    }
    if (known)
        return meant[known - letters];
    if (c == 'b' && in_class)
        return '\b';
    if (c == 'x' || c == 'u') {
        c = c == 'x' ? take_hex(p, 2) : take_unicode(p);
        if (c < 0)
            fail(p, "has an escape that is no character");
        return c < 0 ? 0 : c;
    }
    if (c == 'b' || c == 'B')
        fail(p, "has a word boundary, which is not supported");
    else if ((c >= '1' && c <= '9') || c == 'k')
        fail(p, "has a back-reference, which is not supported");
    else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        fail(p, "has an escape that is not supported");
    return c;
}

/* ---- classes
 * --------------------------------------------------------------------------------------------------------- */

static int32_t take_class_part(parser *p, pattern_set *set)
{
    return take(p, "\\") ? take_escape(p, true, set) : take_character(p);
}

static int32_t parse_class(parser *p)
{
    node n = {.kind = NODE_SET};
    bool negated = take(p, "^");
    while (more(p) && !next_is(p, "]")) {
        int32_t low = take_class_part(p, &n.set), high = low;
        if (low >= 0 && next_is(p, "-") && p->position + 1 < p->length && p->text[p->position + 1] != ']') {
            take(p, "-");
            high = take_class_part(p, &n.set);
            if (high < low)
                fail(p, "has a range that is none");
        }
        if (low >= 0 && p->status == TN_OK && !pattern_set_add(&n.set, low, high))
            no_memory(p);
    }
    if (!take(p, "]"))
        fail(p, "has a class without end");
    if (p->status == TN_OK && !pattern_set_done(&n.set, negated))
        no_memory(p);
    return add(p, n);
}

/* ---- the tree -------------------------------------------------------------------------------------------------------
 */

static int32_t parse_choice(parser *p);

static int32_t parse_group(parser *p)
{
    if (next_is(p, "(?=") || next_is(p, "(?!") || next_is(p, "(?<=") || next_is(p, "(?<!"))
        fail(p, "looks around, which is not supported");
    take(p, "(");
    if (take(p, "?<") || take(p, "?P<")) {
        while (more(p) && !next_is(p, ">"))
            p->position++;
        take(p, ">");
    } else if (next_is(p, "?") && !take(p, "?:")) {
        fail(p, "has a group of a kind that is not supported");
    }
    if (++p->depth > DEEPEST)
        fail(p, "has too many groups within one another");
    int32_t inner = p->status == TN_OK ? parse_choice(p) : 0;
    p->depth--;
    if (!take(p, ")"))
        fail(p, "has a group without end");
    return inner;
}

static int32_t parse_single(parser *p)
{
    node n = {.kind = NODE_SET};
    if (next_is(p, "("))
        return parse_group(p);
    if (take(p, "["))
        return parse_class(p);
    if (take(p, "^"))
        return add(p, (node){.kind = NODE_START});
    if (take(p, "$"))
        return add(p, (node){.kind = NODE_END});
    if (next_is(p, "*") || next_is(p, "+") || next_is(p, "?"))
        fail(p, "repeats nothing");
    int32_t c = -1;
    if (take(p, ".")) {
        if (!pattern_set_class(&n.set, '.'))
            no_memory(p);
    } else {
        c = take(p, "\\") ? take_escape(p, false, &n.set) : take_character(p);
    }
    if (c >= 0 && !pattern_set_add(&n.set, c, c))
        no_memory(p);
    if (!pattern_set_done(&n.set, false))
        no_memory(p);
    return add(p, n);
}

/* {n}, {n,} or {n,m}; anything else in braces is text. */
static bool take_counts(parser *p, int32_t *min, int32_t *max)
{
    size_t start = p->position;
    int64_t value[2] = {-1, -1};
    bool comma = false;
    if (!take(p, "{"))
        return false;
    for (; more(p) && !next_is(p, "}"); p->position++) {
        char c = p->text[p->position];
        int64_t *v = &value[comma];
        if (c == ',' && !comma)
            comma = true;
        else if (c >= '0' && c <= '9')
            *v = *v > AUTOMATON_STATES ? *v : (*v < 0 ? 0 : *v) * 10 + (c - '0');
        else
            break;
    }
    if (value[0] < 0 || !take(p, "}")) {
        p->position = start;
        return false;
    }
    if (value[0] > AUTOMATON_STATES || value[1] > AUTOMATON_STATES)
        fail(p, "repeats too often");
    if (value[1] >= 0 && value[1] < value[0])
        fail(p, "has a repetition that is none: its bounds are the wrong way round");
    *min = (int32_t)value[0];
    *max = comma ? (int32_t)value[1] : (int32_t)value[0];
    return true;
}

static int32_t parse_repeated(parser *p)
{
    int32_t inner = parse_single(p), min = 0, max = -1;
    if (p->status != TN_OK)
        return 0;
    bool once = p->nodes[inner].kind == NODE_START || p->nodes[inner].kind == NODE_END;
    if (take(p, "*"))
        max = -1;
    else if (take(p, "+"))
        min = 1;
    else if (take(p, "?"))
        max = 1;
    else if (!take_counts(p, &min, &max))
        return inner;
    if (once || next_is(p, "*") || next_is(p, "+"))
        fail(p, "repeats what cannot be repeated");
    take(p, "?"); /* as few as possible: the same texts */
    return add(p, (node){.kind = NODE_REPEAT, .left = inner, .min = min, .max = max});
}

static int32_t parse_sequence(parser *p)
{
    int32_t left = -1;
    while (more(p) && !next_is(p, "|") && !next_is(p, ")")) {
        int32_t right = parse_repeated(p);
        left = left < 0 ? right : add(p, (node){.kind = NODE_CAT, .left = left, .right = right});
    }
    return left < 0 ? add(p, (node){.kind = NODE_EMPTY}) : left;
}

static int32_t parse_choice(parser *p)
{
    int32_t left = parse_sequence(p);
    while (take(p, "|")) {
        int32_t right = parse_sequence(p);
        left = add(p, (node){.kind = NODE_ALT, .left = left, .right = right});
    }
    return left;
}

/* ---- the automaton
 * ------------------------------------------------------------------------------------------------------ */

static uint32_t join(codepoints *c, uint32_t from, int32_t how, uint32_t to)
{
    codepoints_add(c, from, how, how, to);
    return to;
}

static uint32_t build(const parser *p, int32_t index, codepoints *c, uint32_t from);

static uint32_t build_repeat(const parser *p, const node *n, codepoints *c, uint32_t from)
{
    uint32_t end = codepoints_node(c);
    for (int32_t i = 0; i < n->min && !c->full && !c->lack; i++)
        from = build(p, n->left, c, from);
    if (n->max < 0) {
        uint32_t loop = join(c, from, CODEPOINTS_EMPTY, codepoints_node(c));
        join(c, build(p, n->left, c, loop), CODEPOINTS_EMPTY, loop);
        return join(c, loop, CODEPOINTS_EMPTY, end);
    }
    for (int32_t i = n->min; i < n->max && !c->full && !c->lack; i++) {
        join(c, from, CODEPOINTS_EMPTY, end);
        from = build(p, n->left, c, from);
    }
    return join(c, from, CODEPOINTS_EMPTY, end);
}

/* Lists of nodes to the left are as long as the pattern: they are followed by hand. */
static uint32_t build_list(const parser *p, int32_t index, codepoints *c, uint32_t from)
{
    node_kind kind = p->nodes[index].kind;
    size_t count = 0;
    for (int32_t i = index; p->nodes[i].kind == kind; i = p->nodes[i].left)
        count++;
    int32_t *items = malloc((count + 1) * sizeof *items);
    if (!items) {
        c->lack = true;
        return from;
    }
    for (size_t n = count; n > 0; n--, index = p->nodes[index].left)
        items[n] = p->nodes[index].right;
    items[0] = index;
    uint32_t to = kind == NODE_ALT ? codepoints_node(c) : from;
    for (size_t n = 0; n <= count; n++)
        if (kind == NODE_ALT)
            join(c, build(p, items[n], c, from), CODEPOINTS_EMPTY, to);
        else
            to = build(p, items[n], c, to);
    free(items);
    return to;
}

/* From `from`, what the node matches, to the node that is returned; each adds one at least, so that the bound on nodes
 * is one on time. A node that is gone through again and again gets no edges but those of what is repeated. */
static uint32_t build(const parser *p, int32_t index, codepoints *c, uint32_t from)
{
    const node *n = &p->nodes[index];
    if (c->full || c->lack)
        return 0;
    if (n->kind == NODE_REPEAT)
        return build_repeat(p, n, c, from);
    if (n->kind == NODE_CAT || n->kind == NODE_ALT)
        return build_list(p, index, c, from);
    uint32_t to = codepoints_node(c);
    if (n->kind == NODE_SET)
        for (size_t i = 0; i < n->set.count; i++)
            codepoints_add(c, from, n->set.ranges[i].low, n->set.ranges[i].high, to);
    else
        join(c, from,
             n->kind == NODE_START ? CODEPOINTS_START
             : n->kind == NODE_END ? CODEPOINTS_END
                                   : CODEPOINTS_EMPTY,
             to);
    return to;
}

tn_status pattern_parse(const char *text, size_t length, bool whole, codepoints *out, const char *where, const char *at,
                        tn_error *err)
{
    parser p = {.text = text, .where = where, .at = at, .length = length, .err = err};
    int32_t root = parse_choice(&p);
    if (more(&p))
        fail(&p, "has a bracket that closes nothing");
    if (p.status == TN_OK) {
        uint32_t from = codepoints_node(out), to;
        if (!whole)
            codepoints_add(out, from, 0, CODEPOINTS_LAST, from);
        to = build(&p, root, out, join(out, from, CODEPOINTS_EMPTY, codepoints_node(out)));
        uint32_t end = join(out, to, CODEPOINTS_EMPTY, codepoints_node(out));
        if (!out->full && !out->lack)
            out->accepts[end] = true;
        if (!whole)
            codepoints_add(out, end, 0, CODEPOINTS_LAST, end);
        codepoints_plain(out);
    }
    for (size_t i = 0; i < p.count; i++)
        free(p.nodes[i].set.ranges);
    free(p.nodes);
    return p.status;
}
