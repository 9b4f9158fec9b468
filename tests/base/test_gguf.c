/* The container of .gguf files: what it reads of them, and that nothing wrong in one is believed. */
#include "base/gguf.h"
#include "gguf_file.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SECONDS = 120, F32 = 0, Q4_0 = 2, Q8_0 = 8, REMOVED = 4, UNKNOWN = 99 };

static gguf_file file;

static void close_gguf(void *f)
{
    gguf_close(f);
}

static const gguf *opened(void)
{
    tn_error err = TN_ERROR_INIT;
    char *path = gguf_file_write(&file);
    gguf *f = gguf_open(path, &err);
    ck_assert_msg(f != NULL, "%s: %s", err.where, err.message);
    free(path);
    suite_keep(f, close_gguf);
    return f;
}

static void assert_refused(const char *path, const char *word)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(gguf_open(path, &err) == NULL, "'%s' was no error", word);
    ck_assert_int_eq(err.code, TN_E_INPUT);
    ck_assert_msg(strstr(err.where, ".gguf"), "no file in '%s'", err.where);
    ck_assert_msg(strstr(err.message, word), "'%s' lacks '%s'", err.message, word);
    ck_assert_msg(!strchr(err.message, '\n'), "'%s' is not one line", err.message);
}

static void assert_wrong(const char *word)
{
    char *path = gguf_file_write(&file);
    assert_refused(path, word);
    free(path);
}

/* ---- what is right -------------------------------------------------------------------------------------- */

/* A key of each type, and two tensors. */
static void start_whole(uint32_t version)
{
    static const struct {
        const char *key;
        uint32_t type;
        size_t bytes;
        uint64_t value;
    } numbers[] = {
        {"u8", 0, 1, 200},
        {"i8", 1, 1, 0xff},
        {"u16", 2, 2, 60000},
        {"i16", 3, 2, 0xfffe},
        {"u32", 4, 4, 1u << 31},
        {"i32", 5, 4, 0xfffffffd},
        {"f32", 6, 4, 0x3fc00000},
        {"bool", 7, 1, 1},
        {"u64", 10, 8, UINT64_MAX},
        {"i64", 11, 8, (uint64_t)-5},
        {"f64", 12, 8, 0x4004000000000000},
    };
    gguf_file_start(&file, version);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        gguf_file_key(&file, numbers[i].key, numbers[i].type);
        gguf_file_put(&file, numbers[i].value, numbers[i].bytes);
    }
    gguf_file_text(&file, "text", "na\xc3\xafve");
    gguf_file_texts(&file, "texts", (const char *const[]){"", "two", "x"}, 3);
    gguf_file_i32s(&file, "list", (const int32_t[]){7, -8}, 2);
    gguf_file_floats(&file, "floats", (const float[]){0.5F}, 1);
    gguf_file_tensor(&file, "a", 2, (const uint64_t[]){32, 3}, Q8_0, 0);
    gguf_file_tensor(&file, "b", 1, (const uint64_t[]){5}, F32, 128);
    gguf_file_data(&file, 128 + 20);
}

static void assert_integer(const gguf *f, const char *key, int64_t expected)
{
    int64_t value;
    ck_assert_msg(gguf_integer(f, key, &value) && value == expected, "%s", key);
}

START_TEST(values)
{
    start_whole(_i ? 3 : 2);
    const gguf *f = opened();
    int64_t integer;
    double number;
    bool flag;
    assert_integer(f, "u8", 200);
    assert_integer(f, "i8", -1);
    assert_integer(f, "u16", 60000);
    assert_integer(f, "i16", -2);
    assert_integer(f, "u32", INT64_C(1) << 31);
    assert_integer(f, "i32", -3);
    assert_integer(f, "i64", -5);
    ck_assert(!gguf_integer(f, "u64", &integer)); /* it does not fit */
    ck_assert(gguf_number(f, "f32", &number) && number == 1.5);
    ck_assert(gguf_number(f, "f64", &number) && number == 2.5);
    ck_assert(gguf_number(f, "i8", &number) && number == -1);
    ck_assert(gguf_flag(f, "bool", &flag) && flag);
    ck_assert_str_eq(gguf_text(f, "text"), "na\xc3\xafve");
    ck_assert_str_eq(gguf_key(f, 0), "u8");
    ck_assert_ptr_null(gguf_key(f, 15));
}
END_TEST

START_TEST(other_types)
{
    start_whole(3);
    const gguf *f = opened();
    int64_t integer;
    double number;
    bool flag;
    ck_assert(!gguf_integer(f, "f32", &integer) && !gguf_integer(f, "none", &integer));
    ck_assert(!gguf_integer(f, "bool", &integer) && !gguf_number(f, "text", &number));
    ck_assert(!gguf_flag(f, "u8", &flag) && !gguf_text(f, "u8") && !gguf_text(f, "none"));
    ck_assert_int_eq(gguf_array(f, "text"), -1);
    ck_assert_int_eq(gguf_kind_of(f, "u8"), GGUF_INTEGER);
    ck_assert_int_eq(gguf_kind_of(f, "f64"), GGUF_FLOAT);
    ck_assert_int_eq(gguf_kind_of(f, "bool"), GGUF_BOOL);
    ck_assert_int_eq(gguf_kind_of(f, "text"), GGUF_STRING);
    ck_assert_int_eq(gguf_kind_of(f, "list"), GGUF_ARRAY);
    ck_assert_int_eq(gguf_kind_of(f, "none"), GGUF_ABSENT);
}
END_TEST

START_TEST(arrays)
{
    start_whole(3);
    const gguf *f = opened();
    int64_t integer;
    double number;
    size_t length = 9;
    ck_assert_int_eq(gguf_array(f, "texts"), 3);
    ck_assert_ptr_nonnull(gguf_array_text(f, "texts", 0, &length));
    ck_assert_uint_eq(length, 0);
    ck_assert_mem_eq(gguf_array_text(f, "texts", 1, &length), "two", 3);
    ck_assert_uint_eq(length, 3);
    ck_assert_mem_eq(gguf_array_text(f, "texts", 2, &length), "x", 1);
    ck_assert(!gguf_array_text(f, "texts", 3, &length) && !gguf_array_text(f, "texts", -1, &length));
    ck_assert(!gguf_array_text(f, "list", 0, &length) && !gguf_array_integer(f, "texts", 0, &integer));
    ck_assert(gguf_array_integer(f, "list", 1, &integer) && integer == -8);
    ck_assert(gguf_array_number(f, "floats", 0, &number) && number == 0.5);
    ck_assert(gguf_array_number(f, "list", 0, &number) && number == 7);
    ck_assert(!gguf_array_integer(f, "list", 2, &integer) && !gguf_array_integer(f, "floats", 0, &integer));
}
END_TEST

START_TEST(tensors)
{
    tn_tensor t;
    const char *path;
    start_whole(3);
    const gguf *f = opened();
    ck_assert_uint_eq(gguf_tensor_count(f), 2);
    ck_assert_str_eq(gguf_tensor(f, 0, &t, &path), "a");
    ck_assert(t.dtype == TN_Q8_0 && t.ndim == 2 && t.shape[0] == 3 && t.shape[1] == 32);
    const char *first = t.data;
    ck_assert_str_eq(gguf_tensor(f, 1, &t, &path), "b");
    ck_assert(t.dtype == TN_F32 && t.ndim == 1 && t.shape[0] == 5 && (const char *)t.data == first + 128);
    ck_assert_ptr_nonnull(strstr(path, "model.gguf"));
    ck_assert_int_eq(gguf_check(f, NULL), TN_OK);
}
END_TEST

/* ---- what is wrong -------------------------------------------------------------------------------------- */

/* Wherever the file ends, and whatever one byte becomes. */
START_TEST(cut)
{
    char *path = tempdir_path(tempdir_new(), "cut.gguf");
    start_whole(3);
    for (size_t size = 0; size < file.size; size++) {
        tempdir_write(path, file.data, size);
        assert_refused(path, "");
    }
    free(path);
}
END_TEST

START_TEST(changed)
{
    char *path = tempdir_path(tempdir_new(), "changed.gguf");
    start_whole(3);
    for (size_t i = 0; i < file.size - 128 - 20; i++) {
        tn_error err = TN_ERROR_INIT;
        file.data[i] ^= (unsigned char)(1u << i % 8);
        tempdir_write(path, file.data, file.size);
        gguf *f = gguf_open(path, &err);
        ck_assert_int_eq(f != NULL, err.code == TN_OK);
        gguf_close(f);
        file.data[i] ^= (unsigned char)(1u << i % 8);
    }
    free(path);
}
END_TEST

START_TEST(start)
{
    gguf_file_start(&file, 1);
    assert_wrong("version 1");
    gguf_file_start(&file, 4);
    assert_wrong("version 4");
    gguf_file_start(&file, 0x03000000);
    assert_wrong("big-endian");
    gguf_file_start(&file, 3);
    file.data[3] = 'f';
    assert_wrong("no GGUF file");
    gguf_file_start(&file, 3);
    memset(file.data + 8, 0xff, 8); /* the number of tensors */
    assert_wrong("more than the file can hold");
    gguf_file_start(&file, 3);
    file.data[16] = 1; /* of keys */
    assert_wrong("more than the file can hold");
}
END_TEST

START_TEST(keys)
{
    gguf_file_start(&file, 3);
    gguf_file_u32(&file, "twice", 1);
    gguf_file_flag(&file, "twice", true);
    assert_wrong("key 'twice': is there twice");
    gguf_file_start(&file, 3);
    gguf_file_key(&file, "odd", 13);
    gguf_file_put(&file, 0, 8);
    assert_wrong("key 'odd': is of type 13");
    gguf_file_start(&file, 3);
    gguf_file_key(&file, "truth", 7);
    gguf_file_put(&file, 2, 8);
    assert_wrong("key 'truth': is neither true nor false");
    gguf_file_start(&file, 3);
    gguf_file_key(&file, "nan", 6);
    gguf_file_put(&file, 0x7fc00000, 8);
    assert_wrong("key 'nan': is no finite number");
    gguf_file_start(&file, 3);
    gguf_file_key(&file, "long", 8);
    gguf_file_put(&file, UINT64_MAX, 8);
    assert_wrong("key 'long': a string of 18446744073709551615 bytes does not fit");
    gguf_file_start(&file, 3);
    gguf_file_text(&file, "latin", "na\xefve");
    assert_wrong("key 'latin': a string is not UTF-8");
    gguf_file_start(&file, 3);
    gguf_file_key(&file, "nul", 8);
    gguf_file_put(&file, 3, 8);
    gguf_file_bytes(&file, "a\0b", 3);
    assert_wrong("key 'nul': a string is not UTF-8, or has a NUL in it");
    gguf_file_start(&file, 3);
    gguf_file_text(&file, "\xff", "name");
    assert_wrong("not UTF-8");
    gguf_file_start(&file, 3);
    gguf_file_text(&file, "a.b", "name");
    file.data[24 + 8 + 1] = '\0'; /* of the key                                                   */
    assert_wrong("key 0: a string is not UTF-8, or has a NUL in it");
    gguf_file_start(&file, 3);
    gguf_file_texts(&file, "twice", (const char *const[]){"a"}, 1);
    gguf_file_i32s(&file, "twice", (const int32_t[]){1}, 1);
    assert_wrong("key 'twice': is there twice");
    gguf_file_start(&file, 3);
    gguf_file_key(&file, "infinite", 12);
    gguf_file_put(&file, 0x7ff0000000000000, 8);
    assert_wrong("key 'infinite': is no finite number");
    gguf_file_start(&file, 3);
    gguf_file_key(&file, "type", UINT32_MAX);
    gguf_file_put(&file, 0, 8);
    assert_wrong("key 'type': is of type 4294967295");
}
END_TEST

START_TEST(wrong_arrays)
{
    gguf_file_start(&file, 3);
    gguf_file_array(&file, "nested", 9, 1);
    gguf_file_data(&file, 32);
    assert_wrong("key 'nested': is an array of arrays");
    gguf_file_start(&file, 3);
    gguf_file_array(&file, "odd", 77, 1);
    gguf_file_put(&file, 0, 8);
    assert_wrong("key 'odd': its elements are of type 77");
    gguf_file_start(&file, 3);
    gguf_file_array(&file, "many", 4, UINT64_MAX / 4 + 2);
    gguf_file_put(&file, 0, 8);
    assert_wrong("key 'many': 4611686018427387905 elements do not fit");
    gguf_file_start(&file, 3);
    gguf_file_texts(&file, "texts", (const char *const[]){"a", "\xc3"}, 2);
    assert_wrong("key 'texts': string 1 is not UTF-8");
    gguf_file_start(&file, 3);
    gguf_file_array(&file, "nul", 8, 1);
    gguf_file_put(&file, 3, 8);
    gguf_file_bytes(&file, "a\0b", 3);
    assert_wrong("key 'nul': string 0 is not UTF-8, or has a NUL in it");
    gguf_file_start(&file, 3);
    gguf_file_array(&file, "long", 8, 1);
    gguf_file_put(&file, INT64_MAX, 8);
    assert_wrong("key 'long': a string of 9223372036854775807 bytes does not fit");
}
END_TEST

static void one_tensor(const char *name, uint32_t ndim, const uint64_t *dims, uint32_t type, uint64_t offset)
{
    gguf_file_start(&file, 3);
    gguf_file_tensor(&file, name, ndim, dims, type, offset);
    gguf_file_data(&file, 64);
}

START_TEST(wrong_tensors)
{
    const uint64_t row[] = {32}, zero[] = {0}, odd[] = {33}, huge[] = {UINT64_C(1) << 40, UINT64_C(1) << 40};
    const uint64_t negative[] = {UINT64_MAX}, five[] = {1, 1, 1, 1, 1};
    one_tensor("t", 1, row, REMOVED, 0);
    assert_wrong("tensor 't': is of type Q4_2");
    one_tensor("t", 1, row, 31, 0);
    assert_wrong("Q4_0_4_4");
    one_tensor("t", 1, row, UNKNOWN, 0);
    assert_wrong("tensor 't': is of type");
    one_tensor("t", 1, zero, F32, 0);
    assert_wrong("tensor 't': its dimension 0 is 0");
    one_tensor("t", 1, negative, F32, 0);
    assert_wrong("tensor 't': its dimension 0 is");
    one_tensor("t", 1, odd, Q4_0, 0);
    assert_wrong("tensor 't': a row has 33 values, no multiple of the 32");
    one_tensor("t", 2, huge, F32, 0);
    assert_wrong("tensor 't': its shape is too large");
    one_tensor("t", 5, five, F32, 0);
    assert_wrong("tensor 't': has 5 dimensions");
    one_tensor("t", 1, row, F32, 4);
    assert_wrong("tensor 't': its data begin at 4, no multiple of the alignment 32");
    one_tensor("t", 1, row, F32, 0);
    assert_wrong("tensor 't': 128 bytes of data at 0 do not fit");
    one_tensor("t", 1, row, F32, UINT64_MAX - 31);
    assert_wrong("tensor 't': 128 bytes of data at");
    one_tensor("t", 0, row, Q4_0, 0);
    assert_wrong("tensor 't': is one value of a type of blocks of 32");
    one_tensor("t", 1, row, F32, 0);
    memset(file.data + 24 + 8 + 1, 0xff, 4); /* the number of dimensions                              */
    assert_wrong("tensor 't': has 4294967295 dimensions");
    one_tensor("t", 1, row, UINT32_MAX, 0);
    assert_wrong("tensor 't': is of type");
    one_tensor("\xc3", 1, row, F32, 0);
    assert_wrong("tensor 0: a string is not UTF-8");
    one_tensor("t.u", 1, (const uint64_t[]){8}, F32, 0);
    file.data[24 + 8 + 1] = '\0';
    assert_wrong("tensor 0: a string is not UTF-8, or has a NUL in it");
    one_tensor("0123456789012345678901234567890123456789012345678901234567890123", 1, row, F32, 0);
    assert_wrong("its name has 64 bytes");
}
END_TEST

START_TEST(two_tensors)
{
    const uint64_t eight[] = {8};
    gguf_file_start(&file, 3);
    gguf_file_tensor(&file, "t", 1, eight, F32, 0);
    gguf_file_tensor(&file, "t", 1, eight, F32, 32);
    gguf_file_data(&file, 64);
    assert_wrong("tensor 't': is there twice");
    gguf_file_start(&file, 3);
    gguf_file_tensor(&file, "t", 1, eight, F32, 0);
    gguf_file_tensor(&file, "u", 1, eight, F32, 0);
    gguf_file_data(&file, 64);
    assert_wrong("tensor 'u': its data begin within those");
}
END_TEST

START_TEST(alignment)
{
    static const uint32_t wrong[] = {0, 1, 4, 48};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        gguf_file_start(&file, 3);
        gguf_file_u32(&file, "general.alignment", wrong[i]);
        assert_wrong("key 'general.alignment': is no power of two");
    }
    gguf_file_start(&file, 3);
    gguf_file_text(&file, "general.alignment", "32");
    assert_wrong("key 'general.alignment': is no power of two");
    gguf_file_start(&file, 3);
    gguf_file_i32s(&file, "general.alignment", (const int32_t[]){32}, 1);
    assert_wrong("key 'general.alignment': is no power of two");
    gguf_file_start(&file, 3);
    gguf_file_key(&file, "general.alignment", 5);
    gguf_file_put(&file, (uint32_t)-32, 4);
    assert_wrong("key 'general.alignment': is no power of two");
    gguf_file_start(&file, 3);
    gguf_file_u32(&file, "general.alignment", UINT32_C(1) << 31); /* the data would begin there        */
    gguf_file_tensor(&file, "t", 1, (const uint64_t[]){8}, F32, 0);
    gguf_file_data(&file, 64);
    assert_wrong("the file ends before its data");
    gguf_file_start(&file, 3);
    gguf_file_u32(&file, "general.alignment", 64);
    gguf_file_tensor(&file, "t", 1, (const uint64_t[]){8}, F32, 32);
    gguf_file_data(&file, 256);
    assert_wrong("tensor 't': its data begin at 32, no multiple of the alignment 64");
}
END_TEST

/* ---- parts ----------------------------------------------------------------------------------------------- */

typedef struct part {
    const char *name;
    uint16_t no, count; /* count 0: it says nothing */
    uint32_t total;     /* 0: it says nothing       */
} part;

/* Writes parts with a tensor each, called by their number, and opens the first. */
static gguf *open_parts(const part *parts, size_t count, tn_error *err)
{
    char *folder = tempdir_new(), *first = tempdir_path(folder, parts[0].name);
    for (size_t i = 0; i < count; i++) {
        const char name[] = {(char)('0' + i), '\0'};
        gguf_file_start(&file, 3);
        if (parts[i].count) {
            gguf_file_u16(&file, "split.no", parts[i].no);
            gguf_file_u16(&file, "split.count", parts[i].count);
        }
        if (parts[i].total)
            gguf_file_u32(&file, "split.tensors.count", parts[i].total);
        gguf_file_tensor(&file, name, 1, (const uint64_t[]){8}, F32, 0);
        gguf_file_data(&file, 32);
        char *path = tempdir_path(folder, parts[i].name);
        tempdir_write(path, file.data, file.size);
        free(path);
    }
    gguf *f = gguf_open(first, err);
    free(first);
    return f;
}

START_TEST(split)
{
    const part parts[] = {{"m-00001-of-00002.gguf", 0, 2, 2}, {"m-00002-of-00002.gguf", 1, 2, 2}};
    tn_error err = TN_ERROR_INIT;
    tn_tensor t;
    const char *path;
    gguf *f = open_parts(parts, 2, &err);
    ck_assert_msg(f != NULL, "%s: %s", err.where, err.message);
    ck_assert_uint_eq(gguf_file_count(f), 2);
    ck_assert_uint_eq(gguf_tensor_count(f), 2);
    ck_assert_str_eq(gguf_tensor(f, 1, &t, &path), "1");
    ck_assert_ptr_nonnull(strstr(path, "m-00002-of-00002.gguf"));
    ck_assert_str_eq(path, gguf_path(f, 1));
    gguf_close(f);
}
END_TEST

START_TEST(wrong_split)
{
    static const struct {
        part parts[2];
        size_t count;
        const char *where, *word;
    } wrong[] = {
        {{{"m-00001-of-00002.gguf", 0, 2, 2}}, 1, "m-00002-of-00002.gguf", ""},
        {{{"m-00002-of-00002.gguf", 1, 2, 2}}, 1, "m-00002-of-00002.gguf", "is part 2 of 2; give the first"},
        {{{"other.gguf", 0, 2, 2}}, 1, "other.gguf", "is not named NAME-00001-of-00002.gguf"},
        {{{"m-00001-of-00003.gguf", 0, 2, 2}}, 1, "m-00001-of-00003.gguf", "is not named NAME-00001-of-00002.gguf"},
        {{{"m-00001-of-00002.gguf", 0, 2, 2}, {"m-00002-of-00002.gguf", 0, 2, 2}},
         2,
         "m-00002-of-00002.gguf",
         "should be part 2 of 2, but split.no is 0"},
        {{{"m-00001-of-00002.gguf", 0, 2, 2}, {"m-00002-of-00002.gguf", 1, 3, 2}},
         2,
         "m-00002-of-00002.gguf",
         "split.count 3"},
        {{{"m-00001-of-00002.gguf", 0, 2, 2}, {"m-00002-of-00002.gguf", 0, 0, 0}}, 2, "m-00002-of-00002.gguf", ""},
        {{{"m-00001-of-00002.gguf", 0, 2, 3}, {"m-00002-of-00002.gguf", 1, 2, 3}},
         2,
         "m-00001-of-00002.gguf",
         "key 'split.tensors.count': is 3, but the parts hold 2"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tn_error err = TN_ERROR_INIT;
        ck_assert_msg(open_parts(wrong[i].parts, wrong[i].count, &err) == NULL, "case %zu", i);
        ck_assert_int_eq(err.code, TN_E_INPUT);
        ck_assert_msg(strstr(err.where, wrong[i].where), "case %zu: '%s'", i, err.where);
        ck_assert_msg(strstr(err.message, wrong[i].word), "case %zu: '%s'", i, err.message);
    }
}
END_TEST

/* A number of parts that is none, and a tensor that two parts have. */
START_TEST(wrong_counts_of_parts)
{
    static const uint32_t wrong[] = {0, UINT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        gguf_file_start(&file, 3);
        gguf_file_key(&file, "split.count", 5);
        gguf_file_put(&file, wrong[i], 4);
        assert_wrong("key 'split.count': is no number of parts");
    }
    gguf_file_start(&file, 3);
    gguf_file_text(&file, "split.count", "2");
    assert_wrong("key 'split.count': is no number of parts");
    gguf_file_start(&file, 3);
    gguf_file_u32(&file, "split.count", 2); /* and no number of its own                                */
    assert_wrong("should be part 1 of 2, but split.no is -1");
    const char *folder = tempdir_new();
    for (uint16_t i = 0; i < 2; i++) {
        gguf_file_start(&file, 3);
        gguf_file_u16(&file, "split.no", i);
        gguf_file_u16(&file, "split.count", 2);
        gguf_file_tensor(&file, "t", 1, (const uint64_t[]){8}, F32, 0);
        gguf_file_data(&file, 32);
        tempdir_write(tempdir_at(folder, i ? "m-00002-of-00002.gguf" : "m-00001-of-00002.gguf"), file.data, file.size);
    }
    assert_refused(tempdir_at(folder, "m-00001-of-00002.gguf"), "tensor 't': is there twice");
}
END_TEST

START_TEST(cut_while_open)
{
    tn_error err = TN_ERROR_INIT;
    start_whole(3);
    char *path = gguf_file_write(&file);
    gguf *f = gguf_open(path, &err);
    ck_assert_int_eq(gguf_check(f, &err), TN_OK);
    ck_assert_int_eq(truncate(path, 100), 0);
    ck_assert_int_eq(gguf_check(f, &err), TN_E_INPUT);
    ck_assert_ptr_nonnull(strstr(err.where, "model.gguf"));
    gguf_close(f);
    free(path);
}
END_TEST

START_TEST(names)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert(gguf_is_named("a/b.gguf") && !gguf_is_named(".gguf") && !gguf_is_named("a.gguf.part"));
    ck_assert_ptr_null(gguf_open("/nowhere/model.gguf", &err));
    ck_assert_int_eq(err.code, TN_E_INPUT);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("gguf", SECONDS);
    tcase_add_loop_test(tc, values, 0, 2);
    tcase_add_test(tc, other_types);
    tcase_add_test(tc, arrays);
    tcase_add_test(tc, tensors);
    tcase_add_test(tc, cut);
    tcase_add_test(tc, changed);
    tcase_add_test(tc, start);
    tcase_add_test(tc, keys);
    tcase_add_test(tc, wrong_arrays);
    tcase_add_test(tc, wrong_tensors);
    tcase_add_test(tc, two_tensors);
    tcase_add_test(tc, alignment);
    tcase_add_test(tc, split);
    tcase_add_test(tc, wrong_split);
    tcase_add_test(tc, wrong_counts_of_parts);
    tcase_add_test(tc, cut_while_open);
    tcase_add_test(tc, names);
    return suite_run();
}
