/* Steps bound what a template makes the program do: whatever the host offers is tried, from its tables, on the longest
 * values, and has to pay for them. Steps are counted, not time. */
#include "template/chars.h"
#include "template/runtime.h"
#include "suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/chat.h>

/* So many bytes of a text, and items of a list or a dictionary. */
enum { BYTES = 1 << 16, ITEMS = 100000 };

static const char *const kinds[BUILTIN_KINDS] = {
    [BUILTIN_FILTER] = "filter",  [BUILTIN_TEST] = "test",    [BUILTIN_FUNCTION] = "function",
    [BUILTIN_OF_TEXT] = "text",   [BUILTIN_OF_DICT] = "dict", [BUILTIN_OF_LIST] = "list",
    [BUILTIN_OF_TUPLE] = "tuple", [BUILTIN_OF_LOOP] = "loop", [BUILTIN_OF_CYCLER] = "cycler",
    [BUILTIN_OF_FLOAT] = "float"};

/* A text of BYTES or somewhat less: a piece over and over. */
static value text_of(sandbox *s, const char *piece)
{
    size_t n = strlen(piece), count = BYTES / n;
    char *data = sandbox_alloc(s, count * n + 1);
    for (size_t i = 0; i < count; i++)
        memcpy(data + i * n, piece, n);
    return value_text(s, data, count * n);
}

static value list_of_numbers(sandbox *s, list_kind kind)
{
    list *items = value_list_new(s, kind, ITEMS);
    for (int i = 0; i < ITEMS; i++)
        value_list_add(s, items, value_int(i));
    return value_list(items);
}

static value dict_of_numbers(sandbox *s)
{
    mapping *m = mapping_new(s);
    for (int i = 0; i < ITEMS; i++)
        mapping_set(s, m, value_int(i), value_int(i));
    return mapping_value(m);
}

/* Something that has the method. */
static value owner_of(sandbox *s, builtin_kind kind, const char *piece)
{
    list *few = value_list_new(s, LIST_LIST, 1);
    loop *l = sandbox_alloc(s, sizeof *l);
    value_list_add(s, few, value_int(1));
    *l = (loop){.source = few};
    switch (kind) {
    case BUILTIN_FUNCTION:
        return value_none();
    case BUILTIN_OF_DICT:
        return dict_of_numbers(s);
    case BUILTIN_OF_LIST:
    case BUILTIN_OF_TUPLE:
        return list_of_numbers(s, kind == BUILTIN_OF_LIST ? LIST_LIST : LIST_TUPLE);
    case BUILTIN_OF_LOOP:
        return (value){.kind = VALUE_LOOP, .as.loop = l};
    case BUILTIN_OF_CYCLER:
        return (value){.kind = VALUE_CYCLER, .as.list = few};
    case BUILTIN_OF_FLOAT:
        return value_float(1.5);
    default:
        return text_of(s, piece);
    }
}

/* Each of a kind; NULL behind the last. */
static const builtin *builtin_at(builtin_kind kind, size_t index)
{
    for (const builtin_table *t = builtins; t->rows; t++)
        for (const builtin *b = t->rows; t->kind == kind && b->name; b++)
            if (index-- == 0)
                return b;
    return NULL;
}

static size_t parameter_count(const builtin *b)
{
    size_t count = b->parameters[0] != '\0';
    for (const char *c = b->parameters; *c; c++)
        count += *c == ' ';
    return count;
}

/* Steps of one call, whether it gives something or fails; *failed tells which, but for one that runs out of steps. */
static int64_t steps_of(sandbox *s, const builtin *b, value self, const arguments *given, bool *failed)
{
    s->steps = SANDBOX_STEPS;
    *failed = false;
    if (setjmp(s->out) == 0)
        call_builtin(s, b, self, given);
    else
        *failed = s->steps >= 0;
    return SANDBOX_STEPS - s->steps;
}

/* ---- everything in the tables ----------------------------------------------------------------------------------- */

static const char *const pieces[] = {"a", " ", "A", "\xc3\xa9", "1", "a\n", "\x01", "a,b", "%s", "{}", "&"};

/* With a long text in every place that takes one, and in each alone. */
static void try_with_texts(builtin_kind kind, const builtin *b, const char *piece)
{
    size_t most = parameter_count(b);
    for (size_t count = 0; count <= most; count++) {
        sandbox s;
        bool failed;
        value items[BUILTIN_PARAMETERS];
        sandbox_start(&s, "test", NULL);
        s.builtins = builtins;
        value self = owner_of(&s, kind, piece);
        for (size_t i = 0; i < count; i++)
            items[i] = text_of(&s, piece);
        arguments given = {.items = items, .count = count};
        size_t texts = count + value_is_string(self);
        int64_t steps = steps_of(&s, b, self, &given, &failed);
        ck_assert_msg(steps > (int64_t)(texts * (BYTES - 4) / 32), "%s %s took %lld steps for %zu texts of '%s'",
                      kinds[kind], b->name, (long long)steps, texts, piece);
        sandbox_free(&s);
    }
}

START_TEST(every_call_pays_for_its_texts)
{
    builtin_kind kind = (builtin_kind)_i;
    const builtin *b;
    size_t n = 0;
    for (; (b = builtin_at(kind, n)); n++)
        for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++)
            try_with_texts(kind, b, pieces[p]);
    ck_assert_msg(n > 0, "there is no %s", kinds[kind]);
}
END_TEST

/* What reads no more of a list than how many items it has, its first or its last. */
static bool reads_no_items(builtin_kind kind, const char *name)
{
    static const char *const few[] = {"length", "count", "first", "last", "default", "d", "int", "float", "copy"};
    for (size_t i = 0; i < sizeof few / sizeof few[0]; i++)
        if (strcmp(name, few[i]) == 0)
            return kind == BUILTIN_FILTER || strcmp(name, "copy") == 0;
    return false;
}

START_TEST(every_walk_pays_for_its_items)
{
    static const struct {
        builtin_kind kind;
        list_kind of;
    } walks[] = {{BUILTIN_FILTER, LIST_LIST},  {BUILTIN_FILTER, LIST_TUPLE},   {BUILTIN_OF_LIST, LIST_LIST},
                 {BUILTIN_FILTER, LIST_ITEMS}, {BUILTIN_OF_TUPLE, LIST_TUPLE}, {BUILTIN_OF_DICT, LIST_KEYS}};
    builtin_kind kind = walks[_i].kind;
    const builtin *b;
    size_t paid = 0;
    for (size_t n = 0; (b = builtin_at(kind, n)); n++) {
        sandbox s;
        bool failed;
        value items[2] = {value_int(-1), value_int(ITEMS)};
        sandbox_start(&s, "test", NULL);
        s.builtins = builtins;
        /* LIST_KEYS, LIST_ITEMS: the dict itself, in turn as the owner and as what is filtered */
        value self = walks[_i].of >= LIST_KEYS ? dict_of_numbers(&s) : list_of_numbers(&s, walks[_i].of);
        arguments given = {.items = items, .count = b->required < 2 ? b->required : 2};
        int64_t steps = steps_of(&s, b, self, &given, &failed);
        bool looks_up = kind == BUILTIN_OF_DICT && strcmp(b->name, "get") == 0;
        ck_assert_msg(steps >= ITEMS / 4 || failed || looks_up || reads_no_items(kind, b->name),
                      "%s %s took %lld steps for %d items", kinds[kind], b->name, (long long)steps, ITEMS);
        paid += steps >= ITEMS / 4;
        sandbox_free(&s);
    }
    ck_assert_uint_gt(paid, 0);
}
END_TEST

/* ---- what takes longer than its arguments are -------------------------------------------------------------------- */

/* Comparing everywhere with a long text that differs only at its end takes as many steps as it takes work. */
static const char *const searches[] = {"find",    "rfind", "index",  "rindex",    "count",
                                       "replace", "split", "rsplit", "partition", "rpartition"};

START_TEST(searching_pays_for_each_comparison)
{
    enum { PLACES = 20000, LENGTH = 4096 };
    sandbox s;
    bool failed;
    sandbox_start(&s, "test", NULL);
    s.builtins = builtins;
    value many = text_of(&s, "a"), text = value_string(&s, many.as.string->data, PLACES + LENGTH);
    value needle =
        operators_binary(&s, "+", value_string(&s, many.as.string->data, LENGTH - 1), value_string(&s, "b", 1));
    const builtin *b = call_find(&s, BUILTIN_OF_TEXT, searches[_i]);
    arguments given = {.items = (value[]){needle, needle}, .count = b->required > 1 ? b->required : 1};
    ck_assert_int_gt(steps_of(&s, b, text, &given, &failed), (int64_t)(PLACES - 2) * LENGTH / 64);
    given.items[0] = text; /* needle in text */
    if (_i == 0)
        ck_assert_int_gt(steps_of(&s, call_find(&s, BUILTIN_TEST, "in"), needle, &given, &failed),
                         (int64_t)(PLACES - 2) * LENGTH / 64);
    sandbox_free(&s);
}
END_TEST

/* Steps, not time, end these. @: a text of a megabyte; the rest is in a loop that would not end. */
static const char *const endless[] = {
    "{{ (' ' * 999999).strip() }}",
    "{{ ('a' * 9999).strip('bcdefghijklmnopqrstuvwxyza' * 99) }}",
    "{% set x = @.partition('b') %}",
    "{% set x = @.rpartition('b') %}",
    "{% set x = @|wordcount %}",
    "{% set x = @.islower() %}",
    "{% set x = @.isupper() %}",
    "{% set x = @|urlencode %}",
    "{% set x = @ is string %}",
    "{% set x = @ in [@, @ ~ 'b'] %}",
    "{% set x = {@: 1} %}",
    "{% set x = @ == @ ~ '' %}",
    "{% set x = @ < @ ~ 'b' %}",
    "{% set x = @[999] %}",
    "{% set x = '{0}{0}'.format(@) %}",
    "{% set x = '%.60f' % 1e308 %}",
    "{% set x = 1e308|filesizeformat %}",
    "{% set x = 2.2250738585072014e-308 ~ '' %}",
    "{% set x = strftime_now('%c' * 99) %}",
    "{% set x = range(9999)|list|map('string')|list == range(9999)|list %}",
    "{% set x = dict(range(1000)|map('string')|batch(2)|map('list'))|tojson(sort_keys=true) %}",
};

START_TEST(steps_end_every_loop)
{
    char source[512], *body = source;
    body = stpcpy(body, "{% set t = 'a' * 1048576 %}{% for i in range(99999) %}{% for k in range(99999) %}");
    for (const char *c = endless[_i]; *c; c++)
        body = *c == '@' ? stpcpy(body, "t") : stpncpy(body, c, 1);
    stpcpy(body, "{% endfor %}{% endfor %}");
    tn_error err = TN_ERROR_INIT;
    char *text = NULL;
    tn_template *t = tn_template_parse(source, strlen(source), "test", &err);
    ck_assert_msg(t != NULL, "%s: %s", source, err.message);
    ck_assert_int_eq(tn_template_render(t, "[]", 2, NULL, &text, NULL, &err), TN_E_INPUT);
    bool bounded = strstr(err.message, "steps") || strstr(err.message, "MB of memory") || strstr(err.message, "16 MB");
    ck_assert_msg(bounded, "%s: %s", source, err.message);
    tn_template_free(t);
}
END_TEST

/* count pieces with their numbers for #, then behind. Owned. */
static char *numbered(const char *piece, int count, const char *behind)
{
    char *text = malloc((size_t)count * (strlen(piece) + 16) + strlen(behind) + 1), *at = text;
    for (int i = 0; i < count; i++)
        for (const char *c = piece; *c; c++)
            if (*c == '#')
                at += sprintf(at, "%d", i);
            else
                *at++ = *c;
    strcpy(at, behind);
    return text;
}

/* Names are sought one after the other, so many names take more steps each. */
static const struct {
    const char *piece, *behind;
} names[] = {
    {"{% set a# = 1 %}",
     "{% for i in range(99999) %}{% for k in range(999) %}{% if a0 %}{% endif %}{% endfor %}{% endfor %}"},
    {"{% macro f(a#) %}{% endmacro %}", "{% set d = dict(range(9000)|map('string')|batch(2)|map('list')) %}{% for i in "
                                        "range(9999) %}{{ dict(**d) }}{% endfor %}"},
};

START_TEST(many_names_take_more_steps)
{
    enum { NAMES = 4000 };
    char *source = numbered(names[_i].piece, NAMES, names[_i].behind);
    tn_error err = TN_ERROR_INIT;
    char *text = NULL;
    tn_template *t = tn_template_parse(source, strlen(source), "test", &err);
    ck_assert_msg(t != NULL, "%s", err.message);
    ck_assert_int_eq(tn_template_render(t, "[]", 2, NULL, &text, NULL, &err), TN_E_INPUT);
    suite_expect_in(err.message, "10000000 steps");
    tn_template_free(t);
    free(source);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("steps", 240);
    tcase_add_loop_test(tcase, every_call_pays_for_its_texts, 0, BUILTIN_KINDS);
    tcase_add_loop_test(tcase, every_walk_pays_for_its_items, 0, 6);
    tcase_add_loop_test(tcase, searching_pays_for_each_comparison, 0, sizeof searches / sizeof searches[0]);
    tcase_add_loop_test(tcase, steps_end_every_loop, 0, sizeof endless / sizeof endless[0]);
    tcase_add_loop_test(tcase, many_names_take_more_steps, 0, sizeof names / sizeof names[0]);
    return suite_run();
}
