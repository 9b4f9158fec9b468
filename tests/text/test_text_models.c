/* Unigram, WordPiece and WordLevel, the components that came with them, and what bounds them. Expected values are those
 * of the `tokenizers` library. */
#include "text_test.h"

#define UNIGRAM(options, pieces) "{\"model\":{\"type\":\"Unigram\",\"vocab\":[" pieces "]" options "}"
#define WORDS "{\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"u\",\"vocab\":{\"u\":0,\"a\":1,\"b\":2,\"ab\":3}}"

START_TEST(unigram_takes_the_best_way)
{
    tn_tokenizer *t =
        opened(UNIGRAM(",\"unk_id\":0", "[\"<unk>\",0],[\"a\",0],[\"b\",0],[\"c\",0],[\"d\",0],[\"cd\",1],"
                                        "[\"ab\",2],[\"abc\",5],[\"abcd\",10]") "}");
    assert_ids(t, "abcdacdxx", false, "8 1 5 0"); /* a run of unknown characters is one token */
    assert_ids(t, "abcd", false, "8");
    assert_ids(t, "xaxx", false, "0 1 0");
    assert_ids(t, "", false, "");
    /* Of equal sums the way found first stays, which begins with the shorter piece. */
    t = opened(UNIGRAM(",\"unk_id\":0", "[\"<unk>\",-9],[\"a\",-1],[\"b\",-1],[\"ab\",-2]") "}");
    assert_ids(t, "ab", false, "3");
    /* A single character that scores worse than unknown ones is still a piece. */
    t = opened(UNIGRAM(",\"unk_id\":0", "[\"<unk>\",0],[\"a\",-90],[\"\xc3\xa9\xc3\xa9\",-1]") "}");
    assert_ids(t, "a\xc3\xa9\xc3\xa9\xc3\xa9", false, "1 0 2");
}
END_TEST

START_TEST(unigram_falls_back_to_bytes)
{
    tn_tokenizer *t = opened(
        UNIGRAM(",\"unk_id\":0,\"byte_fallback\":true", "[\"<unk>\",0],[\"<0xC3>\",0],[\"<0xA9>\",0],[\"x\",0]") "}");
    assert_ids(t, "x\xc3\xa9x", false, "3 1 2 3");
    assert_ids(t, "x\xc3\xa8x", false, "3 0 3");   /* one byte is missing */
    assert_ids(t, "\xc3\xa9\xc3\xa8", false, "0"); /* they are a run before they are bytes */
}
END_TEST

static void assert_encode_error(const char *json, const char *text, const char *word)
{
    tn_tokenizer *t = opened(json);
    int64_t *ids;
    size_t count;
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_tokenizer_encode(t, text, strlen(text), false, &ids, &count, &err), TN_E_INPUT);
    ck_assert_ptr_null(ids);
    ck_assert_msg(strstr(err.message, word) && strchr(err.message, ';'), "'%s' lacks '%s'", err.message, word);
}

START_TEST(unknown_without_a_token_for_it)
{
    assert_encode_error(UNIGRAM("", "[\"a\",0],[\"bc\",0]") "}", "ax", "no unknown token");
    assert_encode_error(UNIGRAM("", "[\"a\",0],[\"bc\",0]") "}", "bc", "no unknown token"); /* as the library */
    assert_encode_error("{\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"u\",\"vocab\":{\"a\":1}}}", "b",
                        "lacks unk_token");
}
END_TEST

START_TEST(wordpiece_takes_the_longest)
{
    tn_tokenizer *t =
        opened("{\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\",\"continuing_subword_prefix\":\"##\","
               "\"max_input_chars_per_word\":8,\"vocab\":{\"[UNK]\":0,\"un\":1,\"##aff\":2,\"##able\":3,\"##a\":4,"
               "\"u\":5,\"##\xc3\xa9\":6}},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
               "\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}}");
    assert_ids(t, "unaff un", false, "1 2 1");
    assert_ids(t, "ua\xc3\xa9", false, "5 4 6");
    assert_ids(t, "unaffx un", false, "0 1"); /* one part is missing: the word is unknown */
    assert_ids(t, "unaffable", false, "0");   /* nine characters */
    assert_ids(t, "una\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", false, "1 4 6 6 6 6 6"); /* eight */
    assert_text(t, (int64_t[]){1, 2, 3, 5}, 4, false, "unaffable u");
    assert_text(t, (int64_t[]){2, 5}, 2, false, "##aff u");
}
END_TEST

START_TEST(wordlevel)
{
    tn_tokenizer *t = opened(WORDS ",\"pre_tokenizer\":{\"type\":\"Whitespace\"},\"post_processor\":{\"type\":"
                                   "\"BertProcessing\",\"sep\":[\"s\",2],\"cls\":[\"c\",1]}}");
    assert_ids(t, "ab  a c", false, "3 1 0");
    assert_ids(t, "ab", true, "1 3 2");
}
END_TEST

static void assert_normal(const char *json, const char *text, const char *expected)
{
    char whole[4096];
    snprintf(whole, sizeof whole, WORDS ",\"normalizer\":%s}", json);
    tn_tokenizer *t = opened(whole);
    buffer out = {0};
    ck_assert_int_eq(normalize_apply(&t->normalizer, text, strlen(text), &out, NULL), TN_OK);
    ck_assert(buffer_add(&out, "", 1));
    ck_assert_str_eq(out.data, expected);
    buffer_free(&out);
}

#define BERT(accents, lower)                                                                                           \
    "{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":true,\"strip_accents\":" accents        \
    ",\"lowercase\":" lower "}"

START_TEST(normalizers)
{
    assert_normal("{\"type\":\"StripAccents\"}", "e\xcc\x81\xc3\xa9", "e\xc3\xa9");
    assert_normal("{\"type\":\"Nmt\"}", "a\x01\x7f\t\xe2\x80\x8b\xe2\x96\x81z", "a   z");
    assert_normal("{\"type\":\"ByteLevel\"}", "\xc3\xa9 ", "\xc3\x83\xc2\xa9\xc4\xa0");
    assert_normal(BERT("null", "true"), "\xc3\x89\x01t\xef\xbf\xbd\t\xe4\xb8\x80", "et  \xe4\xb8\x80 ");
    assert_normal(BERT("false", "true"), "\xc3\x89", "\xc3\xa9");
    assert_normal(BERT("true", "false"), "\xc3\x89", "E");
    assert_normal(BERT("null", "false"), "\xc3\x89", "\xc3\x89");
    assert_normal("{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"x\"}", "", "");
    /* Characters newer than the tables of the library: not decomposed, and no marks. */
    assert_normal("{\"type\":\"NFD\"}", "\xf0\x91\xa4\xb8", "\xf0\x91\xa4\xb8");
    assert_normal("{\"type\":\"NFC\"}", "a\xe1\xaa\xbf\xcc\x81", "a\xe1\xaa\xbf\xcc\x81");
}
END_TEST

/* A trie of two units that holds nothing, and one that maps "a" to "bc". */
START_TEST(precompiled)
{
    /* Units: the root, whose children are at distance 1 ^ byte; at 1 ^ 'a' the node, with its value at ^ 1 of that. */
    static unsigned char map[4 + 4 * 256 + 4];
    uint32_t units[256] = {0};
    units[0] = 1u << 10;
    units[1 ^ 'a'] = 'a' | 1u << 8 | 1u << 10;
    units[1 ^ 'a' ^ 1] = 0x80000000u | 1; /* the text that begins at 1 */
    map[1] = 4;                           /* 1024 bytes */
    for (size_t i = 0; i < 256; i++)
        for (size_t k = 0; k < 4; k++)
            map[4 + 4 * i + k] = (unsigned char)(units[i] >> 8 * k);
    memcpy(map + 4 + 1024, "xbc", 4);
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char json[2048] = "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"";
    for (size_t i = 0; i < sizeof map; i += 3) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; k++)
            bits = bits << 8 | (i + k < sizeof map ? map[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            sprintf(json + strlen(json), "%c", i + k <= sizeof map ? digits[bits >> (18 - 6 * k) & 63] : '=');
    }
    strcat(json, "\"}");
    assert_normal(json, "banana", "bbcnbcnbc");
    assert_normal(json, "a\xcc\x81z", "bcz"); /* a cluster of three bytes goes by its beginning */
}
END_TEST

static void assert_pieces(const char *json, const char *text, const char *expected)
{
    char whole[2048];
    snprintf(whole, sizeof whole,
             "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0]]},\"pre_tokenizer\":%s}", json);
    tn_tokenizer *t = opened(whole);
    pieces p = {.origin = 1};
    char got[1024] = "";
    ck_assert(buffer_append_piece(&p, text, strlen(text), -1));
    ck_assert_int_eq(pretok_apply(&t->pretok, &p, NULL), TN_OK);
    for (size_t i = 0; i < p.count; i++) {
        strcat(got, got[0] ? "|" : "");
        strncat(got, p.text.data + p.spans[i].start, p.spans[i].end - p.spans[i].start);
    }
    ck_assert_str_eq(got, expected);
    buffer_free_pieces(&p);
}

#define METASPACE(scheme, split)                                                                                       \
    "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"" scheme "\",\"split\":" split "}"

START_TEST(pre_tokenizers)
{
    assert_pieces("{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"-\"}", "a-b--c", "a|b|c");
    assert_pieces("{\"type\":\"FixedLength\",\"length\":2}", "a\xc3\xa9yz!", "a\xc3\xa9|yz|!");
    assert_pieces("{\"type\":\"FixedLength\"}", "abcdefg", "abcde|fg");
    assert_pieces("{\"type\":\"BertPreTokenizer\"}", "Hey, you!?", "Hey|,|you|!|?");
    assert_pieces("{\"type\":\"UnicodeScripts\"}", "  ab\xe4\xb8\x80\xe3\x81\x82 c.",
                  "ab|\xe4\xb8\x80\xe3\x81\x82 |c|.");
    assert_pieces(METASPACE("always", "true"), "Hey  you", "_Hey|_|_you");
    assert_pieces(METASPACE("always", "false"), "Hey you", "_Hey_you");
    assert_pieces(METASPACE("always", "true"), " Hey", "_Hey");
    assert_pieces(METASPACE("never", "true"), "Hey you", "Hey|_you");
    assert_pieces(
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"}," METASPACE("first", "true") "]}",
        "Hey you", "_Hey|you");
    assert_pieces(
        "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"}," METASPACE("first", "true") "]}",
        " Hey you", "Hey|you"); /* the first piece is not where the text begins */
}
END_TEST

/* Where a text begins survives the normalizers, unless they drop it. */
START_TEST(metaspace_at_the_beginning_only)
{
#define FIRST(normalizer)                                                                                              \
    opened(UNIGRAM(",\"unk_id\":0", "[\"<unk>\",0],[\"_\",0],[\"a\",0],[\"b\",0]") ",\"added_tokens\":[{\"id\":4,"     \
                                                                                   "\"content\":\"<s>\",\"special\":"  \
                                                                                   "true}],\"normalizer\":" normalizer \
                                                                                   ",\"pre_tokenizer\":" METASPACE(    \
                                                                                       "first", "true") "}")
    tn_tokenizer *t = FIRST("null");
    assert_ids(t, "ab", false, "1 2 3");
    assert_ids(t, "a<s>b", false, "1 2 4 3");
    assert_ids(t, "<s>b", false, "4 3");
    t = FIRST("{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}");
    assert_ids(t, "ab", false, "1 2 3");
    assert_ids(t, "  ab", false, "2 3");
    t = FIRST("{\"type\":\"Replace\",\"pattern\":{\"String\":\"xx\"},\"content\":\"b\"}");
    assert_ids(t, "xxa", false, "3 2"); /* it comes from the second character */
    t = FIRST("{\"type\":\"Prepend\",\"prepend\":\"b\"}");
    assert_ids(t, "a", false, "1 3 2");
}
END_TEST

static void assert_decoded(const char *decoder, const char *text, const int64_t *ids, size_t count,
                           const char *expected)
{
    char json[1024];
    snprintf(json, sizeof json,
             "{\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"u\",\"vocab\":{%s}},\"decoder\":%s}", text, decoder);
    tn_tokenizer *t = opened(json);
    assert_text(t, ids, count, false, expected);
}

START_TEST(decoders)
{
    const char *words =
        "\"_Hey\":0,\"_my\":1,\"a</w>\":2,\"b</w>\":3,\"<pad>\":4,\"h\":5,\"|\":6,\"hh\":7,\" do not\":8";
    assert_decoded("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"always\"}", words,
                   (int64_t[]){0, 1}, 2, "Hey my");
    assert_decoded("{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"never\"}", words,
                   (int64_t[]){0, 1}, 2, " Hey my");
    assert_decoded("{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"}", words, (int64_t[]){2, 3}, 2, "a b");
    assert_decoded("{\"type\":\"BPEDecoder\",\"suffix\":\"\"}", words, (int64_t[]){7, 5}, 2, " h h h");
    assert_decoded("{\"type\":\"CTC\",\"pad_token\":\"<pad>\",\"word_delimiter_token\":\"|\",\"cleanup\":true}", words,
                   (int64_t[]){5, 5, 4, 5, 6, 6, 5}, 7, "hh h");
    assert_decoded("{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}", words, (int64_t[]){8, 5}, 2,
                   " don't h");
    assert_decoded("{\"type\":\"WordPiece\",\"prefix\":\"\",\"cleanup\":true}", words, (int64_t[]){5, 7}, 2, "hhh");
}
END_TEST

/* What is stripped may be longer than a token: U+2581 has three bytes. */
START_TEST(strip_of_more_than_a_token)
{
    const char *words = "\"a\":0,\"\":1,\"\xe2\x96\x81\":2,\"\xe2\x96\x81\xe2\x96\x81\":3,\"b\xe2\x96\x81\":4";
    const char *strip = "{\"type\":\"Strip\",\"content\":\"\xe2\x96\x81\",\"start\":0,\"stop\":3}";
    assert_decoded(strip, words, (int64_t[]){0, 1, 2, 3, 4}, 5, "ab");
    strip = "{\"type\":\"Strip\",\"content\":\"\xe2\x96\x81\",\"start\":1,\"stop\":2}";
    assert_decoded(strip, words, (int64_t[]){0, 2, 3, 4}, 4, "ab");
}
END_TEST

/* An added token that the normalizer changes decodes to what it became, as in the library. */
START_TEST(normalized_tokens_are_shown_so)
{
    tn_tokenizer *t = opened(WORDS ",\"normalizer\":{\"type\":\"Lowercase\"},\"added_tokens\":[{\"id\":7,\"content\":"
                                   "\"Hello\",\"special\":true},{\"id\":8,\"content\":\"X\",\"normalized\":false}]}");
    assert_ids(t, "hELLOXx", false, "4 5 0");
    assert_text(t, (int64_t[]){4, 5}, 2, true, "hello X"); /* "hello" is the text of no special token */
}
END_TEST

/* Eight steps that each make ten times as much of a text end with an error instead of with all memory. */
START_TEST(growth_is_bounded)
{
    char json[8192] = WORDS ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[";
    for (int i = 0; i < 9; i++)
        strcat(json, i ? ",{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaa\"}"
                       : "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaa\"}");
    strcat(json, "]}}");
    assert_encode_error(json, "a", "normalizer: makes more than 64 MB");
    strcpy(json, WORDS ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (int i = 0; i < 40; i++)
        strcat(json, i ? ",{\"type\":\"ByteLevel\",\"use_regex\":false,\"add_prefix_space\":false}"
                       : "{\"type\":\"ByteLevel\",\"use_regex\":false,\"add_prefix_space\":false}");
    strcat(json, "]}}");
    assert_encode_error(json, "\xc3\xa9", "pre_tokenizer: makes more than 64 MB");
}
END_TEST

/* The same for decoders: each of these makes " h " or "hhhh" of "h". */
START_TEST(growth_of_decoded_text_is_bounded)
{
    static const char *const steps[] = {
        "{\"type\":\"BPEDecoder\",\"suffix\":\"\"}",
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"h\"},\"content\":\"hhhh\"}",
    };
    for (size_t k = 0; k < 2; k++) {
        char json[8192] = "{\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"h\",\"vocab\":{\"h\":0}},"
                          "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[";
        for (int i = 0; i < 40; i++)
            strcat(strcat(json, i ? "," : ""), steps[k]);
        strcat(json, "]}}");
        tn_tokenizer *t = opened(json);
        char *text = NULL;
        tn_error err = TN_ERROR_INIT;
        ck_assert_int_eq(tn_tokenizer_decode(t, (int64_t[]){0, 0}, 2, false, &text, NULL, &err), TN_E_INPUT);
        ck_assert_msg(strstr(err.message, "decoder: makes more than 64 MB"), "%s", err.message);
        ck_assert_ptr_null(text);
    }
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("text_models", TEXT_SECONDS);
    suite_add(tc, unigram_takes_the_best_way, unigram_falls_back_to_bytes, unknown_without_a_token_for_it,
              wordpiece_takes_the_longest, wordlevel, normalizers, precompiled, pre_tokenizers,
              metaspace_at_the_beginning_only, decoders, strip_of_more_than_a_token, normalized_tokens_are_shown_so,
              growth_is_bounded, growth_of_decoded_text_is_bounded);
    return suite_run();
}
