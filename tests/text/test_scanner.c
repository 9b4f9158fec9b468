/* The scanners for well-known expressions beside PCRE2 on the same expressions. */
#include "suite.h"
#include "text_test.h"

#include "text/scanner.h"

static const place HERE = {"here", "test"};

typedef struct both {
    scanner *known;
    regex *plain; /* with an alternative that never matches, so that it is not recognized            */
    regex_walk walk;
} both;

static both both_open(const scanner_rule *rule)
{
    char pattern[512];
    snprintf(pattern, sizeof pattern, "%s|(?!)", rule->pattern);
    ck_assert_ptr_null(scanner_find(pattern, strlen(pattern)));
    return (both){.known = scanner_new(rule),
                  .plain = regex_new(pattern, strlen(pattern), false, &(doc_reader){HERE, NULL, TN_OK})};
}

static void both_close(both *b)
{
    regex_free(b->plain);
    scanner_free(b->known);
}

static void assert_same(both *b, const char *text, size_t length)
{
    tn_error err = TN_ERROR_INIT;
    size_t start, end, at = 0;
    bool found = true;
    ck_assert(b->known && b->plain && regex_open(&b->walk, b->plain, NULL) == TN_OK);
    regex_start(&b->walk, text, length);
    for (;;) {
        if (regex_next(&b->walk, &found, &start, &end, &err) != TN_OK)
            ck_abort_msg("%s", err.message);
        if (!found)
            break;
        size_t got = scanner_next(b->known, text, length, at);
        if (start != at || end != got)
            ck_abort_msg("at byte %zu: %zu bytes instead of %zu: %.*s", at, got - at, end - start,
                         (int)(length - start < 40 ? length - start : 40), text + start);
        at = got;
    }
    ck_assert_uint_eq(at, length);
    regex_close(&b->walk);
}

static void add_code(buffer *text, int32_t code)
{
    if ((code < 0xd800 || code >= 0xe000) && !utf8_add(text, code)) /* an assertion writes a file each time */
        ck_abort_msg("out of memory");
}

/* Every character behind, between and in front of others; * stands for it. */
START_TEST(all_characters)
{
    static const char *const around[] = {"'*", "a* ", " *1", "*\n*", ",*", "  *"};
    both b = both_open(&scanner_rules[_i]);
    for (size_t i = 0; i < sizeof around / sizeof around[0]; i++) {
        buffer text = {0};
        for (int32_t code = 0; code < 0x110000; code++) {
            if (code == 0x40000) /* nothing is assigned from here to the selectors of plane 14, nor behind them */
                code = 0xdff00;
            else if (code == 0xe1000)
                code = 0x10ff00;
            for (const char *c = around[i]; *c; c++)
                add_code(&text, *c == '*' ? code : *c);
        }
        assert_same(&b, text.data, text.size);
        buffer_free(&text);
    }
    both_close(&b);
}
END_TEST

static int32_t random_code(uint64_t *state)
{
    static const char ascii[] = "aaeZz  \t\n\r\'\'\'stTrRevmMlLdD0123.,!-_";
    static const int32_t others[] = {0xe9,    0x17f,   0x212a,  0x301,    0x4e2d, 0x3042, 0xac00, 0x660,   0xb2,
                                     0x2160,  0xa0,    0x85,    0x2028,   0x3000, 0x200b, 0x180e, 0x1f600, 0x1d54f,
                                     0x20000, 0xe0100, 0xf0000, 0x10fffd, 0x378,  0xfeff, 0x24b6, 0x903};
    uint32_t which = noise(state) % 16;
    if (which < 11)
        return ascii[noise(state) % (sizeof ascii - 1)];
    return which < 15 ? others[noise(state) % (sizeof others / sizeof others[0])] : (int32_t)(noise(state) % 0x110000);
}

START_TEST(random_texts)
{
    both b = both_open(&scanner_rules[_i]);
    uint64_t state = 31 + (uint64_t)_i;
    buffer text = {0};
    for (int round = 0; round < 100000; round++) {
        text.size = 0;
        for (uint32_t n = noise(&state) % 24; n > 0; n--)
            add_code(&text, random_code(&state));
        assert_same(&b, text.data, text.size);
    }
    buffer_free(&text);
    both_close(&b);
}
END_TEST

/* An expression that is recognized takes the scanner's way, and one that is cut short does not. */
START_TEST(recognized)
{
    for (size_t i = 0; i < scanner_count; i++) {
        const char *pattern = scanner_rules[i].pattern;
        ck_assert_ptr_eq(scanner_find(pattern, strlen(pattern)), &scanner_rules[i]);
        ck_assert_ptr_null(scanner_find(pattern, strlen(pattern) - 1));
    }
    static const char *const names[] = {"gpt-2", "qwen2", "llama-3"};
    for (size_t i = 0; i < 3; i++) {
        char folder[64];
        snprintf(folder, sizeof folder, "tests/data/tokenizers/%s", names[i]);
        tn_tokenizer *t = tn_tokenizer_open(folder, NULL);
        ck_assert_ptr_nonnull(t);
        ck_assert(regex_is_known(t->pretok.ops[0].pattern));
        tn_tokenizer_free(t);
    }
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("scanner", 240); /* only ends a test that hangs */
    tcase_add_loop_test(tcase, all_characters, 0, (int)scanner_count);
    tcase_add_loop_test(tcase, random_texts, 0, (int)scanner_count);
    suite_add(tcase, recognized);
    return suite_run();
}
