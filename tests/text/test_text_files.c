/* The files that a tokenizer is read from: packed ones, and SentencePiece models, whole and broken. */
#include "text_test.h"

#include <sys/stat.h>
#include <zlib.h>

#define MODELS "tests/data/tokenizers/"

static void assert_refused(const char *name, const void *data, size_t size, const char *word)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(open_named(name, data, size, &err));
    ck_assert_int_eq(err.code, TN_E_INPUT);
    ck_assert_msg(strstr(err.where, name), "no file in '%s'", err.where);
    ck_assert_msg(strstr(err.message, word) && strchr(err.message, ';'), "'%s' lacks '%s'", err.message, word);
}

/* Packs text as gzip. */
static size_t pack(const char *text, size_t size, unsigned char *out, size_t capacity)
{
    z_stream z = {.next_in = (Bytef *)(uintptr_t)text, .avail_in = (uInt)size, .next_out = out};
    z.avail_out = (uInt)capacity;
    ck_assert_int_eq(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
    ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return z.total_out;
}

START_TEST(packed)
{
    const char *json = "{\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"u\",\"vocab\":{\"u\":0,\"a\":1}}}";
    unsigned char data[512];
    size_t half = strlen(json) / 2, size = pack(json, strlen(json), data, sizeof data);
    tn_tokenizer *t = open_named("tokenizer.json.gz", data, size, NULL);
    ck_assert_ptr_nonnull(t);
    assert_ids(t, "a", false, "1");
    tn_tokenizer_free(t);
    for (size_t cut = 0; cut < size; cut += 7)
        assert_refused("tokenizer.json.gz", data, cut, "no whole gzip file");
    data[size / 2] ^= 0x40;
    assert_refused("tokenizer.json.gz", data, size, "gzip");
    assert_refused("tokenizer.json.gz", json, strlen(json), "no whole gzip file");
    size = pack(json, half, data, sizeof data); /* two members are one text */
    size += pack(json + half, strlen(json) - half, data + size, sizeof data - size);
    t = open_named("tokenizer.json.gz", data, size, NULL);
    ck_assert_ptr_nonnull(t);
    tn_tokenizer_free(t);
}
END_TEST

/* A small file that unpacks to 257 MB. */
START_TEST(packed_bomb)
{
    static unsigned char data[1 << 20], spaces[1 << 20];
    memset(spaces, ' ', sizeof spaces);
    z_stream z = {.next_out = data, .avail_out = sizeof data};
    ck_assert_int_eq(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
    for (int i = 0; i < 257; i++) {
        z.next_in = spaces;
        z.avail_in = sizeof spaces;
        ck_assert_int_eq(deflate(&z, i < 256 ? Z_NO_FLUSH : Z_FINISH), i < 256 ? Z_OK : Z_STREAM_END);
    }
    deflateEnd(&z);
    assert_refused("tokenizer.json.gz", data, z.total_out, "more than 256 MB");
}
END_TEST

static size_t read_whole(const char *path, char *data, size_t capacity)
{
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    size_t size = fread(data, 1, capacity, f);
    fclose(f);
    ck_assert(size > 1000 && size < capacity);
    return size;
}

/* Real models cut short, and with single bytes changed: whatever opens must also encode. */
START_TEST(damaged_models)
{
    static const char *const files[] = {MODELS "sentencepiece-bpe/tokenizer.model",
                                        MODELS "sentencepiece-unigram/tokenizer.model"};
    static char data[1 << 20];
    uint64_t state = 11;
    for (size_t i = 0; i < 2; i++) {
        size_t size = read_whole(files[i], data, sizeof data);
        for (int round = 0; round < 120; round++) {
            size_t at = noise(&state) % (uint32_t)size, end = round % 3 ? size : at;
            if (round % 2)
                at = size - 1 - at % 800; /* where the settings are */
            char was = data[at];
            data[at] = round % 3 ? (char)noise(&state) : was;
            tn_error err = TN_ERROR_INIT;
            tn_tokenizer *t = open_named("tokenizer.model", data, end, &err);
            ck_assert_int_eq(err.code, t ? TN_OK : TN_E_INPUT);
            int64_t *ids = NULL;
            size_t count;
            tn_status status =
                t ? tn_tokenizer_encode(t, "In the \xc3\xa9 beginning", 19, true, &ids, &count, &err) : 0;
            ck_assert(status == TN_OK || status == TN_E_INPUT);
            free(ids);
            tn_tokenizer_free(t);
            data[at] = was;
        }
    }
}
END_TEST

/* A piece: its text and its type. */
#define PIECE(length, text, type) "\x0a" length text "\x18" type
#define UNK "\x0a\x09" PIECE("\x05", "<unk>", "\x02")
#define A "\x0a\x05" PIECE("\x01", "a", "\x01")
#define SPACE_A                                                                                                        \
    "\x0a\x08" PIECE("\x04",                                                                                           \
                     "\xe2\x96\x81"                                                                                    \
                     "a",                                                                                              \
                     "\x01")
#define TRAINER(length, fields) "\x12" length fields
#define NO_IDS                                                                                                         \
    "\xc8\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\xd0\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" /* bos, eos */

#define ASSERT_MODEL_REFUSED(bytes, word) assert_refused("tokenizer.model", bytes, sizeof bytes - 1, word)

START_TEST(models_by_hand)
{
    const char good[] = UNK A SPACE_A TRAINER("\x1a", NO_IDS "\x18\x01");
    tn_error err = TN_ERROR_INIT;
    tn_tokenizer *t = open_named("tokenizer.model", good, sizeof good - 1, &err);
    ck_assert_msg(t != NULL, "%s", err.message);
    assert_ids(t, "a aa", true, "2 2 1");
    assert_text(t, (int64_t[]){2, 1}, 2, false, "aa");
    tn_tokenizer_free(t);
    ASSERT_MODEL_REFUSED("", "no SentencePiece model");
    ASSERT_MODEL_REFUSED("{}", "no SentencePiece model");
    ASSERT_MODEL_REFUSED("\x0a\x7f", "no SentencePiece model");
    ASSERT_MODEL_REFUSED("\x0b", "no SentencePiece model"); /* a group */
    ASSERT_MODEL_REFUSED("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "no SentencePiece model");
    ASSERT_MODEL_REFUSED(UNK TRAINER("\x1a", NO_IDS "\x18\x03"), "model_type 3");
    ASSERT_MODEL_REFUSED(UNK TRAINER("\x1b", NO_IDS "\xc0\x02\x07"), "unk_id 7");
    ASSERT_MODEL_REFUSED(UNK, "bos_id or eos_id"); /* 1 and 2 unless the file says otherwise */
    ASSERT_MODEL_REFUSED(UNK TRAINER("\x1b", NO_IDS "\xc0\x01\x01"), "treat_whitespace_as_suffix");
    ASSERT_MODEL_REFUSED(UNK TRAINER("\x18", NO_IDS) "\x1a\x02\x28\x00", "escape_whitespaces");
    ASSERT_MODEL_REFUSED(UNK TRAINER("\x18", NO_IDS) "\x2a\x03\x12\x01x", "denormalizer_spec");
    ASSERT_MODEL_REFUSED(UNK "\x0a\x03\x0a\x01\xff", "not UTF-8");
    ASSERT_MODEL_REFUSED(UNK "\x0a\x05\x15\x00\x00\x80\x7f", "no number"); /* a score of infinity */
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("text_files", TEXT_SECONDS);
    suite_add(tc, packed, packed_bomb, damaged_models, models_by_hand);
    return suite_run();
}
