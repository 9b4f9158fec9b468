/* A folder's tensors, from one file and from several. */
#include "checkpoint/checkpoint.h"
#include "broken.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static shards *open_good(const char *folder)
{
    tn_error err = TN_ERROR_INIT;
    shards *set = shards_open(folder, &err);
    ck_assert_msg(set != NULL, "%s: %s", err.where, err.message);
    return set;
}

START_TEST(one_file)
{
    shards *set = open_good("tests/data/models/llama_llama3_rope");
    tn_tensor t;
    ck_assert_uint_eq(shards_count(set), 20);
    ck_assert_int_eq(shards_dtype(set), TN_BF16);
    ck_assert_int_eq(shards_bytes(set), 163456);
    ck_assert(shards_get(set, "model.embed_tokens.weight", &t));
    ck_assert(shards_aligned(&t));
    ck_assert(strstr(shards_file_of(set, "model.norm.weight"), "llama_llama3_rope/model.safetensors"));
    ck_assert_ptr_null(shards_file_of(set, "lm_head.weight"));
    ck_assert(!shards_get(set, "lm_head.weight", &t));
    shards_close(set);
    shards_close(NULL);
}
END_TEST

START_TEST(several_files)
{
    shards *set = open_good("tests/data/models/qwen2/"); /* the slash does no harm */
    tn_tensor t;
    ck_assert_uint_eq(shards_count(set), 26);
    ck_assert_int_eq(shards_dtype(set), TN_F32);
    ck_assert_int_eq(shards_bytes(set), 327936); /* total_size of the index */
    ck_assert(shards_get(set, "model.layers.0.self_attn.q_proj.bias", &t));
    ck_assert(strstr(shards_file_of(set, "model.layers.0.self_attn.q_proj.bias"), "model-00001-of-00002.safetensors"));
    ck_assert(strstr(shards_file_of(set, "model.layers.1.mlp.up_proj.weight"), "model-00002-of-00002.safetensors"));
    for (size_t i = 0; i < 26; i++)
        ck_assert(shards_get(set, shards_name(set, i), &t));
    ck_assert_ptr_null(shards_name(set, 26));
    shards_close(set);
}
END_TEST

START_TEST(a_single_file_wins_over_an_index)
{
    char *folder = broken_copy("llama");
    char *index = tempdir_at(folder, "model.safetensors.index.json");
    tempdir_write(index, "{", 1);
    shards *set = open_good(folder);
    ck_assert_uint_eq(shards_count(set), 21);
    shards_close(set);
}
END_TEST

/* The index decides between two files that both hold a tensor; what it does not mention is there all the same. */
START_TEST(the_index_decides)
{
    char *folder = tempdir_new();
    char *a = tempdir_at(folder, "a.safetensors"), *b = tempdir_at(folder, "b.safetensors");
    char *index = tempdir_at(folder, "model.safetensors.index.json");
    const char header_a[] = "{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                            "\"only\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[1,2]}}";
    const char header_b[] = "{\"x\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
    const char map[] = "{\"weight_map\":{\"x\":\"b.safetensors\",\"only\":\"a.safetensors\"}}";
    broken_raw(a, header_a, 2);
    broken_raw(b, header_b, 2);
    tempdir_write(index, map, sizeof map - 1);
    shards *set = open_good(folder);
    tn_tensor t;
    ck_assert_uint_eq(shards_count(set), 2);
    ck_assert(shards_get(set, "x", &t));
    ck_assert_int_eq(t.shape[0], 2);
    ck_assert_int_eq(shards_dtype(set), TN_DTYPE_NONE);
    ck_assert_int_eq(shards_bytes(set), 3);
    shards_close(set);
}
END_TEST

/* All of many names are found and none that is not there: the hash and its collisions. */
START_TEST(many_tensors)
{
    enum { COUNT = 20000 };
    char *folder = tempdir_new(), *path = tempdir_at(folder, "model.safetensors");
    size_t size = COUNT * 120, n = 0;
    char *header = malloc(size), name[64];
    for (int i = 0; i < COUNT; i++)
        n += (size_t)snprintf(header + n, size - n,
                              "%s\"layers.%d.experts.%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                              i ? "," : "{", i / 128, i % 128, i, i + 1);
    ck_assert_uint_lt(n + 2, size);
    memcpy(header + n, "}", 2);
    broken_raw(path, header, COUNT);
    shards *set = open_good(folder);
    tn_tensor t, first;
    ck_assert_uint_eq(shards_count(set), COUNT);
    ck_assert(shards_get(set, "layers.0.experts.0", &first));
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "layers.%d.experts.%d", i / 128, i % 128);
        ck_assert(shards_get(set, name, &t));
        ck_assert_ptr_eq(t.data, (char *)first.data + i);
        snprintf(name, sizeof name, "layers.%d.expert.%d", i / 128, i % 128);
        ck_assert(!shards_get(set, name, &t));
    }
    shards_close(set);
    free(header);
}
END_TEST

START_TEST(alignment_is_told)
{
    double buffer[2];
    tn_tensor t = tn_tensor_dense(buffer, TN_F64, 1, (int64_t[]){1});
    ck_assert(shards_aligned(&t));
    t.data = (char *)buffer + 4;
    ck_assert(!shards_aligned(&t));
    t.dtype = TN_F32;
    ck_assert(shards_aligned(&t));
    t.data = (char *)buffer + 1;
    t.dtype = TN_BF16;
    ck_assert(!shards_aligned(&t));
    t.dtype = TN_U8;
    ck_assert(shards_aligned(&t));
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("shards", 0);
    suite_add(tc, one_file, several_files, a_single_file_wins_over_an_index, the_index_decides, many_tensors,
              alignment_is_told);
    return suite_run();
}
