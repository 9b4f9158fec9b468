/* Broken checkpoint files: each gives one clear error that names file and tensor, and nothing else happens. */
#include "checkpoint/checkpoint.h"
#include "broken.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TENSOR "model.layers.0.mlp.down_proj.weight"
#define INDEX "model.safetensors.index.json"
#define SHARD1 "model-00001-of-00002.safetensors"
#define SHARD2 "model-00002-of-00002.safetensors"

static void expect_refused(const char *folder, const char *file, const char *word, const char *word2)
{
    tn_error err = TN_ERROR_INIT;
    shards *set = shards_open(folder, &err);
    ck_assert_msg(set == NULL, "%s is accepted", file);
    broken_expect(&err, TN_E_INPUT, file, word, word2, NULL);
}

/* ---- one file, broken in its header: text, bytes of data, words of the message ---- */

#define ONE(FIELDS) "{\"a.weight\":{" FIELDS "}}"
#define F32x2 "\"dtype\":\"F32\",\"shape\":[2],"

static const struct {
    const char *header;
    size_t data;
    const char *word, *word2;
} headers[] = {
    {"", 0, "JSON object", ""},
    {"[]", 0, "JSON object", ""},
    {"{", 0, "JSON", "byte 1"},
    {"{\"a.weight\":", 0, "a.weight", "object"},
    {"{}x", 0, "JSON", "byte 2"},
    {"{\"a.weight\":3}", 0, "a.weight", "object"},
    {"{\"bad \xff\":{}}", 0, "JSON", "byte 6"},
    {"{\"bad \xed\xa0\x80\":{}}", 0, "JSON", ""},
    {"{\"bad \xc0\xaf\":{}}", 0, "JSON", ""},
    {"{\"bad \\ud800\":{}}", 0, "JSON", ""},
    {"{\"bad \\u0000\":{}}", 0, "JSON", ""},
    {"{\"bad \n\":{}}", 0, "JSON", ""},
    {"{\"bad \\x\":{}}", 0, "JSON", ""},
    {"{\"__metadata__\":3}", 0, "__metadata__", ""},
    {"{\"__metadata__\":{\"format\":3}}", 0, "__metadata__", ""},
    {ONE(""), 0, "a.weight", "dtype"},
    {ONE("\"dtype\":\"F32\",\"data_offsets\":[0,4]"), 4, "a.weight", "shape"},
    {ONE("\"dtype\":\"F32\",\"shape\":[1]"), 4, "a.weight", "data_offsets"},
    {ONE("\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]"), 8, "a.weight", "F33"},
    {ONE("\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]"), 8, "a.weight", "f32"},
    {ONE("\"dtype\":\"U32\",\"shape\":[2],\"data_offsets\":[0,8]"), 8, "a.weight", "U32"},
    {ONE("\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]"), 8, "a.weight", "dtype"},
    {ONE("\"dtype\":\"a name that is longer than any dtype's\",\"shape\":[2],\"data_offsets\":[0,8]"), 8, "a.weight",
     "dtype"},
    {ONE("\"dtype\":\"F32\"," F32x2 "\"data_offsets\":[0,8]"), 8, "a.weight", "dtype"},
    {ONE("\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]"), 8, "a.weight", "shape"},
    {ONE("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"), 8, "a.weight", "shape"},
    {ONE("\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]"), 8, "a.weight", "shape"},
    {ONE("\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]"), 8, "a.weight", "shape"},
    {ONE("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,2],\"data_offsets\":[0,8]"), 8, "a.weight", "dimensions"},
    {ONE("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]"), 8, "a.weight", "large"},
    {ONE("\"dtype\":\"F32\",\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,0]"), 0, "a.weight", "large"},
    {ONE("\"dtype\":\"F32\",\"shape\":[99999999999999999999999999],\"data_offsets\":[0,8]"), 8, "a.weight", "shape"},
    {ONE("\"dtype\":\"F32\",\"shape\":[9223372036854775807],\"data_offsets\":[0,8]"), 8, "a.weight", "large"},
    {ONE("\"dtype\":\"U8\",\"shape\":[9223372036854775807],\"data_offsets\":[0,9223372036854775807]"), 8, "a.weight",
     "truncated"},
    {ONE(F32x2 "\"data_offsets\":[0,4]"), 8, "a.weight", "8 bytes"},
    {ONE(F32x2 "\"data_offsets\":[8,0]"), 8, "a.weight", "data_offsets"},
    {ONE(F32x2 "\"data_offsets\":[-8,0]"), 8, "a.weight", "data_offsets"},
    {ONE(F32x2 "\"data_offsets\":[0,8,8]"), 8, "a.weight", "data_offsets"},
    {ONE(F32x2 "\"data_offsets\":[0]"), 8, "a.weight", "data_offsets"},
    {ONE(F32x2 "\"data_offsets\":{\"0\":0}"), 8, "a.weight", "data_offsets"},
    {ONE(F32x2 "\"data_offsets\":[0,18446744073709551624]"), 8, "a.weight", "data_offsets"},
    {ONE(F32x2 "\"data_offsets\":[0,8]"), 7, "a.weight", "truncated"},
    {ONE(F32x2 "\"data_offsets\":[8,16]"), 8, "a.weight", "truncated"},
    {ONE(F32x2 "\"data_offsets\":[8,16]"), 16, "a.weight", "no tensor"},
    {ONE(F32x2 "\"data_offsets\":[0,8]"), 9, "1 bytes after", ""},
    {ONE(F32x2 "\"data_offsets\":[0,8],\"x\":[01]"), 8, "JSON", ""},
    {ONE(F32x2 "\"data_offsets\":[0,8],\"x\":1.e5"), 8, "JSON", ""},
    {ONE(F32x2 "\"data_offsets\":[0,8],\"x\":tru"), 8, "JSON", ""},
    {ONE(F32x2 "\"data_offsets\":[0,8],"), 8, "JSON", ""},
    {"{\"a\":{" F32x2 "\"data_offsets\":[0,8]},\"b\":{" F32x2 "\"data_offsets\":[4,12]}}", 12, "'b'",
     "overlaps tensor 'a'"},
    {"{\"a\":{" F32x2 "\"data_offsets\":[0,8]},\"b\":{" F32x2 "\"data_offsets\":[0,8]}}", 8, "'b'", "overlaps"},
    {"{\"a\":{" F32x2 "\"data_offsets\":[0,8]},\"a\":{" F32x2 "\"data_offsets\":[8,16]}}", 16, "'a'", "twice"},
    {"{\"a\":{" F32x2 "\"data_offsets\":[0,8]},}", 8, "JSON", ""},
    {"{\"a\":{" F32x2 "\"data_offsets\":[0,8]} \"b\":{}}", 8, "JSON", ""},
};

START_TEST(a_broken_header)
{
    char *folder = tempdir_new(), *path = tempdir_at(folder, "model.safetensors");
    broken_raw(path, headers[_i].header, headers[_i].data);
    expect_refused(folder, "model.safetensors", headers[_i].word, headers[_i].word2);
}
END_TEST

/* ---- one file, broken around its header ---- */

START_TEST(a_file_that_is_cut_anywhere)
{
    static const size_t sizes[] = {1, 7, 8, 9, 100, 2000, 2160, 100000, 445791};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *folder = broken_copy("llama");
        broken_truncate(folder, "model.safetensors", sizes[i]);
        expect_refused(folder, "model.safetensors", sizes[i] < 8 ? "too few" : "truncated", "");
    }
    char *folder = broken_copy("llama");
    broken_truncate(folder, "model.safetensors", 0);
    expect_refused(folder, "model.safetensors", "empty", "");
    broken_truncate(folder, "model.safetensors", 445793);
    expect_refused(folder, "model.safetensors", "", ""); /* a length of 0 and no header */
}
END_TEST

START_TEST(a_header_that_is_longer_than_the_file)
{
    static const unsigned char lengths[][8] = {{3},
                                               {0xff, 0xff},
                                               {0, 0xe1, 0xf5, 5},
                                               {1, 0xe1, 0xf5, 5},
                                               {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
                                               {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
                                               {0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}};
    char *folder = tempdir_new(), *path = tempdir_at(folder, "model.safetensors");
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        unsigned char file[10] = "........{}";
        memcpy(file, lengths[i], 8);
        tempdir_write(path, file, sizeof file);
        expect_refused(folder, "model.safetensors", "header", i < 3 ? "truncated" : "at most 100000000");
    }
}
END_TEST

/* No value in a header may make the reader recurse or allocate beyond the header's own size. */
START_TEST(a_header_that_is_nested_without_end)
{
    size_t depth = 1 << 20;
    char *folder = tempdir_new(), *path = tempdir_at(folder, "model.safetensors");
    char *text = malloc(depth + 32);
    memcpy(text, "{\"a\":{\"x\":", 10);
    memset(text + 10, '[', depth);
    text[10 + depth] = '\0';
    broken_raw(path, text, 0);
    expect_refused(folder, "model.safetensors", "JSON", "");
    for (size_t i = 0; i + 5 < depth; i += 5)
        memcpy(text + 10 + i, "{\"a\":", 5);
    broken_raw(path, text, 0);
    expect_refused(folder, "model.safetensors", "JSON", "");
    free(text);
}
END_TEST

START_TEST(what_is_not_a_file)
{
    char *folder = tempdir_new(), *path = tempdir_at(folder, "model.safetensors");
    expect_refused(folder, folder, "model.safetensors.index.json", "");
    ck_assert_int_eq(mkdir(path, 0700), 0);
    expect_refused(folder, "model.safetensors", "not a regular file", "");
    ck_assert_int_eq(rmdir(path), 0);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    expect_refused(folder, "model.safetensors", "not a regular file", "");
    expect_refused("no/such/folder", "no/such/folder", "", "");
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(tn_safetensors_open(NULL, &err));
    broken_expect(&err, TN_E_USAGE, NULL);
}
END_TEST

/* A good file of the reference library, with one field changed. */
START_TEST(a_good_file_with_one_lie)
{
    static const struct {
        const char *path, *value, *word;
    } lies[] = {
        {TENSOR "/dtype", "\"F16\"", "13312 bytes"},
        {TENSOR "/dtype", "\"FP32\"", "FP32"},
        {TENSOR "/shape", "[64,105]", "bytes"},
        {TENSOR "/shape", "[64]", "bytes"},
        {TENSOR "/data_offsets", "[0,26624]", ""},
        {TENSOR "/data_offsets", "[135425,162049]", ""},
        {TENSOR, "null", "object"},
        {TENSOR "/shape", NULL, "shape"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        char *folder = broken_copy("llama");
        broken_header(folder, "model.safetensors", lies[i].path, lies[i].value);
        tn_error err = TN_ERROR_INIT;
        ck_assert_ptr_null(shards_open(folder, &err));
        broken_expect(&err, TN_E_INPUT, "model.safetensors", "tensor", lies[i].word, NULL);
    }
    /* Without the entry its bytes belong to nobody. */
    char *folder = broken_copy("llama");
    broken_header(folder, "model.safetensors", TENSOR, NULL);
    expect_refused(folder, "model.safetensors", "26624 bytes", "no tensor");
}
END_TEST

/* The helpers themselves: what they leave is a good file, only other. */
START_TEST(a_tensor_that_was_taken_out_is_gone)
{
    char *folder = broken_copy("llama");
    broken_remove_tensor(folder, "model.safetensors", TENSOR);
    tn_error err = TN_ERROR_INIT;
    shards *set = shards_open(folder, &err);
    ck_assert_msg(set != NULL, "%s", err.message);
    tn_tensor t;
    ck_assert_uint_eq(shards_count(set), 20);
    ck_assert(!shards_get(set, TENSOR, &t));
    shards_close(set);
}
END_TEST

/* ---- shards ---- */

static const struct {
    const char *path, *value, *file, *word, *word2;
} indexes[] = {
    {"weight_map", NULL, INDEX, "weight_map", ""},
    {"weight_map", "{}", INDEX, "weight_map", ""},
    {"weight_map", "[1]", INDEX, "weight_map", ""},
    {"weight_map/" TENSOR, "3", INDEX, TENSOR, ""},
    {"weight_map/" TENSOR, "\"absent.safetensors\"", "absent.safetensors", "cannot open", ""},
    {"weight_map/" TENSOR, "\"" SHARD2 "\"", INDEX, TENSOR, SHARD2},
    {"weight_map/no.such.tensor", "\"" SHARD1 "\"", INDEX, "no.such.tensor", SHARD1},
    {"weight_map/" TENSOR, "\"../" SHARD1 "\"", INDEX, "../" SHARD1, TENSOR},
    {"weight_map/" TENSOR, "\"/etc/passwd\"", INDEX, "/etc/passwd", TENSOR},
    {"weight_map/" TENSOR, "\"sub/x.safetensors\"", INDEX, "sub/x.safetensors", TENSOR},
    {"weight_map/" TENSOR, "\"..\"", INDEX, "'..'", TENSOR},
    {"weight_map/" TENSOR, "\"\"", INDEX, "''", TENSOR},
    {"weight_map/" TENSOR, "\"config.json\"", "config.json", "header", ""},
};

START_TEST(a_broken_index)
{
    char *folder = broken_copy("qwen2");
    broken_json(folder, INDEX, indexes[_i].path, indexes[_i].value);
    expect_refused(folder, indexes[_i].file, indexes[_i].word, indexes[_i].word2);
}
END_TEST

START_TEST(an_index_that_is_not_json)
{
    char *folder = broken_copy("qwen2");
    broken_truncate(folder, INDEX, 500);
    expect_refused(folder, INDEX, "JSON", "line");
    broken_truncate(folder, INDEX, 0);
    expect_refused(folder, INDEX, "JSON", "");
    broken_truncate(folder, INDEX, (size_t)1 << 40); /* sparse; must not be read */
    expect_refused(folder, INDEX, "1099511627776", "");
}
END_TEST

START_TEST(a_shard_that_is_missing_or_cut)
{
    char *folder = broken_copy("qwen2"), *shard = tempdir_at(folder, SHARD2);
    broken_truncate(folder, SHARD2, 100000);
    expect_refused(folder, SHARD2, "truncated", "tensor");
    ck_assert_int_eq(unlink(shard), 0);
    expect_refused(folder, SHARD2, "cannot open", "No such file");
}
END_TEST

START_TEST(a_tensor_in_two_shards)
{
    char *folder = broken_copy("qwen2"), *one = tempdir_at(folder, SHARD1), *two = tempdir_at(folder, SHARD2);
    size_t size;
    void *data = tempdir_read(one, &size);
    tempdir_write(two, data, size);
    expect_refused(folder, INDEX, "tensor", SHARD2); /* what the index places there is gone */
    broken_json(folder, INDEX, "weight_map", "{\"model.norm.weight\": \"" SHARD2 "\", \"" TENSOR "\": \"" SHARD1 "\"}");
    expect_refused(folder, SHARD2, "tensor", "another file");
    free(data);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("bad_files", 0);
    tcase_add_loop_test(tc, a_broken_header, 0, sizeof headers / sizeof headers[0]);
    suite_add(tc, a_file_that_is_cut_anywhere, a_header_that_is_longer_than_the_file,
              a_header_that_is_nested_without_end, what_is_not_a_file, a_good_file_with_one_lie,
              a_tensor_that_was_taken_out_is_gone);
    tcase_add_loop_test(tc, a_broken_index, 0, sizeof indexes / sizeof indexes[0]);
    suite_add(tc, an_index_that_is_not_json, a_shard_that_is_missing_or_cut, a_tensor_in_two_shards);
    return suite_run();
}
