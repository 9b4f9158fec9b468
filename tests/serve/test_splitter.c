/* Answers of all families divided into thinking, content and calls, wherever their text is cut. */
#include "../faults/failing_memory.h"
#include "split.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static char *file;
static split_case cases[512];
static int case_count;

/* The rest of a line behind its first bytes; the line ends with a NUL. */
static char *line(char **at, size_t skip)
{
    char *text = *at + skip, *end = strchr(text, '\n');
    *end = '\0';
    *at = end + 1;
    return text;
}

/* What stands up to a line that begins so, without the end of its last line. */
static const char *text_up_to(char **at, const char *const *marks)
{
    char *text = *at, *end = NULL;
    for (int i = 0; marks[i]; i++) {
        char *found = strstr(text, marks[i]);
        end = found && (!end || found < end) ? found : end;
    }
    if (!end)
        abort();
    *end = '\0';
    *at = end + 1;
    return text;
}

/* tests/data/serve/splitter.txt, whose head says how it is written. */
static void read_cases(void)
{
    static const char *const ends_text[] = {"\n=>\n", NULL}, *const ends_result[] = {"\n--", "\n\n== ", "\n\n#", NULL};
    const char *name = "", *marks = "";
    size_t size;
    file = (char *)tempdir_read("tests/data/serve/splitter.txt", &size);
    file = realloc(file, size + 4);
    memcpy(file + size, "\n#\n", 4);
    for (char *at = file; *at;) {
        if (strncmp(at, "== ", 3) == 0) {
            name = line(&at, 3);
            char *space = strchr(name, ' ');
            *space = '\0';
            marks = space + 1;
        } else if (strncmp(at, "--", 2) == 0) {
            const char *options = line(&at, 2);
            split_case *c = &cases[case_count++];
            *c = (split_case){.family = name,
                              .marks = marks,
                              .prompt = strstr(options, "prompt") ? "Hi<think>\n" : NULL,
                              .no_tools = strstr(options, "no_tools"),
                              .one_call = strstr(options, "one_call"),
                              .as_it_stands = strstr(options, "as_it_stands"),
                              .cut = strstr(options, "cut")};
            c->text = text_up_to(&at, ends_text);
            at += 3;
            c->result = text_up_to(&at, ends_result);
        } else {
            line(&at, 0);
        }
    }
}

START_TEST(divided)
{
    const split_case *c = &cases[_i];
    ck_assert_str_eq(splitter_family_name(splitter_family_of(c->marks)), c->family);
    ck_assert_str_eq(split_everywhere(c), c->result);
}
END_TEST

/* Pushes each text as one special token, but those that begin with a blank as plain text. */
static void expect_special(const char *marks, const char *const *tokens, const char *content)
{
    split_parts p = {0};
    json_t *tools = json_loads(split_tools, 0, NULL);
    const splitter_options options = {.family = splitter_family_of(marks), .tools = tools, .reasoning = true};
    splitter *s = split_begin(&options, &p);
    json_decref(tools);
    for (; *tokens; tokens++) {
        bool special = **tokens != ' ';
        ck_assert(splitter_push(s, *tokens + !special, strlen(*tokens) - !special, special));
    }
    char *parts = split_end(s, &p, false);
    ck_assert_str_eq(parts, content);
    free(parts);
}

/* Special tokens of no meaning to a family are left out, also within a call; others are its marks. */
START_TEST(special)
{
    expect_special("<tool_call>", (const char *const[]){" A", "<|im_sep|>", " B", "<|eot|>", NULL}, "content{AB}");
    expect_special("<tool_call>", (const char *const[]){"<tool_call>", " x", NULL}, "content{<tool_call>x}");
    expect_special("<tool_call>",
                   (const char *const[]){"<tool_call>", " {\"name\": \"get_time\", ", "<pad>", " \"arguments\": {}}",
                                         "</tool_call>", "<|im_end|>", NULL},
                   "get_time({})");
    expect_special("<|channel|><|message|>",
                   (const char *const[]){"<|channel|>", " commentary to=functions.get_time ", "<|constrain|>", " json",
                                         "<|message|>", " {}", "<|call|>", NULL},
                   "get_time({})");
    expect_special("<｜tool▁calls▁begin｜>", (const char *const[]){"<｜tool▁sep｜>", " A", "<｜User｜>", NULL},
                   "content{<｜tool▁sep｜>A}");
}
END_TEST

/* Nothing at all, and pushes of nothing. */
START_TEST(empty)
{
    const split_case nothing = {.marks = "<tool_call>", .text = ""}, space = {.marks = "<tool_call>", .text = " \n"};
    ck_assert_str_eq(split_everywhere(&nothing), "");
    ck_assert_str_eq(split_everywhere(&space), "content{ \n}");
    ck_assert_str_eq(splitter_family_name(splitter_family_of(NULL)), "none");
}
END_TEST

/* Calls that begin again and again and never end are content, and so are those that cannot be: all of it, in time. */
START_TEST(vain)
{
    static const char *const units[][2] = {
        {"<function=<parameter=", "<tool_call>\n<function=get_time>\n<parameter=zone>\né"},
        {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁seé｜>"},
        {"<tool_call>", "<tool_call>{\"name\": \"get_time\", \"arguments\": {\"zone\": [[{\"é\": "},
        {"<|tool_call_start|>", "<|tool_call_start|>[get_time(zone=["},
    };
    size_t unit = strlen(units[_i][1]), count = 400000 / unit;
    char *text = malloc(unit * count + 1), *expected;
    for (size_t i = 0; i < count; i++)
        memcpy(text + i * unit, units[_i][1], unit + 1);
    const split_case c = {.marks = units[_i][0], .text = text};
    ck_assert_int_ge(asprintf(&expected, "content{%s}", text), 0);
    for (size_t step = 0; step < 3; step++) {
        char *result = split_text(&c, 0, step);
        ck_assert_msg(strcmp(result, expected) == 0, "steps of %zu", step);
        free(result);
    }
    free(expected);
    free(text);
}
END_TEST

static void count_events(void *ctx, const split_event *e)
{
    *(size_t *)ctx += e->length;
}

/* Number chosen of the allocations fails; returns how many there were. */
static uint64_t run_failing(const split_case *c, const json_t *tools, uint64_t chosen, bool *ok)
{
    const splitter_options options = {.family = splitter_family_of(c->marks),
                                      .tools = c->no_tools ? NULL : tools,
                                      .reasoning = !c->as_it_stands,
                                      .prompt = c->prompt,
                                      .prompt_length = c->prompt ? strlen(c->prompt) : 0};
    size_t events = 0;
    failing_begin(chosen, false);
    splitter *s = splitter_new(&options, count_events, &events);
    *ok = s && splitter_push(s, c->text, strlen(c->text), false);
    *ok = s && splitter_end(s, c->cut) && *ok;
    splitter_free(s);
    return failing_end();
}

/* jansson, which writes beyond its buffers where memory fails within it, has memory of its own meanwhile. */
static _Alignas(16) char pool[1 << 22];
static size_t pool_used;

static void *pool_malloc(size_t size)
{
    size_t at = pool_used;
    pool_used += (size + 15) / 16 * 16;
    return pool_used <= sizeof pool ? pool + at : NULL;
}

static void pool_free(void *block)
{
    (void)block;
}

/* Whichever allocation fails, it is said, and nothing is held afterwards. */
START_TEST(memory)
{
    json_malloc_t usual_malloc;
    json_free_t usual_free;
    json_get_alloc_funcs(&usual_malloc, &usual_free);
    json_set_alloc_funcs(pool_malloc, pool_free);
    const json_t *tools = json_loads(split_tools, 0, NULL);
    const size_t used = pool_used;
    bool ok;
    uint64_t count = run_failing(&cases[_i], tools, 0, &ok);
    ck_assert(ok);
    for (uint64_t n = 1; n <= count; n++) {
        pool_used = used;
        run_failing(&cases[_i], tools, n, &ok);
        ck_assert_msg(!ok, "allocation %d was not missed", (int)n);
        ck_assert_msg(failing_leaks("splitter") == 0, "allocation %d", (int)n);
    }
    json_set_alloc_funcs(usual_malloc, usual_free);
    pool_used = 0;
}
END_TEST

int main(void)
{
    read_cases();
    TCase *tc = suite_open("splitter", 60);
    tcase_add_loop_test(tc, divided, 0, case_count);
    suite_add(tc, special, empty);
    tcase_add_loop_test(tc, vain, 0, 4);
    tcase_add_loop_test(tc, memory, 0, case_count);
    return suite_run();
}
