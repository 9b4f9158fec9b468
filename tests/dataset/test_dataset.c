/* Records of all formats: what they become is shown as text, with [ and ] around what is learnt. What is wrong is told
 * by file and line. */
#include "dataset/dataset.h"
#include "dataset/reader.h"
#include "device/device.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define U "<|im_start|>user\n"
#define A "<|im_start|>assistant\n"
#define S "<|im_start|>system\n"
#define E "<|im_end|>\n"

static reader by;

/* qwen2's tokenizer, with ChatML or a file of tests/data/templates. */
static void use(const char *template)
{
    tn_error err = TN_ERROR_INIT;
    reader_close(&by);
    ck_assert_msg(reader_open(&by, "tests/data/tokenizers/qwen2", 151643, &err) == TN_OK, "%s", err.message);
    if (template) {
        char *path = tempdir_path("tests/data/templates", template);
        tn_template_free(by.chat);
        by.by.chat = by.chat = tn_template_open(path, &err);
        ck_assert_msg(by.chat != NULL, "%s", err.message);
        free(path);
    }
    by.by.options = (tn_dataset_options){.size = sizeof by.by.options, .max_length = 512, .join = ""};
}

static void open_all(void)
{
    use(NULL);
}

static void close_all(void)
{
    reader_close(&by);
}

static char *put(const char *name, const char *text)
{
    char *folder = tempdir_new();
    tempdir_put(folder, name, text);
    return tempdir_at(folder, name);
}

static void close_dataset(void *d)
{
    tn_dataset_close(d);
}

static tn_dataset *open_file(const char *path)
{
    tn_error err = TN_ERROR_INIT;
    tn_dataset *d = dataset_open(&by.by, &path, 1, &err);
    ck_assert_msg(d != NULL, "%s: %s", err.where, err.message);
    suite_keep(d, close_dataset);
    return d;
}

static tn_dataset *open_text(const char *name, const char *text)
{
    return open_file(put(name, text));
}

/* A sample as text. */
static const char *shown(const tn_dataset *d, int64_t index)
{
    static char out[8192];
    tn_sample s = {.size = sizeof s};
    ck_assert_int_eq(tn_dataset_sample(d, index, &s, NULL), TN_OK);
    out[0] = '\0';
    for (int64_t begin = 0, end; begin < s.length; begin = end) {
        int64_t ids[512];
        char *text = NULL;
        bool learnt = s.labels[begin] != TN_NO_LABEL;
        for (end = begin; end < s.length && (s.labels[end] != TN_NO_LABEL) == learnt; end++) {
            ids[end - begin] = s.ids[end];
            ck_assert(!learnt || s.labels[end] == s.ids[end]);
        }
        ck_assert_int_eq(tn_tokenizer_decode(by.tokenizer, ids, (size_t)(end - begin), false, &text, NULL, NULL),
                         TN_OK);
        snprintf(out + strlen(out), sizeof out - strlen(out), learnt ? "[%s]" : "%s", text);
        free(text);
    }
    return out;
}

static void expect(const char *line, const char *first, const char *second)
{
    tn_dataset *d = open_text("a.jsonl", line);
    ck_assert_int_eq(tn_dataset_count(d), second ? 2 : 1);
    ck_assert_str_eq(shown(d, 0), first);
    if (second)
        ck_assert_str_eq(shown(d, 1), second);
}

/* ---- formats ------------------------------------------------------------------------------------------- */

static const struct {
    const char *line, *first, *second;
} formats[] = {
    {"{\"text\": \"On we go.\"}", "[On we go.<|endoftext|>]", NULL},
    {"{\"text\": \"On we go.<|endoftext|>\"}", "[On we go.<|endoftext|>]", NULL},
    {"{\"prompt\": \"2 + 2 =\", \"completion\": \" 4\"}", "2 + 2 =[ 4<|endoftext|>]", NULL},
    {"{\"prompt\": \"2 + 2 =\", \"completion\": \"\"}", "2 + 2 =[<|endoftext|>]", NULL},
    {"{\"prompt\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"completion\": [{\"role\": \"assistant\", "
     "\"content\": "
     "\"Ho\"}, {\"role\": \"user\", \"content\": \"Hm\"}, {\"role\": \"assistant\", \"content\": \"Ha\"}]}",
     U "Hi" E A "[Ho" E U "Hm" E A "Ha" E "]", NULL},
    {"{\"instruction\": \"Plural of\", \"input\": \" ox\", \"output\": \"oxen\", \"text\": \"not this\"}",
     U "Plural of ox" E A "[oxen" E "]", NULL},
    {"{\"instruction\": \"Go\", \"input\": null, \"output\": \"\", \"system\": \"\", \"history\": []}",
     U "Go" E A "[" E "]", NULL},
    {"{\"input\": \"Go\", \"output\": \"Gone\"}", U "Go" E A "[Gone" E "]", NULL},
    {"{\"system\": \"Short.\", \"instruction\": \"Two\", \"output\": \"2\", \"history\": [[\"One\", \"1\"]]}",
     S "Short." E U "One" E A "[1" E "]", S "Short." E U "One" E A "1" E U "Two" E A "[2" E "]"},
    {"{\"conversations\": [{\"from\": \"human\", \"value\": \"Hi\"}, {\"from\": \"gpt\", \"value\": \"Ho\"}, "
     "{\"from\": "
     "\"human\", \"value\": \"unanswered\"}], \"system\": \"S\"}",
     S "S" E U "Hi" E A "[Ho" E "]", NULL},
    {"{\"system\": \"not this\", \"messages\": [{\"role\": \"system\", \"content\": \"this\"}, {\"role\": \"user\", "
     "\"content\": \"a\\u00fc\\ud83d\\ude00\"}, {\"role\": \"assistant\", \"content\": \"\\n\\nb\"}]}",
     S "this" E U "a\xc3\xbc\xf0\x9f\x98\x80" E A "[\n\nb" E "]", NULL},
    {"{\"conversations\": [{\"role\": \"user\", \"content\": \"Hi\", \"name\": null}, {\"role\": \"assistant\", "
     "\"content\": \"Ho\", \"tool_calls\": null}]}",
     U "Hi" E A "[Ho" E "]", NULL},
    {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"value\": \"H\"}, {\"type\": \"text\", "
     "\"value\": \"i\"}]}, {\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"value\": \"Ho\"}], "
     "\"loss_weight\": 0.0}, {\"role\": \"user\", \"content\": \"!\"}, {\"role\": \"assistant\", \"content\": \"?\", "
     "\"loss_weight\": 1.0}]}",
     U "Hi" E A "Ho" E U "!" E A "[?" E "]", NULL},
    {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"H\"}, {\"type\": \"text\", "
     "\"text\": \"i\"}]}, {\"role\": \"assistant\", \"content\": \"a\", \"weight\": 1}, {\"role\": \"assistant\", "
     "\"content\": \"b\", \"weight\": 0}]}",
     U "H\ni" E A "[a" E "]", NULL},
    {"{\"messages\": [{\"role\": \"user\", \"content\": \"<|im_end|> and <|endoftext|><|im_end|>\"}, {\"role\": "
     "\"assistant\", \"content\": \"<|im_start|>x\"}]}",
     U "<\xe2\x80\x8b|im_end|> and <\xe2\x80\x8b|endoftext|><\xe2\x80\x8b|im_end|>" E A "[<\xe2\x80\x8b|im_start|>x" E
       "]",
     NULL},
};

START_TEST(formats_are_told_by_keys)
{
    expect(formats[_i].line, formats[_i].first, formats[_i].second);
}
END_TEST

#define CALL "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"zone\": \"UTC\"}}\n</tool_call>"
#define TOOL "{\\\"name\\\": \\\"now\\\", \\\"parameters\\\": {}}"

static const char *const tooled[] = {
    "{\"tools\": \"[" TOOL "]\", \"system\": \"S\", \"conversations\": [{\"from\": \"human\", \"value\": \"Time?\"}, "
    "{\"from\": \"function_call\", \"value\": \"{\\\"name\\\": \\\"now\\\", \\\"arguments\\\": {\\\"zone\\\": "
    "\\\"UTC\\\"}}\"}, {\"from\": \"observation\", \"value\": \"10:42\"}, {\"from\": \"gpt\", \"value\": \"10:42.\"}]}",
    "{\"tools\": [{\"name\": \"now\", \"parameters\": {}}], \"messages\": [{\"role\": \"system\", \"content\": \"S\"}, "
    "{\"role\": \"user\", \"content\": \"Time?\"}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": "
    "[{\"id\": "
    "\"1\", \"type\": \"function\", \"function\": {\"name\": \"now\", \"arguments\": \"{\\\"zone\\\": "
    "\\\"UTC\\\"}\"}}]}, "
    "{\"role\": \"tool\", \"tool_call_id\": \"1\", \"content\": \"10:42\"}, {\"role\": \"assistant\", \"content\": "
    "\"10:42.\"}]}",
    "{\"tools\": \"" TOOL "\", \"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", "
    "\"content\": \"Time?\"}, {\"role\": \"assistant\", \"content\": [{\"type\": \"tool_call\", \"value\": "
    "\"{\\\"name\\\": \\\"now\\\", \\\"arguments\\\": {\\\"zone\\\": \\\"UTC\\\"}}\"}]}, {\"role\": \"tool\", "
    "\"content\": [{\"type\": \"text\", \"value\": \"10:42\"}]}, {\"role\": \"assistant\", \"content\": \"10:42.\"}]}",
};

START_TEST(calls_of_tools_are_answers)
{
    use("qwen2.5/template.jinja");
    tn_dataset *d = open_text("a.json", tooled[_i]);
    ck_assert_int_eq(tn_dataset_count(d), 2);
    suite_expect_in(shown(d, 0), "{\"name\": \"now\", \"parameters\": {}}\n</tools>");
    suite_expect_in(shown(d, 0), S "S\n\n# Tools");
    suite_expect_in(shown(d, 0), U "Time?" E A "[" CALL E "]");
    suite_expect_in(shown(d, 1), CALL E U "<tool_response>\n10:42\n</tool_response>" E A "[10:42." E "]");
}
END_TEST

static const char three[] = "{\"conversations\": [{\"from\": \"human\", \"value\": \"Yes\"}, {\"from\": \"gpt\", "
                            "\"value\": \"Yes\"}, {\"from\": \"human\", \"value\": \"<b\"}, {\"from\": \"gpt\", "
                            "\"value\": \"<b\"}, {\"from\": \"human\", \"value\": \"c\"}, {\"from\": \"gpt\", "
                            "\"value\": \"d\"}]}";

START_TEST(one_sample_has_all_answers)
{
    by.by.options.one_sample = true;
    expect(three, U "Yes" E A "[Yes" E "]" U "<b" E A "[<b" E "]" U "c" E A "[d" E "]", NULL);
    by.by.options.last_turn = true;
    expect(three, U "Yes" E A "Yes" E U "<b" E A "<b" E U "c" E A "[d" E "]", NULL);
    by.by.options.last_turn = false;
    by.by.options.train_on_prompt = true;
    expect(three, "[" U "Yes" E A "Yes" E U "<b" E A "<b" E U "c" E A "d" E "]", NULL);
}
END_TEST

/* Qwen3's template leaves out of earlier answers what it writes in the last one. */
START_TEST(models_that_think_are_asked_as_they_are_answered)
{
    use("qwen3/template.jinja");
    expect("{\"instruction\": \"a\", \"output\": \"b\"}", U "a" E A "<think>\n\n</think>\n\n[b" E "]", NULL);
    expect("{\"instruction\": \"a\", \"output\": \"<think>\\nc\\n</think>\\n\\nb\"}",
           U "a" E A "[<think>\nc\n</think>\n\nb" E "]", NULL);
    expect("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\", "
           "\"reasoning_content\": \"c\"}]}",
           U "a" E A "[<think>\nc\n</think>\n\nb" E "]", NULL);
    by.by.options.one_sample = true;
    expect(three, U "Yes" E A "[Yes" E "]" U "<b" E A "[<b" E "]" U "c" E A "<think>\n\n</think>\n\n[d" E "]", NULL);
}
END_TEST

/* R1's asks for a thought that it does not write in an answer. */
START_TEST(an_answer_begins_where_the_template_parts)
{
    use("deepseek-r1-distill-qwen/template.jinja");
    expect("{\"instruction\": \"a\", \"output\": \"b\"}",
           "<\xef\xbd\x9cUser\xef\xbd\x9c>a<\xef\xbd\x9c"
           "Assistant\xef\xbd\x9c>[b<\xef\xbd\x9c"
           "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>]",
           NULL);
}
END_TEST

START_TEST(every_day_is_the_same)
{
    use("granite-3.3/template.jinja");
    suite_expect_in(shown(open_text("a.jsonl", "{\"instruction\": \"a\", \"output\": \"b\"}"), 0), "July 26, 2024");
}
END_TEST

START_TEST(samples_are_cut)
{
    by.by.options.max_length = 11;
    tn_dataset *d = open_text("a.jsonl", three);
    tn_dataset_info info = {.size = sizeof info};
    tn_dataset_get_info(d, &info);
    ck_assert_int_eq(info.samples, 1);
    ck_assert_int_eq(info.cut, 1);
    ck_assert_int_eq(info.dropped, 2);
    ck_assert_int_eq(info.tokens, 11);
    ck_assert_int_eq(info.labels, 1);
    ck_assert_str_eq(shown(d, 0), U "Yes" E A "[Y]");
}
END_TEST

/* ---- files --------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *text;
} files[] = {
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"c d\"}\n"},
    {"a.jsonl", "\xef\xbb\xbf{\"text\": \"a b\"}\r\n\r\n  \t\n{\"text\": \"c d\"}"},
    {"a.jsonl", "[{\"text\": \"a b\"},\n {\"text\": \"c d\"}]"},
    {"a.json",
     "\xef\xbb\xbf\n[\n  {\n    \"text\": \"a b\", \"x\": [{\"y\": \"]}\\\"\"}]\n  },\n{\"text\": \"c d\"}\n]\n\n"},
    {"a.json", "{\"text\": \"a b\"}\n{\"text\": \"c d\"}\n"},
    {"a.JSON", "{\n\"text\": \"a b\"\n}\n{\n\"text\": \"c d\"\n}\n"},
    {"a.jsonl",
     "{\"input_ids\": [64, 293, 151643]}\n{\"input_ids\": [66, 294, 151643, 0], \"attention_mask\": [1, 1, 1, "
     "0], \"labels\": [66, 294, 151643, -100]}\n"},
};

START_TEST(files_are_taken_as_people_write_them)
{
    tn_dataset *d = open_text(files[_i].name, files[_i].text);
    ck_assert_int_eq(tn_dataset_count(d), 2);
    ck_assert_str_eq(shown(d, 0), "[a b<|endoftext|>]");
    ck_assert_str_eq(shown(d, 1), "[c d<|endoftext|>]");
    ck_assert_str_eq(tn_dataset_digest(d), tn_dataset_digest(open_text("b.jsonl", files[0].text)));
    ck_assert_str_ne(tn_dataset_digest(d), tn_dataset_digest(open_text("b.jsonl", "{\"text\": \"a bc d\"}")));
}
END_TEST

START_TEST(a_text_goes_on_in_the_next_sample)
{
    by.by.options.max_length = 4;
    tn_dataset *d = open_text("a.txt", "\xef\xbb\xbf"
                                       "a b c d<|im_end|>\n a b c");
    ck_assert_int_eq(tn_dataset_count(d), 3);
    ck_assert_str_eq(shown(d, 0), "[a b c d]");
    ck_assert_str_eq(shown(d, 1), "[<|im_end|>\n a b]");
    ck_assert_str_eq(shown(d, 2), "[ c<|endoftext|>]");
}
END_TEST

/* Longer than a piece: the same tokens, since pieces end with lines. */
START_TEST(a_long_text_is_cut_at_ends_of_lines)
{
    static const char line[] = "All that is gold does not glitter.\n";
    size_t lines = 2 * RECORDS_PIECE / (sizeof line - 1) + 7;
    char *text = malloc(lines * (sizeof line - 1) + 1);
    for (size_t i = 0; i < lines; i++)
        memcpy(text + i * (sizeof line - 1), line, sizeof line);
    int64_t *ids = NULL;
    size_t count = 0;
    ck_assert_int_eq(tn_tokenizer_encode(by.tokenizer, text, strlen(text), false, &ids, &count, NULL), TN_OK);
    tn_dataset_info info = {.size = sizeof info};
    tn_dataset_get_info(open_text("a.txt", text), &info);
    ck_assert_int_eq(info.tokens + info.dropped, (int64_t)count + 1);
    free(ids);
    free(text);
}
END_TEST

START_TEST(files_follow_one_another)
{
    char *paths[] = {put("a.jsonl", "{\"text\": \"a b\"}"), put("b.txt", "c d")};
    tn_error err = TN_ERROR_INIT;
    tn_dataset *d = dataset_open(&by.by, (const char *const *)paths, 2, &err);
    suite_keep(d, close_dataset);
    ck_assert_int_eq(tn_dataset_count(d), 2);
    ck_assert_str_eq(shown(d, 1), "[c d<|endoftext|>]");
}
END_TEST

START_TEST(threads_change_nothing)
{
    size_t size = 0, room = 1 << 18;
    char *text = malloc(room);
    for (int i = 0; i < 1500; i++)
        size += (size_t)snprintf(text + size, room - size, "{\"instruction\": \"%d\", \"output\": \"%d\"}\n", i, i * i);
    threads_set(1);
    tn_dataset *alone = open_text("a.jsonl", text);
    threads_set(4);
    threads_strict(true);
    tn_dataset *many = open_text("b.jsonl", text);
    threads_strict(false);
    ck_assert_int_eq(tn_dataset_count(many), 1500);
    ck_assert_str_eq(tn_dataset_digest(alone), tn_dataset_digest(many));
    free(text);
}
END_TEST

/* ---- what is wrong ------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *text;
    int line; /* 0: of the file */
    const char *words;
    bool end; /* nobody can go on behind it */
} wrong[] = {
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"c d}\n{\"text\": \"e f\"}", 2, "is no JSON at column 14", false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"c d\",}\n{\"text\": \"e f\"}", 2, "is no JSON", false},
    {"a.jsonl", "{\"text\": \"a b\"}\n\r\n\n[1]\n{\"text\": \"e f\"}", 4, "is no object", false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"\xff\"}\n{\"text\": \"e f\"}", 2, "is no JSON", false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"id\": 1, \"words\": 2}\n{\"text\": \"e f\"}", 2, "its keys are id, words",
     false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{}\n{\"text\": \"e f\"}", 2, "its keys are none", false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"text\": null}\n{\"text\": \"e f\"}", 2, "its keys are text", false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"\"}\n{\"text\": \"e f\"}", 2, "nothing to learn within 512", false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"text\": [\"c\"]}\n{\"text\": \"e f\"}", 2, "text is no text", false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"prompt\": \"c d\"}\n{\"text\": \"e f\"}", 2, "prompt and no completion",
     false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"prompt\": [], \"completion\": \"c\"}\n{\"text\": \"e f\"}", 2,
     "neither two texts", false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"instruction\": \"c d\", \"output\": null}\n{\"text\": \"e f\"}", 2,
     "no output", false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"instruction\": \"c\", \"output\": 4}\n{\"text\": \"e f\"}", 2,
     "output is no text", false},
    {"a.jsonl",
     "{\"text\": \"a b\"}\n{\"instruction\": \"c\", \"output\": \"d\", \"history\": [[\"e\"]]}\n{\"text\": "
     "\"e f\"}",
     2, "no pair", false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"messages\": []}\n{\"text\": \"e f\"}", 2, "messages is no list of messages",
     false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"messages\": [3]}\n{\"text\": \"e f\"}", 2, "message 0 has no role", false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"messages\": [{\"role\": \"poet\", \"content\": \"c\"}]}\n{\"text\": \"e f\"}",
     2, "the role 'poet'", false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}]}\n{\"text\": \"e f\"}",
     2, "no answer of the assistant", false},
    {"a.jsonl",
     "{\"text\": \"a b\"}\n{\"messages\": [{\"role\": \"user\"}, {\"role\": \"assistant\"}]}\n{\"text\": \"e "
     "f\"}",
     2, "message 0 has no content", false},
    {"a.jsonl",
     "{\"text\": \"a b\"}\n{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}\n"
     "{\"text\": \"e f\"}",
     2, "part of type 'image_url'", false},
    {"a.jsonl",
     "{\"text\": \"a b\"}\n{\"conversations\": [{\"from\": \"human\", \"value\": \"c\"}, {\"from\": "
     "\"function_call\", \"value\": \"now()\"}]}\n{\"text\": \"e f\"}",
     2, "by what is no JSON", false},
    {"a.jsonl",
     "{\"text\": \"a b\"}\n{\"conversations\": [{\"from\": \"human\", \"value\": \"c\"}, {\"from\": "
     "\"function_call\", \"value\": \"{\\\"name\\\": \\\"f\\\"}\"}]}\n{\"text\": \"e f\"}",
     2, "template does not write", false},
    {"a.jsonl",
     "{\"text\": \"a b\"}\n{\"tools\": \"f\", \"messages\": [{\"role\": \"user\", \"content\": \"c\"}, {\"role\": "
     "\"assistant\", \"content\": \"d\"}]}\n{\"text\": \"e f\"}",
     2, "tools is no list", false},
    {"a.jsonl",
     "{\"text\": \"a b\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", "
     "\"content\": \"d\", \"loss_weight\": 0.5}]}\n{\"text\": \"e f\"}",
     2, "neither 0 nor 1", false},
    {"a.jsonl",
     "{\"text\": \"a b\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", "
     "\"content\": \"d\", \"loss_weight\": 0}]}\n{\"text\": \"e f\"}",
     2, "nothing to learn", false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"input_ids\": [1, 2], \"labels\": [1]}\n{\"text\": \"e f\"}", 2,
     "labels is no list of as many", false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"input_ids\": [1, \"2\"]}\n{\"text\": \"e f\"}", 2, "no number, at place 1",
     false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"input_ids\": [1, 200000]}\n{\"text\": \"e f\"}", 2, "200000 at place 1",
     false},
    {"a.jsonl", "{\"text\": \"a b\"}\n{\"input_ids\": [1, 2], \"labels\": [1, -5]}\n{\"text\": \"e f\"}", 2,
     "labels has -5", false},
    {"a.json", "[{\"text\": \"a b\"},\n{\"text\": \n3 4},\n{\"text\": \"e f\"}]", 3, "is no JSON", false},
    {"a.json", "[{\"text\": \"a b\"},\n\n5,\n{\"text\": \"e f\"}]", 3, "is no JSON", false},
    {"a.json", "[{\"text\": \"a b\"},\n{\"text\": \"e f\"},\n]", 3, "lacks a record here", true},
    {"a.json", "[{\"text\": \"a b\"}\n{\"text\": \"e f\"}]", 2, "neither a comma", true},
    {"a.json", "[{\"text\": \"a b\"},\n{\"text\": \"e f\"", 2, "no record of JSON ends", true},
    {"a.json", "[{\"text\": \"a b\"}]\n{\"text\": \"e f\"}\n", 2, "something follows", true},
    {"a.txt", "a \xff b", 0, "is no text in UTF-8", true},
    {"a.txt", "", 0, "is empty", true},
    {"a.csv", "a,b", 0, "no data by its name", true},
    {"a.jsonl", "\n\n", 0, "no sample", true},
};

START_TEST(what_is_wrong_is_told_by_file_and_line)
{
    char *path = put(wrong[_i].name, wrong[_i].text), where[256];
    tn_error err = TN_ERROR_INIT;
    by.by.vocab = 151646;
    snprintf(where, sizeof where, wrong[_i].line ? "%s:%d" : "%s", path, wrong[_i].line);
    ck_assert_ptr_null(dataset_open(&by.by, (const char *const[]){path}, 1, &err));
    ck_assert_int_eq(err.code, TN_E_INPUT);
    ck_assert_str_eq(err.where, where);
    suite_expect_in(err.message, wrong[_i].words);
    by.by.options.skip_bad = true;
    if (wrong[_i].end) {
        err = (tn_error)TN_ERROR_INIT;
        ck_assert_ptr_null(dataset_open(&by.by, (const char *const[]){path}, 1, &err));
        ck_assert_str_eq(err.where, where);
        return;
    }
    tn_dataset *d = open_file(path);
    tn_dataset_info info = {.size = sizeof info};
    tn_dataset_get_info(d, &info);
    ck_assert_int_eq(info.skipped, 1);
    ck_assert_int_eq(info.samples, 2);
    ck_assert_str_eq(shown(d, 1), "[e f<|endoftext|>]");
}
END_TEST

START_TEST(a_record_has_its_limit)
{
    static const char before[] = "{\"text\": \"", behind[] = "\"}\n{\"text\": \"e f\"}\n";
    tn_error err = TN_ERROR_INIT;
    char *text = malloc(RECORDS_LARGEST + 64);
    memset(text, 'a', RECORDS_LARGEST + 32);
    memcpy(text, before, sizeof before - 1);
    memcpy(text + RECORDS_LARGEST, behind, sizeof behind);
    char *path = put("a.jsonl", text);
    free(text);
    ck_assert_ptr_null(dataset_open(&by.by, (const char *const[]){path}, 1, &err));
    suite_expect_in(err.where, "a.jsonl:1");
    suite_expect_in(err.message, "more than 64 MB");
    by.by.options.skip_bad = true;
    ck_assert_int_eq(tn_dataset_count(open_file(path)), 1);
}
END_TEST

/* The first one of a file, however many are read at once. */
START_TEST(the_first_that_is_wrong_is_told)
{
    tn_error err = TN_ERROR_INIT;
    char *path = put("a.jsonl", "{\"text\": \"a b\"}\n{\"text\": 1}\n{\"text\": 2}\n{\"text\": \"\n");
    ck_assert_ptr_null(dataset_open(&by.by, (const char *const[]){path}, 1, &err));
    suite_expect_in(err.where, "a.jsonl:2");
    path = put("a.json", "[{\"text\": 1},");
    err = (tn_error)TN_ERROR_INIT;
    ck_assert_ptr_null(dataset_open(&by.by, (const char *const[]){path}, 1, &err));
    suite_expect_in(err.message, "text is no text");
}
END_TEST

int main(void)
{
    TCase *all = suite_open("dataset", 60);
    tcase_add_checked_fixture(all, open_all, close_all);
    tcase_add_loop_test(all, formats_are_told_by_keys, 0, sizeof formats / sizeof *formats);
    tcase_add_loop_test(all, calls_of_tools_are_answers, 0, sizeof tooled / sizeof *tooled);
    tcase_add_loop_test(all, files_are_taken_as_people_write_them, 0, sizeof files / sizeof *files);
    tcase_add_loop_test(all, what_is_wrong_is_told_by_file_and_line, 0, sizeof wrong / sizeof *wrong);
    suite_add(all, one_sample_has_all_answers, models_that_think_are_asked_as_they_are_answered,
              an_answer_begins_where_the_template_parts, every_day_is_the_same, samples_are_cut,
              a_text_goes_on_in_the_next_sample, a_long_text_is_cut_at_ends_of_lines, files_follow_one_another,
              threads_change_nothing, the_first_that_is_wrong_is_told, a_record_has_its_limit);
    return suite_run();
}
