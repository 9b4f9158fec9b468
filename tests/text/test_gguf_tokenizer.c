/* The tokenizer of a .gguf: the same ids as the tokenizer.json that it was made of, what the keys change, and files
 * that are wrong. */
#include "gguf_file.h"
#include "text_test.h"

#include <jansson.h>

#define KEY(name) "tokenizer.ggml." name
#define SPACE "\xe2\x96\x81"

static gguf_file file;

static tn_tokenizer *open_file(tn_error *err)
{
    char *path = gguf_file_write(&file);
    tn_tokenizer *t = tn_tokenizer_open(path, err);
    free(path);
    return t;
}

static tn_tokenizer *opened_file(void)
{
    tn_error err = TN_ERROR_INIT;
    tn_tokenizer *t = open_file(&err);
    ck_assert_msg(t != NULL, "%s: %s", err.where, err.message);
    suite_keep(t, free_tokenizer);
    return t;
}

/* ---- files made of a tokenizer.json ------------------------------------------------------------------ */

typedef struct token {
    const char *text;
    int64_t id; /* in the tokenizer.json, which has only some of its ids                           */
    int32_t type;
    float score;
} token;

typedef struct vocabulary {
    token tokens[4096];
    size_t count;
} vocabulary;

static token *token_of(vocabulary *v, int64_t id)
{
    for (size_t i = 0; i < v->count; i++)
        if (v->tokens[i].id == id)
            return &v->tokens[i];
    v->tokens[v->count].id = id;
    return &v->tokens[v->count++];
}

static vocabulary vocabulary_of(const json_t *root)
{
    vocabulary v = {.count = 0};
    const char *text;
    json_t *id, *added;
    size_t i;
    json_object_foreach (json_object_get(json_object_get(root, "model"), "vocab"), text, id)
        *token_of(&v, json_integer_value(id)) = (token){text, json_integer_value(id), 1, -1e6F};
    json_array_foreach (json_object_get(root, "added_tokens"), i, added) {
        token *t = token_of(&v, json_integer_value(json_object_get(added, "id")));
        t->text = json_string_value(json_object_get(added, "content"));
        t->type = json_is_true(json_object_get(added, "special")) ? 3 : 4;
    }
    return v;
}

/* Merges as texts, in either form. Each is owned. */
static size_t merges_of(const json_t *root, char **merges)
{
    size_t i;
    json_t *merge;
    json_array_foreach (json_object_get(json_object_get(root, "model"), "merges"), i, merge) {
        char text[512];
        snprintf(text, sizeof text, "%s %s", json_string_value(json_array_get(merge, 0)),
                 json_string_value(json_array_get(merge, 1)));
        merges[i] = strdup(json_is_string(merge) ? json_string_value(merge) : text);
    }
    return json_array_size(json_object_get(json_object_get(root, "model"), "merges"));
}

/* The score of a piece is the place of the first merge that makes it, turned round. */
static void score(vocabulary *v, char *const *merges, size_t count)
{
    for (size_t i = count; i-- > 0;) {
        char joined[512];
        const char *space = strchr(merges[i], ' ');
        snprintf(joined, sizeof joined, "%.*s%s", (int)(space - merges[i]), merges[i], space + 1);
        for (size_t k = 0; k < v->count; k++)
            if (strcmp(v->tokens[k].text, joined) == 0)
                v->tokens[k].score = -(float)i;
    }
}

static void add_tokens(const vocabulary *v, bool scores)
{
    gguf_file_array(&file, KEY("tokens"), 8, v->count);
    for (size_t i = 0; i < v->count; i++)
        gguf_file_string(&file, v->tokens[i].text);
    gguf_file_array(&file, KEY("token_type"), 5, v->count);
    for (size_t i = 0; i < v->count; i++)
        gguf_file_bytes(&file, &v->tokens[i].type, 4);
    if (scores)
        gguf_file_array(&file, KEY("scores"), 6, v->count);
    for (size_t i = 0; scores && i < v->count; i++)
        gguf_file_bytes(&file, &v->tokens[i].score, 4);
}

static void assert_cases(const tn_tokenizer *t, const vocabulary *v, const char *path)
{
    size_t i;
    json_t *cases = json_load_file(path, JSON_ALLOW_NUL, NULL), *one;
    ck_assert_uint_gt(json_array_size(cases), 100);
    json_array_foreach (cases, i, one) {
        const json_t *text = json_object_get(one, "text"), *wanted = json_object_get(one, "ids");
        bool special = json_is_true(json_object_get(one, "add_special_tokens"));
        int64_t *ids;
        size_t count;
        ck_assert_int_eq(
            tn_tokenizer_encode(t, json_string_value(text), json_string_length(text), special, &ids, &count, NULL),
            TN_OK);
        ck_assert_msg(count == json_array_size(wanted), "%s[%zu]: %zu ids", path, i, count);
        for (size_t k = 0; k < count; k++)
            ck_assert_msg(v->tokens[ids[k]].id == json_integer_value(json_array_get(wanted, k)), "%s[%zu]: id %zu",
                          path, i, k);
        free(ids);
    }
    json_decref(cases);
}

static const struct made {
    const char *name, *model, *pre, *bos;
} made[] = {
    {"gpt-2", "gpt2", "gpt-2", NULL}, {"qwen2", "gpt2", "qwen2", NULL},
    {"mpt", "gpt2", "mpt", NULL},     {"llama-3", "gpt2", "llama-bpe", "<|begin_of_text|>"},
    {"phi-3", "llama", NULL, "<s>"},
};

START_TEST(of_json)
{
    const struct made *m = &made[_i];
    char path[256], *merges[4096];
    snprintf(path, sizeof path, "tests/data/tokenizers/%s/tokenizer.json", m->name);
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, NULL);
    vocabulary v = vocabulary_of(root);
    size_t count = merges_of(root, merges);
    bool scored = strcmp(m->model, "llama") == 0;
    gguf_file_start(&file, 3);
    gguf_file_text(&file, "general.architecture", scored ? "phi3" : "qwen2");
    gguf_file_text(&file, KEY("model"), m->model);
    if (m->pre)
        gguf_file_text(&file, KEY("pre"), m->pre);
    if (scored)
        score(&v, merges, count);
    else
        gguf_file_texts(&file, KEY("merges"), (const char *const *)merges, count);
    add_tokens(&v, scored);
    for (uint32_t i = 0; m->bos && i < v.count; i++)
        if (strcmp(v.tokens[i].text, m->bos) == 0)
            gguf_file_u32(&file, KEY("bos_token_id"), i);
    snprintf(path, sizeof path, "tests/data/tokenizers/%s/cases.json", m->name);
    assert_cases(opened_file(), &v, path);
    for (size_t i = 0; i < count; i++)
        free(merges[i]);
    json_decref(root);
}
END_TEST

/* ---- small ones --------------------------------------------------------------------------------------- */

static const char *const letters[] = {"a", "b", "ab", "\xc4\xa0", "<e>", "<u>"};
static const int32_t types[] = {1, 1, 1, 1, 3, 4};
static const char *const merges[] = {"a b"};
enum { LETTERS = sizeof letters / sizeof *letters };

static void start(const char *model, const char *pre)
{
    gguf_file_start(&file, 3);
    if (model)
        gguf_file_text(&file, KEY("model"), model);
    if (pre)
        gguf_file_text(&file, KEY("pre"), pre);
}

/* A whole byte-level tokenizer, to which keys may be added. */
static void start_letters(const char *pre)
{
    start("gpt2", pre);
    gguf_file_texts(&file, KEY("tokens"), letters, LETTERS);
    gguf_file_i32s(&file, KEY("token_type"), types, LETTERS);
    gguf_file_texts(&file, KEY("merges"), merges, 1);
}

START_TEST(byte_level)
{
    const int64_t ids[] = {2, 3, 4, 5};
    start_letters("qwen2");
    tn_tokenizer *t = opened_file();
    ck_assert_int_eq(tn_tokenizer_size(t), LETTERS);
    assert_ids(t, "ab a<e>b<u>", true, "2 3 0 4 1 5");
    assert_text(t, ids, 4, false, "ab <e><u>");
    assert_text(t, ids, 4, true, "ab <u>");
}
END_TEST

START_TEST(around)
{
    start_letters("llama-bpe"); /* which adds the first by itself, if there is one */
    assert_ids(opened_file(), "a", true, "0");
    gguf_file_u32(&file, KEY("bos_token_id"), 4);
    assert_ids(opened_file(), "a", true, "4 0");
    assert_ids(opened_file(), "a", false, "0");
    gguf_file_flag(&file, KEY("add_eos_token"), true);
    gguf_file_u32(&file, KEY("eos_token_id"), 5);
    assert_ids(opened_file(), "a", true, "4 0 5");
    gguf_file_flag(&file, KEY("add_bos_token"), false);
    assert_ids(opened_file(), "a", true, "0 5");
    start_letters("qwen2");
    gguf_file_u32(&file, KEY("bos_token_id"), 4);
    assert_ids(opened_file(), "a", true, "0");
    gguf_file_flag(&file, KEY("add_bos_token"), true);
    gguf_file_flag(&file, KEY("add_eos_token"), true);
    gguf_file_u32(&file, KEY("eos_token_id"), 4); /* one token on both sides */
    assert_ids(opened_file(), "a", true, "4 0 4");
}
END_TEST

/* A space goes in front unless the file says otherwise, and what merges first is what has the best score. */
START_TEST(scored_pieces)
{
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", SPACE, "a", "b", "ab", SPACE "a", "<0xC3>", "<0xA9>"};
    static const float scores[] = {0, 0, 0, -5, -6, -7, -1, -2, 0, 0};
    static const int32_t kinds[] = {2, 3, 3, 1, 1, 1, 1, 1, 6, 6};
    start("llama", "default");
    gguf_file_texts(&file, KEY("tokens"), tokens, 10);
    gguf_file_floats(&file, KEY("scores"), scores, 10);
    gguf_file_i32s(&file, KEY("token_type"), kinds, 10);
    assert_ids(opened_file(), "ab a\xc3\xa9", true, "1 3 6 7 8 9");
    gguf_file_flag(&file, KEY("add_space_prefix"), false);
    assert_ids(opened_file(), "ab a", true, "1 6 7");
    gguf_file_flag(&file, KEY("add_bos_token"), false);
    assert_ids(opened_file(), "ab a</s>", true, "6 7 2");
}
END_TEST

START_TEST(merged_pieces)
{
    static const char *const tokens[] = {"<unk>", "<s>", SPACE, "a", SPACE "a"};
    static const char *const joined[] = {SPACE " a"};
    start("gemma4", NULL);
    gguf_file_texts(&file, KEY("tokens"), tokens, 5);
    gguf_file_texts(&file, KEY("merges"), joined, 1);
    gguf_file_u32(&file, KEY("bos_token_id"), 1);
    gguf_file_u32(&file, KEY("unknown_token_id"), 0);
    assert_ids(opened_file(), "a a", true, "1 3 4");
}
END_TEST

/* Files have had tokens without a text, which no text becomes. */
START_TEST(empty_tokens)
{
    static const char *const tokens[] = {"a", "", ""};
    start("gpt2", "gpt-2");
    gguf_file_texts(&file, KEY("tokens"), tokens, 3);
    gguf_file_texts(&file, KEY("merges"), NULL, 0);
    assert_ids(opened_file(), "aa", true, "0 0");
}
END_TEST

/* ---- what is wrong ------------------------------------------------------------------------------------ */

static void assert_wrong(const char *word)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(open_file(&err) == NULL, "'%s' was no error", word);
    ck_assert_int_eq(err.code, TN_E_INPUT);
    ck_assert_msg(strstr(err.where, "model.gguf"), "no file in '%s'", err.where);
    ck_assert_msg(strstr(err.message, word), "'%s' lacks '%s'", err.message, word);
    ck_assert_msg(strchr(err.message, ';') && !strchr(err.message, '\n'), "'%s' says not what to do", err.message);
}

START_TEST(wrong_kind)
{
    start(NULL, NULL);
    assert_wrong("key 'tokenizer.ggml.model' is missing");
    start("rwkv", NULL);
    assert_wrong("key 'tokenizer.ggml.model': 'rwkv' is not supported; supported are llama, gpt2 and gemma4");
    start("gpt2", NULL);
    assert_wrong("key 'tokenizer.ggml.pre' does not say how text is split");
    start("gpt2", "default");
    assert_wrong("key 'tokenizer.ggml.pre' does not say how text is split");
    start("gpt2", "klingon");
    assert_wrong("key 'tokenizer.ggml.pre': 'klingon' is no way to split text that is known");
    start("gpt2", "gpt");
    assert_wrong("'gpt' is no way");
    start("gpt2", "gpt-2");
    assert_wrong("key 'tokenizer.ggml.merges' is missing");
    start("llama", NULL);
    assert_wrong("key 'tokenizer.ggml.scores' is missing");
}
END_TEST

START_TEST(wrong_lists)
{
    static const char *const twins[] = {"a", "b", "a"};
    static const char *const others[] = {"a c"};
    static const char *const single[] = {"a"};
    start("gpt2", "gpt-2");
    gguf_file_texts(&file, KEY("merges"), merges, 1);
    assert_wrong("key 'tokenizer.ggml.tokens' is missing");
    gguf_file_i32s(&file, KEY("tokens"), types, LETTERS);
    assert_wrong("key 'tokenizer.ggml.tokens' is no list of strings");
    start("gpt2", "gpt-2");
    gguf_file_texts(&file, KEY("tokens"), twins, 3);
    gguf_file_texts(&file, KEY("merges"), merges, 0);
    assert_wrong("tokens 0 and 2 are the same");
    start_letters("gpt-2");
    gguf_file_floats(&file, KEY("scores"), (const float[]){1, 2}, 2);
    assert_wrong("key 'tokenizer.ggml.scores' is no list as long as that of tokens");
    start_letters("gpt-2");
    gguf_file_texts(&file, KEY("scores"), letters, LETTERS);
    assert_wrong("key 'tokenizer.ggml.scores' is no list of numbers");
    start("gpt2", "gpt-2");
    gguf_file_texts(&file, KEY("tokens"), letters, LETTERS);
    gguf_file_texts(&file, KEY("token_type"), letters, LETTERS);
    gguf_file_texts(&file, KEY("merges"), others, 1);
    assert_wrong("key 'tokenizer.ggml.token_type' is no list of integers");
    start("gpt2", "gpt-2");
    gguf_file_texts(&file, KEY("tokens"), letters, LETTERS);
    gguf_file_texts(&file, KEY("merges"), others, 1);
    assert_wrong("merges[0]: token 'c' is not in vocab");
    start("gpt2", "gpt-2");
    gguf_file_texts(&file, KEY("tokens"), letters, LETTERS);
    gguf_file_texts(&file, KEY("merges"), single, 1);
    assert_wrong("merges[0]");
    start("gpt2", "gpt-2");
    gguf_file_i32s(&file, KEY("merges"), types, 1);
    assert_wrong("key 'tokenizer.ggml.merges' is missing, or no list of strings");
}
END_TEST

START_TEST(wrong_score)
{
    float nan = 0;
    memcpy(&nan, &(uint32_t){0x7fc00000}, sizeof nan);
    start("llama", NULL);
    gguf_file_texts(&file, KEY("tokens"), letters, 1);
    gguf_file_floats(&file, KEY("scores"), &nan, 1);
    assert_wrong("score of piece 0");
}
END_TEST

START_TEST(wrong_keys)
{
    start_letters("gpt-2");
    gguf_file_u32(&file, KEY("bos_token_id"), LETTERS);
    assert_wrong("key 'tokenizer.ggml.bos_token_id' is no token");
    start_letters("gpt-2");
    gguf_file_text(&file, KEY("eos_token_id"), "4");
    assert_wrong("key 'tokenizer.ggml.eos_token_id' is no token");
    start_letters("gpt-2");
    gguf_file_flag(&file, KEY("add_bos_token"), true);
    assert_wrong("key 'tokenizer.ggml.bos_token_id' is missing");
    start_letters("gpt-2");
    gguf_file_u32(&file, KEY("add_eos_token"), 1);
    assert_wrong("key 'tokenizer.ggml.add_eos_token' is neither true nor false");
    start_letters("gpt-2");
    gguf_file_flag(&file, KEY("add_space_prefix"), true);
    assert_wrong("key 'tokenizer.ggml.add_space_prefix' is true");
}
END_TEST

/* A name with a known one in it, and empty ones. */
START_TEST(names_of_splits)
{
    start_letters("");
    assert_wrong("''");
    start_letters(" ");
    assert_wrong("' '");
    start_letters("gpt-2 phi-2");
    assert_wrong("'gpt-2 phi-2'");
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("gguf_tokenizer", TEXT_SECONDS);
    tcase_add_loop_test(tc, of_json, 0, sizeof made / sizeof *made);
    tcase_add_test(tc, byte_level);
    tcase_add_test(tc, around);
    tcase_add_test(tc, scored_pieces);
    tcase_add_test(tc, merged_pieces);
    tcase_add_test(tc, empty_tokens);
    tcase_add_test(tc, wrong_kind);
    tcase_add_test(tc, wrong_lists);
    tcase_add_test(tc, wrong_score);
    tcase_add_test(tc, wrong_keys);
    tcase_add_test(tc, names_of_splits);
    return suite_run();
}
