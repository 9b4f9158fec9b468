/* Regular expressions of tokenizer.json: the dialect, as pieces that `tokenizers` 0.23.3 cuts texts into, what is
 * refused, and what a search may take. */
#include "text_test.h"

static const place HERE = {"here", "test"};

START_TEST(regex_dialect)
{
    /* $ and ^ stand at lines; \s leaves out U+180E; \w has letters with marks; \h is a hexadecimal digit. */
    assert_split("{\"Regex\":\"\\\\s+$\"}", "Removed", "false", "a  \nb ", "a|\nb");
    assert_split("{\"Regex\":\"^b\"}", "Isolated", "false", "b\nbb", "b|\n|b|b");
    assert_split("{\"Regex\":\"[\\\\s]\"}", "Removed", "false",
                 "a\xe1\xa0\x8e"
                 "b\xe3\x80\x80"
                 "c\xc2\x85"
                 "d",
                 "a\xe1\xa0\x8e"
                 "b|c|d");
    assert_split("{\"Regex\":\"\\\\w+\"}", "Isolated", "false", "e\xcc\x81-x", "e\xcc\x81|-|x");
    assert_split("{\"Regex\":\"\\\\W\"}", "Isolated", "false", "e\xcc\x81-x", "e\xcc\x81|-|x");
}
END_TEST

START_TEST(regex_more_of_the_dialect)
{
    assert_split("{\"Regex\":\"\\\\h+\"}", "Isolated", "false", "xbeefy", "x|beef|y");
    assert_split("{\"Regex\":\"\\\\u00e9\"}", "Isolated", "false",
                 "a\xc3\xa9"
                 "b",
                 "a|\xc3\xa9|b");
    assert_split("{\"Regex\":\"(?m:a.b)\"}", "Isolated", "false", "xa\nb", "x|a\nb");
    assert_split("{\"Regex\":\"(?i:'S)\"}", "Isolated", "false", "it's", "it|'s");
    assert_split("{\"Regex\":\"[[:digit:]x]+\"}", "Isolated", "false", "a1xb", "a|1x|b");
    assert_split("{\"Regex\":\"[]a]+\"}", "Isolated", "false", "b]a", "b|]a");
}
END_TEST

/* Sets within sets, what sets share, and classes that are left out within brackets. */
START_TEST(regex_sets)
{
    assert_split("{\"Regex\":\"[a-z&&[^aeiou]]+\"}", "Removed", "false", "aaabcz-f", "aaa|-");
    assert_split("{\"Regex\":\"[^a-z&&[^aeiou]]+\"}", "Removed", "false", "zaaabc-", "z|bc");
    assert_split("{\"Regex\":\"[a[bc]d]+\"}", "Removed", "false", "xabcdy", "x|y");
    assert_split("{\"Regex\":\"[\\\\W\\\\d]+\"}", "Removed", "false", "a1-b", "a|b");
    assert_split("{\"Regex\":\"[\\\\Hb]+\"}", "Removed", "false", "axba", "a|a");
    assert_split("{\"Regex\":\"[[:^alpha:]]+\"}", "Removed", "false", "a1-b", "a|b");
    assert_split("{\"Regex\":\"[a&&]\"}", "Removed", "false", "a&", "a&");
    assert_split("{\"Regex\":\"[\\\\p{Lu}\\\\p{Lo}&&[^\\\\p{Han}]]+\"}", "Isolated", "false",
                 "aB\xe6\x97\xa5\xe3\x81\x82", "a|B|\xe6\x97\xa5|\xe3\x81\x82");
}
END_TEST

/* Names, escapes and intervals that PCRE2 lacks or takes for something else. */
START_TEST(regex_names)
{
    assert_split("{\"Regex\":\"\\\\p{Upper-case Letter}\"}", "Removed", "false", "aBc", "a|c");
    assert_split("{\"Regex\":\"\\\\p{^Digit}\"}", "Removed", "false", "a1b", "1");
    assert_split("{\"Regex\":\"[[:punct:]]\"}", "Removed", "false",
                 "a\xe2\x96\x81"
                 "b",
                 "a|b");
    /* A script without its extensions, of which U+3001 is one. */
    assert_split("{\"Regex\":\"\\\\p{Han}\"}", "Removed", "false", "\xe6\x97\xa5\xe3\x80\x81", "\xe3\x80\x81");
    assert_split("{\"Regex\":\"\\\\pL\"}", "Removed", "false", "apLb", "a|b");
    assert_split("{\"Regex\":\"\\\\v\"}", "Removed", "false", "a\nb\vc", "a\nb|c");
    assert_split("{\"Regex\":\"\\\\Q.\"}", "Removed", "false", "aQ.b", "a|b");
    assert_split("{\"Regex\":\"ba{,2}c\"}", "Removed", "false", "1bc2baac3", "1|2|3");
    assert_split("{\"Regex\":\"(?#[)b\"}", "Removed", "false", "abc", "a|c");
    /* A mark belongs to its word. */
    assert_split("{\"Regex\":\"\\\\b\"}", "Isolated", "false", "e\xcc\x81-x", "e\xcc\x81|-|x");
    assert_split("{\"Regex\":\"\\\\Bx\"}", "Removed", "false", "e\xcc\x81x-x", "e\xcc\x81|-x");
}
END_TEST

/* Characters of Unicode 15 and 16: an ideograph, a digit, a mark. */
START_TEST(regex_newer_characters)
{
    assert_split("{\"Regex\":\"\\\\p{L}\"}", "Removed", "false",
                 "1\xf0\xb1\x8d\x90"
                 "2",
                 "1|2");
    assert_split("{\"Regex\":\"[\\\\P{Lo}]\"}", "Removed", "false",
                 "1\xf0\xb1\x8d\x90"
                 "2",
                 "\xf0\xb1\x8d\x90");
    assert_split("{\"Regex\":\"[^\\\\d]\"}", "Removed", "false", "a\xf0\x91\x9b\x90", "\xf0\x91\x9b\x90");
    assert_split("{\"Regex\":\"[\\\\p{L}\\\\p{M}]+\"}", "Removed", "false", "1a\xf0\x9e\x82\x8f-", "1|-");
    assert_split("{\"Regex\":\"\\\\p{Han}\"}", "Removed", "false",
                 "1\xf0\xb1\x8d\x90"
                 "2",
                 "1|2");
}
END_TEST

START_TEST(regex_refusals)
{
    static const struct {
        const char *pattern, *word;
    } bad[] = {{"[a-[b]]", "ends in a set"},
               {"[[:foo:]]", "[: :]"},
               {"a{1,3}+", "interval"},
               {"[a[b]", "without its end"},
               {"(?#a", "comment"},
               {"\\xe9", "beyond ASCII"},
               {"\\u12", "\\u"},
               {"(", "not usable"},
               {"\\p{Nonsense}", "not usable"},
               {"a{2,1}", "not usable"},
               {"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "too deep"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tn_error err = TN_ERROR_INIT;
        ck_assert_ptr_null(regex_new(bad[i].pattern, strlen(bad[i].pattern), false, &(doc_reader){HERE, &err, TN_OK}));
        ck_assert_int_eq(err.code, TN_E_INPUT);
        ck_assert_msg(strstr(err.message, bad[i].word) && strstr(err.message, "test:"), "%s: %s", bad[i].pattern,
                      err.message);
    }
}
END_TEST

/* A pattern with exponentially many ways to fail ends with an error. */
START_TEST(regex_gives_up)
{
    tn_tokenizer *t = opened("{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]},\"pre_tokenizer\":{\"type\":"
                             "\"Split\",\"pattern\":{\"Regex\":\"(a+)+(?<!a)b\"},\"behavior\":\"Isolated\"}}");
    char text[64];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'b';
    int64_t *ids;
    size_t count;
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_tokenizer_encode(t, text, sizeof text, false, &ids, &count, &err), TN_E_INPUT);
    ck_assert_ptr_nonnull(strstr(err.message, "pre_tokenizer"));
    ck_assert_ptr_null(ids);
}
END_TEST

/* Searches that take some thousand steps each, and one that takes a step for each pair of places: the sum counts. */
START_TEST(regex_steps_of_a_text)
{
    static const char *const patterns[] = {"a{0,2000}b|a", "a+$"};
    size_t length = 200000;
    char *text = malloc(length + 1);
    memset(text, 'a', length);
    text[length] = '!';
    for (int i = 0; i < 2; i++) {
        char json[256];
        snprintf(json, sizeof json,
                 "{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\","
                 "\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\"}}",
                 patterns[i]);
        tn_tokenizer *t = opened(json);
        int64_t *ids;
        size_t count;
        tn_error err = TN_ERROR_INIT;
        ck_assert_int_eq(tn_tokenizer_encode(t, text, length + 1, false, &ids, &count, &err), TN_E_INPUT);
        ck_assert_msg(strstr(err.message, "steps") && strstr(err.message, "pre_tokenizer"), "%s", err.message);
        ck_assert_int_eq(tn_tokenizer_encode(t, text, 500, false, &ids, &count, NULL), TN_OK);
        free(ids);
    }
    free(text);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("regex", TEXT_SECONDS);
    suite_add(tc, regex_dialect, regex_more_of_the_dialect, regex_sets, regex_names, regex_newer_characters,
              regex_refusals, regex_gives_up, regex_steps_of_a_text);
    return suite_run();
}
