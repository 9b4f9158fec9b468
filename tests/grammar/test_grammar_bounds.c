/* What a grammar may take: schemas and expressions that explode are refused, what is found out about masks is forgotten
 * in time, and a mask's walk ends. */
#include "suite.h"

#include "grammar/vocabulary.h"
#include "text/token_bytes.h"

#include <check.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tn_tokenizer *tokenizer;
static tn_vocabulary *vocabulary;
static tn_grammar *grammar;

static void set_up(void)
{
    tokenizer = tn_tokenizer_open("tests/data/tokenizers/gpt-2", NULL);
    vocabulary = tn_vocabulary_new(tokenizer, 0, NULL, 0, NULL);
    ck_assert_ptr_nonnull(vocabulary);
}

static void tear_down(void)
{
    tn_grammar_free(grammar);
    grammar = NULL;
    tn_vocabulary_free(vocabulary);
    tn_tokenizer_free(tokenizer);
}

/* before, then count times what item makes of a number, commas between them, then behind. */
static char *repeated(const char *before, const char *item, int count, const char *comma, const char *behind)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    ck_assert_ptr_nonnull(out);
    fputs(before, out);
    for (int i = 0; i < count; i++) {
        fputs(i ? comma : "", out);
        for (const char *c = item; *c; c++)
            *c == '#' ? fprintf(out, "%d", 100000 + i) : fputc(*c, out);
    }
    fputs(behind, out);
    fclose(out);
    return text;
}

static void make(tn_grammar_part part, const char *text)
{
    tn_error err = TN_ERROR_INIT;
    grammar = tn_grammar_new(vocabulary, &part, &text, 1, &err);
    ck_assert_msg(grammar != NULL, "%s", err.message);
}

static tn_grammar_state *new_state(void)
{
    tn_grammar_state *s = tn_grammar_state_new(grammar, NULL);
    ck_assert_ptr_nonnull(s);
    return s;
}

/* ---- what explodes ------------------------------------------------------------------------------------------------
 */

static void refused(char *schema, const char *at)
{
    tn_error err = TN_ERROR_INIT;
    const char *text = schema;
    ck_assert_ptr_null(tn_grammar_new(vocabulary, &(tn_grammar_part){TN_GRAMMAR_SCHEMA}, &text, 1, &err));
    ck_assert_int_eq(err.code, TN_E_INPUT);
    ck_assert_msg(strncmp(err.message, at, strlen(at)) == 0, "%s", err.message);
    suite_expect_in(err.message, "too long to make");
    free(schema);
}

/* Small steps, but more of them than make a second: each would be accepted, or end in another error, much later. */
START_TEST(schemas_that_take_long)
{
    char *second = repeated("]},{\"enum\":[", "-#", 3000, ",", "]}]}");
    refused(repeated("{\"allOf\":[{\"enum\":[", "#", 3000, ",", second), "#: ");
    free(second);
    second = repeated("]},{\"enum\":[", "-#", 3000, ",", "]}]}");
    refused(repeated("{\"oneOf\":[{\"enum\":[", "#", 3000, ",", second), "#: ");
    free(second);
    refused(repeated("{\"oneOf\":[", "{\"const\":#}", 2000, ",", "]}"), "#: ");
    refused(repeated("{\"prefixItems\":[", "{\"multipleOf\":9973,\"minimum\":0,\"maximum\":0}", 1000, ",", "]}"),
            "#/prefixItems/");
    refused(repeated("{\"prefixItems\":[", "{\"pattern\":\"^(?:){90000}#$\"}", 200, ",", "]}"), "#/prefixItems/");
    refused(strdup("{\"pattern\":\"^a{0,60000}(?:){60000}$\"}"), "#: ");
}
END_TEST

/* Two classes without a character in common, again and again: they make no state, and no edge. */
START_TEST(classes_that_never_meet)
{
    char *ranges[2] = {NULL, NULL};
    for (int side = 0; side < 2; side++) {
        size_t size;
        FILE *out = open_memstream(&ranges[side], &size);
        for (int i = 0; i < 4000; i++)
            fprintf(out, "\\\\u%04x", 0x4e00 + 2 * i + side);
        fclose(out);
    }
    char *text = NULL;
    ck_assert_int_gt(
        asprintf(&text, "{\"allOf\":[{\"pattern\":\"^[%s]$\"},{\"pattern\":\"^[%s]$\"}]}", ranges[0], ranges[1]), 0);
    refused(text, "#: ");
    free(ranges[0]);
    free(ranges[1]);
}
END_TEST

/* ---- names ------------------------------------------------------------------------------------------------------- */

static bool passes(const char *text)
{
    tn_grammar_state *s = new_state();
    bool good = tn_grammar_accept_bytes(s, text, strlen(text), NULL) == TN_OK && tn_grammar_is_done(s);
    tn_grammar_state_free(s);
    return good;
}

/* Names that begin alike, in no order: by none of them another property comes. */
START_TEST(names_of_others)
{
    static const char *const names[] = {"b", "abc", "a", "\xc3\xa9", "aa", "ab", "\xf0\x9f\x8d\x84", "az"};
    static const char *const others[] = {"",   "c", "abcd", "ac", "abb", "\xc3\xa8", "\xc3\xaa", "\xf0\x9f\x8d\x85",
                                         "aza"};
    char text[1000] = "{\"additionalProperties\":{\"type\":\"string\"},\"properties\":{";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        sprintf(text + strlen(text), "%s\"%s\":{\"type\":\"null\"}", i ? "," : "", names[i]);
    make(TN_GRAMMAR_SCHEMA, strcat(text, "}}"));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        sprintf(text, "{\"%s\":null}", names[i]);
        ck_assert_msg(passes(text), "%s", text);
        sprintf(text, "{\"%s\":\"x\"}", names[i]);
        ck_assert_msg(!passes(text), "%s", text);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        sprintf(text, "{\"%s\":\"x\"}", others[i]);
        ck_assert_msg(passes(text), "%s", text);
    }
}
END_TEST

/* ---- forgetting -------------------------------------------------------------------------------------------------- */

enum { BEHIND = 15, LENGTH = 300000, PIECE = 1000 };

static char text[LENGTH];

/* An a, and so many letters behind it: the text tells what a state must say. */
static void assert_stands(const tn_grammar_state *s, size_t length)
{
    ck_assert_int_eq(tn_grammar_is_done(s), length > BEHIND && text[length - 1 - BEHIND] == 'a');
}

/* 65,536 configurations of more than a kilobyte each: they are not all kept, whether a text comes in pieces or at once,
 * and who stands on one goes on from there. */
START_TEST(configurations_are_forgotten)
{
    uint32_t bits = 1;
    for (size_t i = 0; i < LENGTH; i++) {
        bits = bits * 1664525 + 1013904223;
        text[i] = bits >> 31 ? 'a' : 'b';
    }
    make(TN_GRAMMAR_REGEX, "[ab]*a[ab]{15}");
    size_t before = mallinfo2().uordblks;
    tn_grammar_state *pieces = new_state(), *waits = new_state(), *once = new_state();
    size_t waiting = PIECE / 2;
    ck_assert_int_eq(tn_grammar_accept_bytes(waits, text, waiting, NULL), TN_OK);
    for (size_t at = 0; at < LENGTH; at += PIECE) {
        ck_assert_int_eq(tn_grammar_accept_bytes(pieces, text + at, PIECE, NULL), TN_OK);
        assert_stands(pieces, at + PIECE);
        assert_stands(waits, waiting);
    }
    ck_assert_int_eq(tn_grammar_accept_bytes(once, text, LENGTH, NULL), TN_OK);
    assert_stands(once, LENGTH);
    ck_assert_uint_lt(mallinfo2().uordblks - before, (size_t)32 << 20); /* 0 where a sanitizer allocates */
    ck_assert_int_eq(tn_grammar_accept_bytes(once, "abx", 3, NULL), TN_E_INPUT);
    for (int i = 0; i < 2 * BEHIND; i++) {
        assert_stands(waits, waiting);
        ck_assert_int_eq(tn_grammar_accept_bytes(waits, text + waiting++, 1, NULL), TN_OK);
    }
    tn_grammar_state_free(pieces);
    tn_grammar_state_free(waits);
    tn_grammar_state_free(once);
}
END_TEST

/* ---- masks ------------------------------------------------------------------------------------------------------- */

/* Compares the mask of the beginning with each token by itself; how many that may come it leaves out. None that may not
 * may be in it, nor may it leave out one of a single byte. */
static size_t left_out(void)
{
    size_t words = tn_vocabulary_words(vocabulary), missing = 0;
    uint64_t *bits = calloc(words, sizeof *bits);
    tn_grammar_state *s = new_state();
    ck_assert_int_eq(tn_grammar_mask(s, bits, NULL), TN_OK);
    buffer bytes = {0};
    for (int64_t id = 0; id < tn_tokenizer_size(tokenizer); id++) {
        token_kind kind;
        bytes.size = 0;
        ck_assert_int_eq(token_bytes(tokenizer, id, &bytes, &kind, NULL), TN_OK);
        bool may = bytes.size && tn_grammar_accept_bytes(s, bytes.data, bytes.size, NULL) == TN_OK;
        bool bit = vocabulary_has(bits, id);
        ck_assert_msg(may || !bit, "token %lld may not come", (long long)id);
        ck_assert_msg(bit || !may || bytes.size > 1, "token %lld may come", (long long)id);
        missing += may && !bit;
        if (may) {
            tn_grammar_state_free(s);
            s = new_state();
        }
    }
    tn_grammar_state_free(s);
    free(bytes.data);
    free(bits);
    return missing;
}

/* 60,000 threads that any letter leaves as they are, looked at for each of some hundred beginnings of tokens. */
START_TEST(walks_end)
{
    static const tn_grammar_part parts[] = {TN_GRAMMAR_REGEX, TN_GRAMMAR_OR, TN_GRAMMAR_REGEX, TN_GRAMMAR_OR,
                                            TN_GRAMMAR_REGEX};
    tn_error err = TN_ERROR_INIT;
    char *many = repeated("", "[a-z]*", 20000, "|", "");
    grammar = tn_grammar_new(vocabulary, parts, (const char *const[]){many, NULL, many, NULL, many}, 5, &err);
    ck_assert_msg(grammar != NULL, "%s", err.message);
    free(many);
    ck_assert_uint_gt(left_out(), 0);
}
END_TEST

/* Each beginning of a token has threads of its own, in all more than may be kept: what the walk needs is not forgotten.
 */
START_TEST(walks_forget)
{
    char *more = NULL;
    size_t size;
    FILE *out = open_memstream(&more, &size);
    uint32_t bits = 1;
    for (int i = 0; i < 2 * 8000; i++) {
        bits = bits * 1664525 + 1013904223;
        char but = (char)('b' + (bits >> 16) % 24);
        fprintf(out, i % 2 ? "[a-%c%c-z]{7}" : "|[a-%c%c-z]", but - 1, but + 1);
    }
    fclose(out);
    make(TN_GRAMMAR_REGEX, more);
    free(more);
    ck_assert_uint_eq(left_out(), 0);
}
END_TEST

int main(void)
{
    TCase *schemas = suite_open("schemas that explode", 0);
    tcase_add_checked_fixture(schemas, set_up, tear_down);
    suite_add(schemas, schemas_that_take_long, classes_that_never_meet, names_of_others);
    TCase *masks = suite_open("what is kept", 0);
    tcase_add_checked_fixture(masks, set_up, tear_down);
    suite_add(masks, configurations_are_forgotten, walks_end, walks_forget);
    return suite_run();
}
