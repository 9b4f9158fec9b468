/* The reader of JSON beside jansson's, and the keyed hash of its tables. */
#include "text_test.h"

#include "text/parse.h"

#include <jansson.h>

/* The tree holds what jansson has read. */
static void assert_same(const doc_node *node, const json_t *value, const char *all)
{
    static const parse_kind kinds[] = {
        [JSON_OBJECT] = PARSE_OBJECT,   [JSON_ARRAY] = PARSE_LIST, [JSON_STRING] = PARSE_TEXT,
        [JSON_INTEGER] = PARSE_INTEGER, [JSON_REAL] = PARSE_REAL,  [JSON_TRUE] = PARSE_TRUE,
        [JSON_FALSE] = PARSE_FALSE,     [JSON_NULL] = PARSE_NULL};
    ck_assert_msg(node->kind == kinds[json_typeof(value)], "%s", all);
    double number;
    size_t length;
    if (json_is_number(value)) {
        ck_assert(doc_number(node, &number));
        ck_assert_msg(number == json_number_value(value), "%s", all);
    }
    if (json_is_integer(value))
        ck_assert_msg(node->is.integer == json_integer_value(value), "%s", all);
    if (json_is_string(value)) {
        const char *text = doc_text(node, &length);
        ck_assert_uint_eq(length, json_string_length(value));
        ck_assert_mem_eq(text, json_string_value(value), length + 1);
    }
    ck_assert_uint_eq(doc_count(node), json_is_array(value) ? json_array_size(value) : json_object_size(value));
    for (size_t i = 0; i < json_array_size(value); i++)
        assert_same(doc_at(node, i), json_array_get(value, i), all);
    const char *key;
    size_t key_length;
    const doc_node *member;
    void *other = json_object_iter((json_t *)(uintptr_t)value);
    for (void *it = NULL; doc_next(node, &it, &key, &key_length, &member);) { /* in the same order */
        ck_assert_str_eq(key, json_object_iter_key(other));
        ck_assert_ptr_eq(parse_find(node, key, strlen(key)), member);
        assert_same(member, json_object_iter_value(other), all);
        other = json_object_iter_next((json_t *)(uintptr_t)value, other);
    }
    ck_assert_ptr_null(other);
}

/* Both accept text and read the same, or both refuse it. */
static bool assert_like_jansson(const char *text, size_t size)
{
    json_error_t why;
    json_t *expected = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    char *copy = malloc(size + 1);
    memcpy(copy, text, size);
    copy[size] = '\0';
    parse_tree tree;
    parse_error error;
    bool accepted = parse_json(&tree, copy, size, &error);
    if (!expected && json_error_code(&why) == json_error_null_byte_in_key) {
        parse_free(&tree); /* which jansson does not know */
        free(copy);
        return false;
    }
    ck_assert_msg(accepted == (expected != NULL), "%.200s: jansson: %s; here: %s", text,
                  expected ? "accepted" : why.text, accepted ? "accepted" : error.text);
    if (accepted)
        assert_same(&tree.root, expected, text);
    parse_free(&tree);
    free(copy);
    json_decref(expected);
    return accepted;
}

static const char *const samples[] = {
    "{}",
    "[]",
    " [ ] ",
    "[1,2]",
    "[1,]",
    "[,1]",
    "[1 2]",
    "{\"a\":1,}",
    "{\"a\":1 \"b\":2}",
    "{a:1}",
    "{\"a\"}",
    "[",
    "{",
    "]",
    "",
    " ",
    "1",
    "\"a\"",
    "null",
    "[null,true,false]",
    "[nul]",
    "[nulll]",
    "[True]",
    "[]x",
    "[][]",
    "[] \n",
    "[0,-0,1,-1,10,9223372036854775807,-9223372036854775808]",
    "[9223372036854775808]",
    "[-9223372036854775809]",
    "[01]",
    "[-]",
    "[+1]",
    "[.5]",
    "[1.]",
    "[1.5,1e3,1E+3,1e-3,-1.25e2,0.0,-0.0,0e0]",
    "[1e]",
    "[1e+]",
    "[1.e3]",
    "[1e400]",
    "[-1e400]",
    "[1e-400]",
    "[0x10]",
    "[NaN]",
    "[Infinity]",
    "[1.7976931348623157e308]",
    "[0.1,123456789012345678901234567890.5]",
    "[\"\\u0041\\n\\t\\r\\b\\f\\/\\\\\\\"\"]",
    "[\"\\x\"]",
    "[\"\\u12\"]",
    "[\"\\u12G4\"]",
    "[\"\\ud83d\\ude00\"]",
    "[\"\\ud83d\"]",
    "[\"\\ud83dx\"]",
    "[\"\\ud83d\\u0041\"]",
    "[\"\\ude00\"]",
    "[\"\\uD800\\uDC00\\uDBFF\\uDFFF\"]",
    "[\"\\u0000\"]",
    "{\"\\u0000\":1}",
    "{\"a\\u0000b\":1}",
    "[\"a\nb\"]",
    "[\"\x7f\"]",
    "[\"\x01\"]",
    "[\"\xc3\xa9\"]",
    "[\"\xc3\"]",
    "[\"\xff\"]",
    "[\"\xed\xa0\x80\"]",
    "[\"\xc0\x80\"]",
    "[\"\xf4\x90\x80\x80\"]",
    "[\"\xef\xbf\xbf\"]",
    "\xef\xbb\xbf[]",
    "[\xc2\xa0]",
    "[\"",
    "[\"a",
    "[\"\\",
    "[\"\\u",
    "{\"a\":1,\"a\":2}",
    "{\"a\":1,\"b\":{\"a\":1}}",
    "{\"\":1}",
    "{\"\":1,\"\":2}",
    "{1:2}",
    "{\"a\":}",
    "{:1}",
    "[1]//",
    "[/**/]",
    "['a']",
    "{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9,\"j\":10}",
    "{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5,\"f\":6,\"g\":7,\"h\":8,\"i\":9,\"a\":10}",
    "[\f1]",
    "[\v1]",
    "[1\r\n]"};

START_TEST(samples_like_jansson)
{
    size_t accepted = 0, count = sizeof samples / sizeof samples[0];
    for (size_t i = 0; i < count; i++)
        accepted += assert_like_jansson(samples[i], strlen(samples[i]));
    ck_assert_uint_gt(accepted, 20);
    ck_assert_uint_lt(accepted, count - 20);
}
END_TEST

/* A NUL as it stands is no JSON; jansson overlooks one behind a number. */
START_TEST(nul_bytes)
{
    static const char bad[][8] = {"[\"a\0b\"]", "[1\0,2]\0", "[1]\0\0\0\0", "\0[1,2,3]"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char copy[9] = "";
        memcpy(copy, bad[i], 8);
        parse_tree tree;
        parse_error error;
        ck_assert(!parse_json(&tree, copy, i == 0 ? 7 : 8, &error));
        parse_free(&tree);
    }
}
END_TEST

/* Samples cut short, joined and with bytes changed. */
START_TEST(noise_like_jansson)
{
    static const char bytes[] = "[]{},:\"\\ue0123456789.-+ \nabtfn\xc3\xa9\xff";
    uint64_t state = 17;
    size_t accepted = 0, count = sizeof samples / sizeof samples[0];
    for (int round = 0; round < 100000; round++) {
        char text[256] = "[";
        for (int part = 0; part < 2; part++) {
            const char *sample = samples[noise(&state) % count];
            strncat(text, sample, sizeof text - strlen(text) - 3);
            strcat(text, part ? "]" : ",");
        }
        size_t size = strlen(text);
        if (noise(&state) % 2)
            text[noise(&state) % size] = bytes[noise(&state) % (sizeof bytes - 1)];
        if (noise(&state) % 8 == 0)
            size = noise(&state) % size;
        accepted += assert_like_jansson(text, size);
    }
    ck_assert_uint_gt(accepted, 2000);
}
END_TEST

START_TEST(whole_tokenizers_like_jansson)
{
    static const char *const names[] = {DEMO, "tests/data/tokenizers/phi-3", "tests/data/tokenizers/qwen2"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/tokenizer.json", names[i]);
        FILE *f = fopen(path, "rb");
        ck_assert_ptr_nonnull(f);
        char *data = malloc(16 << 20);
        size_t size = fread(data, 1, 16 << 20, f);
        fclose(f);
        ck_assert(assert_like_jansson(data, size));
        free(data);
    }
}
END_TEST

/* As deep as is allowed, and one value deeper. */
START_TEST(depth)
{
    static char text[5000];
    for (size_t depth = 2046; depth <= 2049; depth++)
        for (size_t inner = 0; inner < 2; inner++) {
            memset(text, '[', depth);
            memset(text + depth, '1', inner);
            memset(text + depth + inner, ']', depth);
            ck_assert_int_eq(assert_like_jansson(text, 2 * depth + inner), depth + inner <= 2048);
        }
}
END_TEST

START_TEST(errors_say_where)
{
    static const struct {
        const char *text;
        size_t line, column;
    } bad[] = {{"{\n \"a\":\n  x}", 3, 3}, {"[\"\\n\\n\",\n?]", 2, 1}, {"[1", 1, 3}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char copy[64];
        strcpy(copy, bad[i].text);
        parse_tree tree;
        parse_error error;
        ck_assert(!parse_json(&tree, copy, strlen(copy), &error));
        ck_assert_uint_eq(error.line, bad[i].line);
        ck_assert_uint_eq(error.column, bad[i].column);
        parse_free(&tree);
    }
}
END_TEST

/* SipHash-2-4 of the bytes 0, 1, ... under the key 0, 1, ..., 15, from its authors' paper and program. The variant of
 * the tables, 1-3, is the one that Python gives bytes: PYTHONHASHSEED=0 python3 -c 'print(hash(b"a"))'. */
START_TEST(hash_values)
{
    unsigned char bytes[16];
    for (int i = 0; i < 16; i++)
        bytes[i] = (unsigned char)i;
    siphash_key key, zero = {0, 0};
    memcpy(&key, bytes, sizeof key);
    ck_assert_uint_eq(siphash_of(key, bytes, 15, 2, 4), UINT64_C(0xa129ca6149be45e5));
    ck_assert_uint_eq(siphash_of(key, bytes, 0, 2, 4), UINT64_C(0x726fdb47dd0e0e31));
    ck_assert_uint_eq(siphash_of(key, bytes, 8, 2, 4), UINT64_C(0x93f5f5799a932462));
    ck_assert_uint_eq(siphash(zero, "a", 1), UINT64_C(0x407448d2b89b1813));
    ck_assert_uint_eq(siphash(zero, "abcdefg", 7), UINT64_C(0x6db12aae9070f506));
    ck_assert_uint_eq(siphash(zero, "abcdefgh", 8), UINT64_C(0x3f7b849c0b8e35ea));
    ck_assert_uint_eq(siphash(zero, "The quick brown fox jumps", 25), UINT64_C(0x9e719c78716a132b));
    siphash_key a = siphash_draw(), b = siphash_draw();
    ck_assert_mem_ne(&a, &b, sizeof a);
}
END_TEST

/* The hash that the tables had before they got a key: FNV-1a, folded. */
static uint64_t old_hash(const char *text, size_t length)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

/* Tokens that all fall into one slot of 8192 by that hash: no lookup takes more than a few steps now. */
START_TEST(tokens_made_to_collide)
{
    enum { COUNT = 3000, SLOTS = 8192, STEPS = 200 };
    char *json = malloc((size_t)COUNT * 32);
    size_t n = (size_t)sprintf(json, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{"), found = 0;
    for (uint64_t i = 0; found < COUNT; i++) {
        char name[16];
        size_t length = (size_t)sprintf(name, "%llx", (unsigned long long)i);
        if ((old_hash(name, length) & (SLOTS - 1)) == 0) {
            n += (size_t)sprintf(json + n, "%s\"%s\":%zu", found ? "," : "", name, found);
            found++;
        }
    }
    n += (size_t)sprintf(json + n, "}}}");
    tn_tokenizer *t = opened(json);
    ck_assert_uint_eq(t->vocab.map_mask + 1, SLOTS); /* or the names collide nowhere */
    size_t longest = 0, seen = 0;
    for (size_t slot = 0; slot < SLOTS; slot++) {
        uint32_t id = t->vocab.map[slot];
        if (id == VOCAB_NONE)
            continue;
        const vocab_token *token = &t->vocab.tokens[id];
        size_t home = siphash(t->vocab.key, t->vocab.strings.data + token->offset, token->length) & (SLOTS - 1);
        size_t steps = (slot - home) & (SLOTS - 1);
        longest = steps > longest ? steps : longest;
        seen++;
    }
    ck_assert_uint_eq(seen, COUNT);
    ck_assert_msg(longest < STEPS, "a lookup takes %zu steps", longest);
    free(json);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("parse", TEXT_SECONDS);
    suite_add(tc, samples_like_jansson, nul_bytes, noise_like_jansson, whole_tokenizers_like_jansson, depth,
              errors_say_where, hash_values, tokens_made_to_collide);
    return suite_run();
}
