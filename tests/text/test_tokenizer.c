/* Tokenizers as a whole: the demo model's, large and broken inputs, streams, and BPE against an obvious version. */
#include "text_test.h"

#include <jansson.h>

static tn_tokenizer *demo(void)
{
    tn_error err = TN_ERROR_INIT;
    tn_tokenizer *t = tn_tokenizer_open(DEMO, &err);
    ck_assert_msg(t != NULL, "%s: %s", err.where, err.message);
    return t;
}

START_TEST(demo_prompts)
{
    tn_tokenizer *t = demo();
    ck_assert_int_eq(tn_tokenizer_size(t), 2048);
    json_t *expected = json_load_file(DEMO "/expected.json", 0, NULL);
    json_t *list = json_object_get(expected, "greedy");
    ck_assert_uint_ge(json_array_size(list), 3);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *want = json_object_get(json_array_get(list, i), "prompt_ids");
        const char *prompt = json_string_value(json_object_get(json_array_get(list, i), "prompt"));
        int64_t *ids;
        size_t count;
        ck_assert_int_eq(tn_tokenizer_encode(t, prompt, strlen(prompt), true, &ids, &count, NULL), TN_OK);
        ck_assert_uint_eq(count, json_array_size(want));
        for (size_t k = 0; k < count; k++)
            ck_assert_int_eq(ids[k], json_integer_value(json_array_get(want, k)));
        assert_text(t, ids, count, false, prompt);
        free(ids);
    }
    json_decref(expected);
    tn_tokenizer_free(t);
}
END_TEST

START_TEST(path_of_file_and_missing_file)
{
    tn_tokenizer *t = tn_tokenizer_open(DEMO "/tokenizer.json", NULL);
    ck_assert_ptr_nonnull(t);
    tn_tokenizer_free(t);
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(tn_tokenizer_open("tests/text", &err));
    ck_assert_int_eq(err.code, TN_E_INPUT);
    ck_assert_ptr_nonnull(strstr(err.where, "tests/text/tokenizer.json"));
    tn_tokenizer_free(NULL);
    tn_stream_free(NULL);
}
END_TEST

/* Without a normalizer a byte-level vocabulary gives every text back; broken UTF-8 comes back as U+FFFD. */
START_TEST(random_bytes_come_back)
{
    tn_tokenizer *t = demo();
    uint64_t state = 1;
    for (int round = 0; round < 300; round++) {
        char bytes[300];
        size_t length = noise(&state) % sizeof bytes;
        for (size_t i = 0; i < length; i++) /* half of them likely to form sequences */
            bytes[i] = (char)(round % 2 ? noise(&state) : 0x80 + noise(&state) % 0x78);
        buffer clean = {0};
        ck_assert(utf8_add_clean(&clean, bytes, length));
        int64_t *ids;
        size_t count, back;
        char *text;
        ck_assert_int_eq(tn_tokenizer_encode(t, bytes, length, false, &ids, &count, NULL), TN_OK);
        ck_assert_int_eq(tn_tokenizer_decode(t, ids, count, false, &text, &back, NULL), TN_OK);
        ck_assert_uint_eq(back, clean.size);
        ck_assert_mem_eq(text, clean.data ? clean.data : "", back);
        free(text);
        free(ids);
        buffer_free(&clean);
    }
    tn_tokenizer_free(t);
}
END_TEST

START_TEST(random_ids_stream_alike)
{
    static const char *const folders[] = {DEMO, "tests/data/tokenizers/phi-3", "tests/data/tokenizers/gpt-2"};
    uint64_t state = 7;
    for (size_t f = 0; f < 3; f++) {
        tn_tokenizer *t = tn_tokenizer_open(folders[f], NULL);
        ck_assert_ptr_nonnull(t);
        int64_t size = tn_tokenizer_size(t);
        for (int round = 0; round < 200; round++) {
            int64_t ids[60];
            for (size_t i = 0; i < 60; i++) /* low ids are the single bytes; some lie outside the vocabulary */
                ids[i] = (int64_t)(noise(&state) % (uint32_t)(round % 2 ? 260 : size + 20)) - 5;
            assert_text(t, ids, 60, round % 3 == 0, NULL);
        }
        int64_t absurd[] = {INT64_MIN, INT64_MAX, -1, size};
        assert_text(t, absurd, 4, false, "");
        tn_tokenizer_free(t);
    }
}
END_TEST

static size_t encoded_count(const tn_tokenizer *t, const char *text, size_t length)
{
    int64_t *ids;
    size_t count;
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(tn_tokenizer_encode(t, text, length, false, &ids, &count, &err) == TN_OK, "%s", err.message);
    char *back;
    size_t size;
    ck_assert_int_eq(tn_tokenizer_decode(t, ids, count, false, &back, &size, NULL), TN_OK);
    ck_assert_uint_eq(size, length);
    ck_assert_mem_eq(back, text, length);
    free(back);
    free(ids);
    return count;
}

/* A megabyte without a place to cut: one word for the merges, one stretch for the regular expressions. */
START_TEST(large_inputs)
{
    static const char *const folders[] = {DEMO, "tests/data/tokenizers/qwen2", "tests/data/tokenizers/llama-3"};
    size_t length = (size_t)1 << 20;
    char *text = malloc(length);
    ck_assert_ptr_nonnull(text);
    for (size_t f = 0; f < 3; f++) {
        tn_tokenizer *t = tn_tokenizer_open(folders[f], NULL);
        ck_assert_ptr_nonnull(t);
        memset(text, 'a', length);
        ck_assert_uint_gt(encoded_count(t, text, length), 0);
        memset(text, ' ', length);
        text[length - 1] = 'a';
        ck_assert_uint_gt(encoded_count(t, text, length), 0);
        uint64_t state = 3;
        for (size_t i = 0; i < length; i++)
            text[i] = (char)('a' + noise(&state) % 4);
        ck_assert_uint_gt(encoded_count(t, text, length), 0);
        tn_tokenizer_free(t);
    }
    free(text);
}
END_TEST

/* Marks of two classes in turn, 128 K of them: canonical ordering moves half of them past the other half. */
START_TEST(many_combining_marks)
{
    tn_tokenizer *t = tn_tokenizer_open("tests/data/tokenizers/qwen2", NULL);
    ck_assert_ptr_nonnull(t);
    size_t pairs = (size_t)1 << 16;
    char *text = malloc(pairs * 4 + 1), *back;
    text[0] = 'q';
    for (size_t i = 0; i < pairs; i++)
        memcpy(text + 1 + 4 * i, "\xcc\x81\xcc\xa3", 4); /* U+0301 above (class 230), U+0323 below (220) */
    int64_t *ids;
    size_t count, length;
    ck_assert_int_eq(tn_tokenizer_encode(t, text, pairs * 4 + 1, false, &ids, &count, NULL), TN_OK);
    ck_assert_int_eq(tn_tokenizer_decode(t, ids, count, false, &back, &length, NULL), TN_OK);
    ck_assert_uint_eq(length, pairs * 4 + 1);
    ck_assert_mem_eq(back, "q\xcc\xa3\xcc\xa3", 5);
    ck_assert_mem_eq(back + length - 4, "\xcc\x81\xcc\x81", 4);
    free(back);
    free(ids);
    free(text);
    tn_tokenizer_free(t);
}
END_TEST

/* BPE the obvious way: look at all pairs, merge the leftmost of the lowest rank, repeat. */
static size_t merge_slowly(const vocab *v, uint32_t *ids, size_t count)
{
    for (;;) {
        const vocab_merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            const vocab_merge *m = vocab_find_merge(v, ids[i], ids[i + 1]);
            if (m && (!best || m->rank < best->rank)) {
                best = m;
                at = i;
            }
        }
        if (!best)
            return count;
        ids[at] = best->id;
        memmove(ids + at + 1, ids + at + 2, (count - at - 2) * sizeof *ids);
        count--;
    }
}

/* letters: those of the words; \1 stands for U+2581, a space. Returns at how many places words could be cut. */
static size_t assert_merges(const tn_tokenizer *t, const char *letters)
{
    size_t parts = 0;
    bpe_scratch *scratch = bpe_scratch_new();
    uint64_t state = 11;
    for (int round = 0; round < 2000; round++) {
        char word[600]; /* beyond 64 symbols there is a heap */
        uint32_t ids[200];
        size_t length = 0, characters = 1 + noise(&state) % (round % 2 ? 64 : 200);
        for (size_t i = 0; i < characters; i++) {
            char letter[] = {letters[noise(&state) % strlen(letters)], 0};
            const char *text = letter[0] == 1 ? "\xe2\x96\x81" : letter;
            ids[i] = vocab_find(&t->vocab, text, strlen(text));
            memcpy(word + length, text, strlen(text));
            length += strlen(text);
            parts += i > 0 && !vocab_may_touch(&t->vocab, ids[i - 1], ids[i]);
        }
        size_t count = merge_slowly(&t->vocab, ids, characters);
        id_list out = {0};
        ck_assert(bpe_encode(&t->bpe, &t->vocab, word, length, scratch, &out));
        ck_assert_uint_eq(out.count, count);
        for (size_t i = 0; i < count; i++)
            ck_assert_int_eq(out.ids[i], ids[i]);
        free(out.ids);
    }
    bpe_scratch_free(scratch);
    return parts;
}

/* The demo's vocabulary joins nearly all letters; that of Phi-3 joins no letter with a space behind it. */
START_TEST(merges_like_the_obvious_version)
{
    tn_tokenizer *t = demo();
    assert_merges(t, "aehilnorstd");
    tn_tokenizer_free(t);
    t = tn_tokenizer_open("tests/data/tokenizers/phi-3", NULL);
    ck_assert_ptr_nonnull(t);
    ck_assert_uint_gt(assert_merges(t, "aehilnorst\1"), 5000);
    tn_tokenizer_free(t);
}
END_TEST

/* Words that come again and again, some longer than what is remembered: as a text, and one by one from the characters
 * that stand for their bytes. */
START_TEST(words_like_one_by_one)
{
    static const char *const folders[] = {DEMO, "tests/data/tokenizers/qwen2", "tests/data/tokenizers/llama-3",
                                          "tests/data/tokenizers/falcon", "tests/data/tokenizers/phi-3"};
    for (size_t f = 0; f < sizeof folders / sizeof folders[0]; f++) {
        tn_tokenizer *t = tn_tokenizer_open(folders[f], NULL);
        ck_assert_ptr_nonnull(t);
        uint64_t state = 41;
        pieces p = {0};
        buffer text = {0};
        for (int i = 0; i < 20000; i++) {
            uint32_t length = noise(&state) % 50 == 0 ? 100 : 1 + noise(&state) % 5;
            for (uint32_t k = 0; k < length; k++)
                if (!utf8_add(&text, "etaon.!1\n"[noise(&state) % 9]))
                    ck_abort_msg("out of memory");
            if (!utf8_add(&text, noise(&state) % 9 ? ' ' : 0x4e00 + (int32_t)(noise(&state) % 50)))
                ck_abort_msg("out of memory");
        }
        tn_error err = TN_ERROR_INIT;
        buffer normal = {0};
        id_list expected = {0};
        bpe_scratch *scratch = bpe_scratch_new();
        ck_assert_int_eq(normalize_apply(&t->normalizer, text.data, text.size, &normal, &err), TN_OK);
        ck_assert(buffer_append_piece(&p, normal.data, normal.size, -1));
        ck_assert_int_eq(pretok_apply(&t->pretok, &p, &err), TN_OK);
        for (size_t i = 0; i < p.count; i++)
            if (!bpe_encode(&t->bpe, &t->vocab, p.text.data + p.spans[i].start, p.spans[i].end - p.spans[i].start,
                            scratch, &expected))
                ck_abort_msg("out of memory");
        int64_t *ids;
        size_t count;
        ck_assert_int_eq(tn_tokenizer_encode(t, text.data, text.size, false, &ids, &count, &err), TN_OK);
        ck_assert_uint_gt(count, 1000);
        ck_assert_uint_eq(count, expected.count);
        ck_assert_mem_eq(ids, expected.ids, count * sizeof *ids);
        bpe_scratch_free(scratch);
        free(expected.ids);
        free(ids);
        buffer_free(&normal);
        buffer_free(&text);
        buffer_free_pieces(&p);
        tn_tokenizer_free(t);
    }
}
END_TEST

/* No text, at no address, and no ids. */
START_TEST(nothing)
{
    static const char *const folders[] = {DEMO, "tests/data/tokenizers/phi-3"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        tn_tokenizer *t = tn_tokenizer_open(folders[i], NULL);
        ck_assert_ptr_nonnull(t);
        int64_t *ids = NULL;
        size_t count = 1, length = 1;
        char *text = NULL;
        ck_assert_int_eq(tn_tokenizer_encode(t, NULL, 0, false, &ids, &count, NULL), TN_OK);
        ck_assert(ids && count == 0);
        ck_assert_int_eq(tn_tokenizer_decode(t, NULL, 0, false, &text, &length, NULL), TN_OK);
        ck_assert(length == 0 && text[0] == '\0');
        free(ids);
        free(text);
        tn_tokenizer_free(t);
    }
}
END_TEST

START_TEST(a_stream_starts_again_after_flush)
{
    tn_tokenizer *t = tn_tokenizer_open("tests/data/tokenizers/phi-3", NULL);
    ck_assert_ptr_nonnull(t);
    int64_t *ids;
    size_t count, length;
    ck_assert_int_eq(tn_tokenizer_encode(t, "and", 3, false, &ids, &count, NULL), TN_OK);
    tn_stream *stream = tn_stream_new(t, true, NULL);
    for (int round = 0; round < 2; round++) { /* the space in front is stripped both times */
        char text[32] = "";
        for (size_t i = 0; i < count; i++)
            strcat(text, tn_stream_push(stream, ids[i], &length, NULL));
        strcat(text, tn_stream_flush(stream, NULL, NULL));
        ck_assert_str_eq(text, "and");
    }
    tn_stream_free(stream);
    free(ids);
    tn_tokenizer_free(t);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("tokenizer", TEXT_SECONDS);
    suite_add(tc, demo_prompts, path_of_file_and_missing_file, random_bytes_come_back, random_ids_stream_alike,
              large_inputs, many_combining_marks, merges_like_the_obvious_version, words_like_one_by_one, nothing,
              a_stream_starts_again_after_flush);
    return suite_run();
}
