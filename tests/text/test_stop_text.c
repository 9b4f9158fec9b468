/* Texts that end an answer: found wherever the text is cut into pieces, and nothing behind them is handed out. */
#include "suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/tenon.h>

static const struct {
    const char *stops[4], *text, *before; /* before NULL: no match                                    */
} cases[] = {
    {{"stop"}, "go and stop here", "go and "},
    {{"stop"}, "sto stto ststop", "sto stto st"},
    {{"stop"}, "a sto", NULL},
    {{"aab"}, "aaaab", "aa"},
    {{"\n\n"}, "one\ntwo\n\nthree", "one\ntwo"},
    {{"abcdef", "cd"}, "xabcdx", "xab"},
    {{"cd", "abcdef"}, "xabcdx", "xab"},
    {{"bc", "ab"}, "xabc", "x"},
    {{"\xe2\x82\xac"}, "1 \xe2\x82\xad 2 \xe2\x82\xac", "1 \xe2\x82\xad 2 "},
    {{"User:", "<|end|>"}, "Us User <|end User:", "Us User <|end "},
    {{NULL}, "anything", NULL},
};

/* In pieces of so many bytes. */
static void try_pieces(size_t which, size_t piece)
{
    const char *text = cases[which].text, *before = cases[which].before;
    size_t count = 0, length = strlen(text), used = 0;
    char got[64];
    bool found = false;
    while (cases[which].stops[count])
        count++;
    tn_stop_text *s = tn_stop_text_new(cases[which].stops, count, NULL);
    ck_assert_ptr_nonnull(s);
    for (int round = 0; round < 2; round++) { /* after flush another text may come */
        used = 0;
        for (size_t at = 0; at < length; at += piece) {
            size_t n = length - at < piece ? length - at : piece, out = 0;
            const char *more = tn_stop_text_push(s, text + at, n, &out, &found, NULL);
            ck_assert_ptr_nonnull(more);
            memcpy(got + used, more, out);
            used += out;
            /* What was handed out stands before the match for sure. */
            ck_assert_uint_le(used, before ? strlen(before) : length);
        }
        size_t left = 0;
        const char *rest = tn_stop_text_flush(s, &left);
        memcpy(got + used, rest, left);
        got[used + left] = '\0';
        ck_assert_int_eq(found, before != NULL);
        ck_assert_msg(strcmp(got, before ? before : text) == 0, "case %zu in %zu: '%s'", which, piece, got);
    }
    tn_stop_text_free(s);
}

START_TEST(found_across_pieces)
{
    for (size_t piece = 1; piece <= strlen(cases[_i].text); piece++)
        try_pieces((size_t)_i, piece);
}
END_TEST

START_TEST(only_a_possible_beginning_is_held_back)
{
    size_t length;
    bool found;
    tn_stop_text *s = tn_stop_text_new((const char *const[]){"stop"}, 1, NULL);
    const char *out = tn_stop_text_push(s, "a st", 4, &length, &found, NULL);
    ck_assert_uint_eq(length, 2);
    ck_assert_mem_eq(out, "a ", 2);
    out = tn_stop_text_push(s, "ay", 2, &length, &found, NULL);
    ck_assert_uint_eq(length, 4);
    ck_assert_mem_eq(out, "stay", 4);
    ck_assert(!found);
    tn_stop_text_free(s);
    tn_stop_text_free(NULL);
}
END_TEST

START_TEST(bad_arguments_are_errors)
{
    tn_error err = TN_ERROR_INIT;
    size_t length;
    bool found;
    ck_assert_ptr_null(tn_stop_text_new((const char *const[]){"a", ""}, 2, &err));
    ck_assert_int_eq(err.code, TN_E_USAGE);
    suite_expect_in(err.message, "empty");
    ck_assert_ptr_null(tn_stop_text_new(NULL, 1, NULL));
    ck_assert_ptr_null(tn_stop_text_push(NULL, "a", 1, &length, &found, NULL));
    ck_assert_ptr_null(tn_stop_text_flush(NULL, &length));
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("stop texts", 0);
    tcase_add_loop_test(tc, found_across_pieces, 0, sizeof cases / sizeof *cases);
    suite_add(tc, only_a_possible_beginning_is_held_back, bad_arguments_are_errors);
    return suite_run();
}
