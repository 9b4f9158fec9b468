/* The components of a tokenizer one by one: normalizers, pre-tokenizers, added tokens, BPE's options, templates,
 steps_of_a_post_processor,
 * decoders. */
#include "text_test.h"

#include <utf8proc.h>

START_TEST(split_behaviours)
{
    const char *dash = "{\"String\":\"-\"}", *text = "the-final--countdown";
    assert_split(dash, "Removed", "false", text, "the|final|countdown");
    assert_split(dash, "Isolated", "false", text, "the|-|final|-|-|countdown");
    assert_split(dash, "MergedWithPrevious", "false", text, "the-|final-|-|countdown");
    assert_split(dash, "MergedWithNext", "false", text, "the|-final|-|-countdown");
    assert_split(dash, "Contiguous", "false", text, "the|-|final|--|countdown");
    assert_split(dash, "MergedWithNext", "false", "-a-", "-a|-");
    assert_split(dash, "MergedWithPrevious", "false", "--a", "-|-|a");
    assert_split(dash, "Contiguous", "false", "--a", "--|a");
    assert_split(dash, "Removed", "true", text, "-|-|-");
    assert_split(dash, "MergedWithPrevious", "true", "a-b", "a|-b");
    assert_split("{\"String\":\".\"}", "Isolated", "false", "a.b", "a|.|b");
    assert_split("{\"Regex\":\".\"}", "Isolated", "false", "a.b", "a|.|b");
    assert_split("{\"Regex\":\"x*\"}", "Isolated", "false", "axxb", "a|xx|b");
    assert_split("{\"Regex\":\"\"}", "Isolated", "false", "h\xc3\xa9!", "h|\xc3\xa9|!");
}
END_TEST

START_TEST(other_pre_tokenizers)
{
    assert_pretok("{\"type\":\"Digits\",\"individual_digits\":true}", "a12b\xc2\xbd", "a|1|2|b|\xc2\xbd");
    assert_pretok("{\"type\":\"Digits\"}", "a12b3", "a|12|b|3");
    assert_pretok("{\"type\":\"Punctuation\"}", "a,$\xe2\x80\x94z", "a|,|$|\xe2\x80\x94|z");
    assert_pretok("{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}", "a,.z", "a|,.|z");
    assert_pretok("{\"type\":\"Whitespace\"}", "Hey  you, man", "Hey|you|,|man");
    assert_pretok("{\"type\":\"WhitespaceSplit\"}", "Hey  you, man", "Hey|you,|man");
    assert_pretok("{\"type\":\"ByteLevel\",\"add_prefix_space\":false}", "I'm  12\n",
                  "I|'m|\xc4\xa0|\xc4\xa0"
                  "12|\xc4\x8a");
    assert_pretok("{\"type\":\"ByteLevel\"}", "a b",
                  "\xc4\xa0"
                  "a|\xc4\xa0"
                  "b");
    assert_pretok("{\"type\":\"ByteLevel\",\"use_regex\":false}", " a b",
                  "\xc4\xa0"
                  "a\xc4\xa0"
                  "b");
    assert_pretok("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"},{\"type\":\"Punctuation\"}]}",
                  "a1,b", "a|1|,|b");
}
END_TEST

static void assert_normal(const char *json, const char *text, const char *expected)
{
    char whole[1024];
    snprintf(whole, sizeof whole, "{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]},\"normalizer\":%s}", json);
    tn_tokenizer *t = opened(whole);
    buffer out = {0};
    ck_assert_int_eq(normalize_apply(&t->normalizer, text, strlen(text), &out, NULL), TN_OK);
    ck_assert(buffer_add(&out, "", 1));
    ck_assert_str_eq(out.data, expected);
    buffer_free(&out);
}

START_TEST(normalizers)
{
    assert_normal("{\"type\":\"NFC\"}", "e\xcc\x81", "\xc3\xa9");
    assert_normal("{\"type\":\"NFD\"}", "\xc3\xa9", "e\xcc\x81");
    assert_normal("{\"type\":\"NFC\"}", "\xef\xac\x81", "\xef\xac\x81");
    assert_normal("{\"type\":\"NFKC\"}", "\xef\xac\x81\xc3\xa9", "fi\xc3\xa9");
    assert_normal("{\"type\":\"NFKD\"}", "\xef\xac\x81\xc3\xa9", "fie\xcc\x81");
    assert_normal("{\"type\":\"NFC\"}", "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", "\xea\xb0\x81"); /* Hangul */
    assert_normal("{\"type\":\"NFKD\"}", "\xef\xb7\xba", /* U+FDFA, the longest */
                  "\xd8\xb5\xd9\x84\xd9\x89 \xd8\xa7\xd9\x84\xd9\x84\xd9\x87 \xd8\xb9\xd9\x84\xd9\x8a\xd9\x87 "
                  "\xd9\x88\xd8\xb3\xd9\x84\xd9\x85");
    assert_normal("{\"type\":\"Lowercase\"}", "A\xc3\x89\xc4\xb0", "a\xc3\xa9i\xcc\x87");
    assert_normal("{\"type\":\"Prepend\",\"prepend\":\"_\"}", "a", "_a");
    assert_normal("{\"type\":\"Prepend\",\"prepend\":\"_\"}", "", "");
    assert_normal("{\"type\":\"Strip\"}", " \xe3\x80\x80 a b\xc2\xa0 ", "a b");
    assert_normal("{\"type\":\"Strip\",\"strip_left\":false}", " a ", " a");
    assert_normal("{\"type\":\"Strip\",\"strip_right\":false}", "  ", "");
    assert_normal("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\"~\"}", "a   b c", "a~b c");
    assert_normal(
        "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\" \"},{\"type\":\"Replace\","
        "\"pattern\":{\"String\":\" \"},\"content\":\"__\"},{\"type\":\"Lowercase\"}]}",
        "A b", "__a__b");
}
END_TEST

/* Characters that count as inert are starters, stay as they are, and are no second part of any composition. */
START_TEST(inert_characters)
{
    static bool second[0x110000];
    for (int32_t code = 0; code < 0x110000; code++) {
        utf8proc_int32_t parts[32];
        int boundary = 0;
        bool surrogate = code >= 0xd800 && code < 0xe000;
        utf8proc_ssize_t n = surrogate ? 0 : utf8proc_decompose_char(code, parts, 32, UTF8PROC_DECOMPOSE, &boundary);
        for (utf8proc_ssize_t i = 1; i < n; i++)
            second[parts[i]] = true;
    }
    size_t count = 0;
    for (int32_t code = 0; code < 0x110000; code++) {
        utf8proc_uint8_t text[8] = "", *normal;
        for (int nfc = 0; nfc < 2; nfc++) {
            if (!inert_is(nfc, code))
                continue;
            ck_assert_int_eq(utf8proc_get_property(code)->combining_class, 0);
            ck_assert_msg(!second[code], "U+%04X", code);
            text[utf8proc_encode_char(code, text)] = 0;
            normal = nfc ? utf8proc_NFC(text) : utf8proc_NFKD(text);
            ck_assert_msg(strcmp((char *)normal, (char *)text) == 0, "U+%04X", code);
            free(normal);
            count++;
        }
    }
    ck_assert_uint_gt(count, 30000);
}
END_TEST

static size_t random_text(uint64_t *state, char *text, size_t characters)
{
    static const int32_t common[] = {'a',    'e',    0xe9,   0x301,  0x323,  0x30a,  0x1100,
                                     0x1161, 0x11a8, 0xac00, 0x3099, 0x304b, 0x4e2d, 0x212b,
                                     0x1e0a, 0x5d0,  0x5b0,  0x915,  0x93c,  0xfb01, ' '};
    size_t n = 0;
    for (size_t i = 0; i < characters; i++) {
        int32_t code = common[noise(state) % (sizeof common / sizeof common[0])];
        if (noise(state) % 4 == 0)
            code = (int32_t)(noise(state) % 0x11000);
        if (code > 0 && (code < 0xd800 || code >= 0xe000))
            n += (size_t)utf8proc_encode_char(code, (utf8proc_uint8_t *)text + n);
    }
    text[n] = '\0';
    return n;
}

/* Appends the form as utf8proc has it. Characters that are too new for the library stay, and part what is around them.
 */
static void add_expected(const char *text, size_t length, int options, buffer *out)
{
    size_t start = 0, end = 0;
    while (start < length) {
        utf8_char c = {0};
        for (end = start; end < length; end += c.length) {
            c = utf8_read(text + end, length - end);
            if (unicode_is_too_new(c.code))
                break;
        }
        utf8proc_uint8_t *made;
        utf8proc_ssize_t size = utf8proc_map((const utf8proc_uint8_t *)text + start, (utf8proc_ssize_t)(end - start),
                                             &made, (utf8proc_option_t)(options | UTF8PROC_STABLE));
        ck_assert_int_ge(size, 0);
        start = end < length ? end + c.length : end;
        ck_assert(buffer_add(out, (char *)made, (size_t)size) && buffer_add(out, text + end, start - end));
        free(made);
    }
}

/* Cut into stretches or as a whole, the forms are the same. */
START_TEST(forms_like_utf8proc)
{
    static const struct {
        const char *type;
        int options;
    } forms[] = {{"NFC", UTF8PROC_COMPOSE},
                 {"NFD", UTF8PROC_DECOMPOSE},
                 {"NFKC", UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
                 {"NFKD", UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT}};
    uint64_t state = 23;
    for (int f = 0; f < 4; f++) {
        char json[256], text[256];
        snprintf(json, sizeof json,
                 "{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]},\"normalizer\":{\"type\":\"%s\"}}",
                 forms[f].type);
        tn_tokenizer *t = opened(json);
        for (int round = 0; round < 20000; round++) {
            size_t n = random_text(&state, text, 1 + noise(&state) % 40);
            buffer expected = {0}, out = {0};
            add_expected(text, n, forms[f].options, &expected);
            ck_assert_int_eq(normalize_apply(&t->normalizer, text, n, &out, NULL), TN_OK);
            ck_assert_uint_eq(out.size, expected.size);
            ck_assert_mem_eq(out.data ? out.data : "", expected.data ? expected.data : "", out.size);
            buffer_free(&expected);
            buffer_free(&out);
        }
    }
}
END_TEST

/* Letters a to d, and X for "unknown". */
#define LETTERS "\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"abc\":4,\"X\":5,\" \":6"

START_TEST(added_tokens)
{
    tn_tokenizer *t = opened("{\"added_tokens\":["
                             "{\"id\":10,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
                             "{\"id\":11,\"content\":\"<s>>\",\"special\":true,\"normalized\":false},"
                             "{\"id\":12,\"content\":\"<l>\",\"lstrip\":true,\"normalized\":false},"
                             "{\"id\":13,\"content\":\"<r>\",\"rstrip\":true,\"normalized\":false},"
                             "{\"id\":14,\"content\":\"cab\",\"single_word\":true,\"normalized\":false},"
                             "{\"id\":15,\"content\":\"BB\",\"normalized\":true},"
                             "{\"id\":16,\"content\":\"CC\",\"normalized\":false},"
                             "{\"id\":99,\"content\":\"abc\",\"normalized\":false}],"
                             "\"normalizer\":{\"type\":\"Lowercase\"},"
                             "\"model\":{\"type\":\"BPE\",\"vocab\":{" LETTERS "},\"merges\":[\"a b\"]}}");
    ck_assert_int_eq(tn_tokenizer_size(t), 14); /* ids of entries do not count: numbers behind the vocabulary */
    assert_ids(t, "a<s>b", false, "0 7 1");
    assert_ids(t, "<s>>>", false, "8"); /* the longest; '>' is not in the vocabulary */
    assert_ids(t, "a  <l>  b", false, "0 9 6 6 1");
    assert_ids(t, "a  <r>  b", false, "0 6 6 10 1");
    assert_ids(t, "<r>  <l>", false, "10 9"); /* spaces go to the first that takes them */
    assert_ids(t, "cab cabc", false, "11 6 2 3 2");
    assert_ids(t, "acab", false, "0 2 3");
    assert_ids(t, "bbBB", false, "12 12"); /* both are found in normalized text */
    assert_ids(t, "ccCC", false, "2 2 13");
    assert_ids(t, "abc", false, "4");
    assert_text(t, (int64_t[]){7, 13, 5}, 3, true, "CC X");
}
END_TEST

START_TEST(bpe_options)
{
    tn_tokenizer *t = opened("{\"model\":{\"vocab\":{" LETTERS "},\"merges\":[[\"ab\",\"c\"],[\"a\",\"b\"]]}}");
    assert_ids(t, "abc", false, "4");
    assert_ids(t, "a?b", false, "3"); /* unknown characters vanish */
    t = opened("{\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,\"unk_token\":\"X\",\"vocab\":{" LETTERS
               "},\"merges\":[\"#version: 0.2\",\"a b\"]}}");
    assert_ids(t, "abc", false, "4");
    assert_ids(t, "abca", false, "3 2 0");
    assert_ids(t, "??a?", false, "5 5 0 5");
    t = opened("{\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"fuse_unk\":true,\"unk_token\":\"X\",\"vocab\":{"
               "\"<0xC3>\":8,\"<0xA9>\":9," LETTERS "},\"merges\":[]}}");
    assert_ids(t, "??a?", false, "5 0 5");
    assert_ids(t,
               "\xc3\xa9"
               "a\xc3\xa8",
               false, "8 9 0 5");
}
END_TEST

/* Characters inside a word, and its last one, have tokens of their own; a merge leaves out the prefix of the right. */
START_TEST(bpe_affixes)
{
    tn_tokenizer *t = opened(
        "{\"model\":{\"type\":\"BPE\",\"dropout\":0.0,\"unk_token\":\"?\",\"continuing_subword_prefix\":\"##\","
        "\"end_of_word_suffix\":\"</w>\",\"vocab\":{\"?\":0,\"a\":1,\"##b\":2,\"##b</w>\":3,\"a</w>\":4,\"ab\":5,"
        "\"abb</w>\":6},\"merges\":[\"a ##b\",\"ab ##b</w>\"]},\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"}}");
    assert_ids(t, "a ab abb ba", false, "4 1 3 6 0 0");
    t = opened("{\"model\":{\"type\":\"BPE\",\"continuing_subword_prefix\":\"#\",\"vocab\":{\"a\":0,\"#a\":1,\"aa\":2},"
               "\"merges\":[[\"a\",\"#a\"]]}}");
    char text[101], expected[512] = "2"; /* a long word, which falls into parts where no merge joins them */
    memset(text, 'a', 100);
    text[100] = '\0';
    for (int i = 2; i < 100; i++)
        strcat(expected, " 1");
    assert_ids(t, text, false, expected);
}
END_TEST

/* A character that a file names by itself, as key and in a text. */
START_TEST(nul_in_a_token)
{
    tn_tokenizer *t = opened("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"\\u0000\":1},\"merges\":[]}}");
    int64_t *ids;
    size_t count;
    ck_assert_int_eq(tn_tokenizer_encode(t, "a\0a", 3, false, &ids, &count, NULL), TN_OK);
    ck_assert_uint_eq(count, 3);
    ck_assert_int_eq(ids[1], 1);
    free(ids);
}
END_TEST

/* A vocabulary with gaps has no numbers behind it: the entries' ids count. Of two entries for a token the last does. */
START_TEST(vocabulary_with_gaps)
{
    tn_tokenizer *t = opened("{\"added_tokens\":[{\"id\":9,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
                             "{\"id\":8,\"content\":\"<t>\"},{\"id\":7,\"content\":\"<s>\",\"lstrip\":true}],"
                             "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":2},\"merges\":[]}}");
    assert_ids(t, "ab <s><t>", false, "0 2 9 8");
}
END_TEST

START_TEST(templates)
{
    tn_tokenizer *t = opened(
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{" LETTERS "},\"merges\":[]},\"post_processor\":{\"type\":\"Sequence\","
        "\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
        "\"id\":"
        "\"<b>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"<e>\",\"type_"
        "id\":"
        "0}}],\"special_tokens\":{\"<b>\":{\"id\":\"<b>\",\"ids\":[5,6]},\"<e>\":{\"id\":\"<e>\",\"ids\":[4]}}}]}}");
    assert_ids(t, "ab", true, "5 6 0 1 4");
    assert_ids(t, "ab", false, "0 1");
    assert_ids(t, "", true, "5 6 4");
}
END_TEST

/* Steps behind a template take each of its pieces for a text. */
START_TEST(steps_of_a_post_processor)
{
    static const char template[] =
        "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"X\",\"type_id\":0}},{\"Sequence\":{"
        "\"id\":"
        "\"A\",\"type_id\":0}}],\"pair\":[{\"Sequence\":{\"id\":\"B\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\","
        "\"type_id\":0}}],\"special_tokens\":{\"X\":{\"id\":\"X\",\"ids\":[5,5]}}}";
    static const struct {
        const char *second, *expected;
    } steps[] = {{"{\"type\":\"BertProcessing\",\"cls\":[\"abc\",4],\"sep\":[\"ab\",3]}", "4 5 5 3 0 1 3"},
                 {"{\"type\":\"RobertaProcessing\",\"cls\":[\"abc\",4],\"sep\":[\"ab\",3]}", "4 5 5 3 3 0 1 3"},
                 {template, "0 1 5 5"}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        char json[2048];
        snprintf(json, sizeof json,
                 "{\"model\":{\"type\":\"BPE\",\"vocab\":{" LETTERS "},\"merges\":[]},\"post_processor\":{\"type\":"
                 "\"Sequence\",\"processors\":[%s,%s]}}",
                 template, steps[i].second);
        tn_tokenizer *t = opened(json);
        assert_ids(t, "ab", true, steps[i].expected);
        assert_ids(t, "ab", false, "0 1");
    }
}
END_TEST

START_TEST(decoders)
{
    const char *vocab =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"<0xE2>\":0,\"<0x82>\":1,\"<0xAC>\":2,\"_a\":3,\"b__\":4,"
        "\"<0xFF>\":5,\"__\":6},\"merges\":[]},\"decoder\":";
    char json[1024];
    snprintf(json, sizeof json,
             "%s{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"_\"},\"content\":"
             "\" \"},"
             "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
             "\",\"start\":1,\"stop\":0}]}}",
             vocab);
    tn_tokenizer *t = opened(json);
    assert_text(t, (int64_t[]){3, 0, 1, 2, 3}, 5, false, "a\xe2\x82\xac a");
    assert_text(t, (int64_t[]){6, 3}, 2, false, "  a");
    assert_text(t, (int64_t[]){0, 1, 2, 5, 3}, 5, false,
                UTF8_REPLACEMENT UTF8_REPLACEMENT UTF8_REPLACEMENT UTF8_REPLACEMENT " a");
    assert_text(t, (int64_t[]){0, 1}, 2, false, UTF8_REPLACEMENT UTF8_REPLACEMENT);
    /* Strip on both sides of each token, and of the whole; Replace across tokens. */
    snprintf(json, sizeof json, "%s{\"type\":\"Strip\",\"content\":\"_\",\"start\":1,\"stop\":1}}", vocab);
    t = opened(json);
    assert_text(t, (int64_t[]){3, 4, 6, 3}, 4, false, "ab_a");
    snprintf(json, sizeof json,
             "%s{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Replace\",\"pattern\":{\"String\":"
             "\"b___\"},\"content\":\"+\"},{\"type\":\"Strip\",\"content\":\"_\",\"start\":0,\"stop\":2}]}}",
             vocab);
    t = opened(json);
    assert_text(t, (int64_t[]){4, 3, 4, 6}, 4, false, "+a+"); /* b__ _a b__ __ */
}
END_TEST

START_TEST(utf8_replacement)
{
    static const struct {
        const char *bytes;
        int marks;
    } broken[] = {{"\x80", 1},         {"\xc0\x80", 2}, {"\xe2\x82", 1},         {"\xed\xa0\x80", 3},
                  {"\xf0\x9f\x98", 1}, {"\xf5\x80", 2}, {"\xf4\x90\x80\x80", 4}, {"\xe2\xe2\x82", 2},
                  {"\xf0\x80\x80", 3}};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        buffer out = {0};
        ck_assert(utf8_add_clean(&out, broken[i].bytes, strlen(broken[i].bytes)));
        ck_assert_msg(out.size == 3 * (size_t)broken[i].marks, "case %zu: %zu bytes", i, out.size);
        buffer_free(&out);
    }
}
END_TEST

START_TEST(byte_characters)
{
    bool seen[0x144] = {false};
    for (int b = 0; b < 256; b++) {
        int32_t c = pretok_byte_char((unsigned char)b);
        ck_assert(c > 0x20 && c < 0x144 && !seen[c]);
        seen[c] = true;
        ck_assert_int_eq(pretok_char_byte(c), b);
    }
    ck_assert_int_eq(pretok_byte_char(' '), 0x120);
    ck_assert_int_eq(pretok_byte_char('\n'), 0x10a);
    ck_assert_int_eq(pretok_char_byte(' '), -1);
    ck_assert_int_eq(pretok_char_byte(0x144), -1);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("text_parts", TEXT_SECONDS);
    suite_add(tc, split_behaviours, other_pre_tokenizers, normalizers, added_tokens, bpe_options, bpe_affixes,
              nul_in_a_token, vocabulary_with_gaps, templates, steps_of_a_post_processor, decoders, utf8_replacement,
              byte_characters, inert_characters, forms_like_utf8proc);
    return suite_run();
}
