/* Reading and writing .safetensors files that are right. What is wrong with the others: tests/bad_models. */
#include "broken.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char *folder, *path;

static void setup(void)
{
    folder = tempdir_new();
    path = tempdir_at(folder, "t.safetensors");
}

static tn_safetensors *open_good(void)
{
    tn_error err = TN_ERROR_INIT;
    tn_safetensors *file = tn_safetensors_open(path, &err);
    ck_assert_msg(file != NULL, "%s: %s", err.where, err.message);
    return file;
}

START_TEST(a_reference_file_is_read)
{
    tn_error err = TN_ERROR_INIT;
    tn_safetensors *file = tn_safetensors_open("tests/data/models/llama/model.safetensors", &err);
    ck_assert_msg(file != NULL, "%s", err.message);
    ck_assert_uint_eq(tn_safetensors_count(file), 21);
    tn_tensor t;
    ck_assert(tn_safetensors_get(file, "model.layers.0.mlp.down_proj.weight", &t));
    ck_assert_int_eq(t.dtype, TN_F32);
    ck_assert_int_eq(t.ndim, 2);
    ck_assert_int_eq(t.shape[0], 64);
    ck_assert_int_eq(t.shape[1], 104);
    ck_assert_int_eq(t.stride[0], 104);
    ck_assert_int_eq(t.stride[1], 1);
    ck_assert(!tn_safetensors_get(file, "model.layers.0.mlp", &t));
    ck_assert(!tn_safetensors_get(file, "__metadata__", &t));
    ck_assert_ptr_null(tn_safetensors_name(file, 21));
    for (size_t i = 0; i < 21; i++)
        ck_assert(tn_safetensors_get(file, tn_safetensors_name(file, i), &t));
    tn_safetensors_close(file);
    tn_safetensors_close(NULL);
}
END_TEST

START_TEST(json_of_any_style_is_understood)
{
    broken_raw(
        path,
        " {\"__metadata__\" : {\"a\":\"\\u00e9 {}\"} ,\n \"n\\u00e4me \\\"\\ud83d\\ude00\\n\":"
        "{\"extra\":[{\"deep\":[1.5e-3,null,true,false,-0]},\"\\\\\"],\"a key that is longer than thirty-two bytes\":0,"
        "\"data_offsets\" :[0, 3],\t\"shape\":[ 3 ] ,\"dtype\":\"U8\"}, \"scalar\":{\"dtype\":\"F16\",\"shape\":[],"
        "\"data_offsets\":[3,5]},\"none\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[3,3]}}   ",
        5);
    tn_safetensors *file = open_good();
    tn_tensor t;
    ck_assert_uint_eq(tn_safetensors_count(file), 3);
    ck_assert_str_eq(tn_safetensors_name(file, 0), "n\xc3\xa4me \"\xf0\x9f\x98\x80\n");
    ck_assert_str_eq(tn_safetensors_name(file, 1), "none"); /* in the order of the data */
    ck_assert_str_eq(tn_safetensors_name(file, 2), "scalar");
    ck_assert(tn_safetensors_get(file, "scalar", &t));
    ck_assert_int_eq(t.ndim, 0);
    ck_assert_int_eq(tn_tensor_count(&t), 1);
    ck_assert(tn_safetensors_get(file, "none", &t));
    ck_assert_int_eq(tn_tensor_count(&t), 0);
    tn_safetensors_close(file);
    broken_raw(path, "{}", 0);
    file = open_good();
    ck_assert_uint_eq(tn_safetensors_count(file), 0);
    tn_safetensors_close(file);
}
END_TEST

START_TEST(data_may_be_unaligned)
{
    broken_raw(path,
               "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
               "\"b\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[1,17]}}",
               17);
    tn_safetensors *file = open_good();
    tn_tensor a, b;
    ck_assert(tn_safetensors_get(file, "a", &a) && tn_safetensors_get(file, "b", &b));
    ck_assert_ptr_eq((char *)a.data + 1, b.data);
    tn_safetensors_close(file);
}
END_TEST

/* Every dtype of the format, sizes that leave no natural alignment, a scalar and an empty tensor. */
START_TEST(what_is_written_is_read_again)
{
    unsigned char data[TN_DTYPE_COUNT][24];
    tn_named_tensor tensors[TN_DTYPE_COUNT + 2];
    char names[TN_DTYPE_COUNT + 2][16];
    size_t count = 0;
    for (int d = TN_F32; d <= TN_F8_E8M0; d++, count++) {
        for (int i = 0; i < 24; i++)
            data[d][i] = (unsigned char)(d * 24 + i);
        snprintf(names[count], sizeof names[count], "t%d\xc3\xa9\"", d);
        tensors[count] = (tn_named_tensor){names[count], tn_tensor_dense(data[d], d, 2, (int64_t[]){1, 3})};
    }
    float one = 1.25f;
    tensors[count++] = (tn_named_tensor){"scalar", tn_tensor_dense(&one, TN_F32, 0, NULL)};
    tensors[count++] = (tn_named_tensor){"empty", tn_tensor_dense(NULL, TN_I64, 3, (int64_t[]){2, 0, 3})};
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(tn_safetensors_write(path, tensors, count, &err) == TN_OK, "%s", err.message);
    tn_safetensors *file = open_good();
    ck_assert_uint_eq(tn_safetensors_count(file), count);
    for (size_t i = 0; i < count; i++) {
        tn_tensor t, *w = &tensors[i].tensor;
        ck_assert(tn_safetensors_get(file, tensors[i].name, &t));
        ck_assert_int_eq(t.dtype, w->dtype);
        ck_assert_int_eq(t.ndim, w->ndim);
        ck_assert_mem_eq(t.shape, w->shape, (size_t)t.ndim * sizeof t.shape[0]);
        if (tn_tensor_count(w))
            ck_assert_mem_eq(t.data, w->data, (size_t)tn_tensor_count(w) * tn_dtype_size(w->dtype));
        ck_assert_uint_eq((uintptr_t)t.data % tn_dtype_size(t.dtype), 0);
    }
    tn_safetensors_close(file);
}
END_TEST

START_TEST(what_cannot_be_written_is_refused)
{
    float x[6] = {0};
    tn_tensor good = tn_tensor_dense(x, TN_F32, 2, (int64_t[]){2, 3}), bad = good;
    tn_named_tensor twice[2] = {{"a", good}, {"a", good}};
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_safetensors_write(path, twice, 2, &err), TN_E_USAGE);
    broken_expect(&err, TN_E_USAGE, path, "'a'", "twice", NULL);
    bad.stride[0] = 4;
    tn_named_tensor t = {"strided", bad};
    tn_error_clear(&err);
    tn_safetensors_write(path, &t, 1, &err);
    broken_expect(&err, TN_E_USAGE, "'strided'", "dense", NULL);
    bad = good;
    bad.shape[0] = INT64_MAX / 2;
    t = (tn_named_tensor){"huge", bad};
    tn_error_clear(&err);
    tn_safetensors_write(path, &t, 1, &err);
    broken_expect(&err, TN_E_USAGE, "'huge'", NULL);
    bad = good;
    bad.dtype = TN_DTYPE_NONE;
    t = (tn_named_tensor){"typeless", bad};
    ck_assert_int_eq(tn_safetensors_write(path, &t, 1, NULL), TN_E_USAGE);
    bad = good;
    bad.data = NULL;
    t = (tn_named_tensor){"nowhere", bad};
    ck_assert_int_eq(tn_safetensors_write(path, &t, 1, NULL), TN_E_USAGE);
    t = (tn_named_tensor){"__metadata__", good};
    ck_assert_int_eq(tn_safetensors_write(path, &t, 1, NULL), TN_E_USAGE);
    t = (tn_named_tensor){"not utf-8 \xff", good};
    ck_assert_int_eq(tn_safetensors_write(path, &t, 1, NULL), TN_E_USAGE);
    ck_assert_int_eq(tn_safetensors_write(NULL, &t, 1, NULL), TN_E_USAGE);
    ck_assert(!tempdir_exists(path));
}
END_TEST

static int count_entries(const char *dir)
{
    char command[512];
    snprintf(command, sizeof command, "ls -A '%s' | wc -l", dir);
    FILE *p = popen(command, "r");
    int n = -1;
    ck_assert_int_eq(fscanf(p, "%d", &n), 1);
    pclose(p);
    return n;
}

/* The old file is whole until the new one is, and nothing else is left behind. */
START_TEST(an_output_that_cannot_be_written_leaves_the_old)
{
    float x = 1, y = 2;
    tn_named_tensor t = {"x", tn_tensor_dense(&x, TN_F32, 0, NULL)};
    ck_assert_int_eq(tn_safetensors_write(path, &t, 1, NULL), TN_OK);
    struct stat before, st;
    ck_assert_int_eq(stat(path, &before), 0);
    t.tensor.data = &y;
    ck_assert_int_eq(tn_safetensors_write(path, &t, 1, NULL), TN_OK);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert(st.st_ino != before.st_ino); /* renamed over, not written into */
    ck_assert_int_eq(count_entries(folder), 1);

    tn_error err = TN_ERROR_INIT;
    char *nowhere = tempdir_at(folder, "absent/t.safetensors");
    ck_assert_int_eq(tn_safetensors_write(nowhere, &t, 1, &err), TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, nowhere, "cannot write", NULL);
    tn_error_clear(&err);
    ck_assert_int_eq(tn_safetensors_write(folder, &t, 1, &err), TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, folder, "not a regular file", NULL);
    tn_error_clear(&err);
    ck_assert_int_eq(tn_safetensors_write("/dev/null", &t, 1, &err), TN_E_INPUT);
    ck_assert_int_eq(stat("/dev/null", &st), 0);
    ck_assert(S_ISCHR(st.st_mode));
    tn_error_clear(&err);
    ck_assert_int_eq(tn_safetensors_write("/dev/full/t", &t, 1, &err), TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, "/dev/full/t", "cannot write", NULL);
    ck_assert_int_eq(count_entries(folder), 1);
}
END_TEST

/* A disk that is full, and a signal in the middle of writing: the limit on a file's size brings either. */
START_TEST(what_is_not_finished_leaves_nothing)
{
    static const float zeros[30000];
    tn_named_tensor t = {"zeros", tn_tensor_dense((void *)(uintptr_t)zeros, TN_F32, 1, (int64_t[]){30000})};
    for (int signalled = 0; signalled < 2; signalled++) {
        int before = count_entries(folder), status;
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
            tn_error err = TN_ERROR_INIT;
            signal(SIGXFSZ, signalled ? SIG_DFL : SIG_IGN);
            setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
            setrlimit(RLIMIT_FSIZE, &(struct rlimit){65536, 65536});
            bool right = tn_safetensors_write(path, &t, 1, &err) == TN_E_INPUT && strstr(err.message, "too large");
            _exit(right ? 0 : 1);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(signalled ? WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ : status == 0);
        ck_assert_int_eq(count_entries(folder), before);
    }
}
END_TEST

START_TEST(a_link_stays_a_link)
{
    float x = 1;
    tn_named_tensor t = {"x", tn_tensor_dense(&x, TN_F32, 0, NULL)};
    char *link = tempdir_at(folder, "link");
    ck_assert_int_eq(tn_safetensors_write(path, &t, 0, NULL), TN_OK);
    ck_assert_int_eq(symlink(path, link), 0);
    ck_assert_int_eq(tn_safetensors_write(link, &t, 1, NULL), TN_OK);
    struct stat st;
    ck_assert_int_eq(lstat(link, &st), 0);
    ck_assert(S_ISLNK(st.st_mode));
    tn_safetensors *file = open_good();
    ck_assert_uint_eq(tn_safetensors_count(file), 1);
    tn_safetensors_close(file);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("safetensors", 0);
    tcase_add_checked_fixture(tc, setup, NULL);
    suite_add(tc, a_reference_file_is_read, json_of_any_style_is_understood, data_may_be_unaligned,
              what_is_written_is_read_again, what_cannot_be_written_is_refused,
              an_output_that_cannot_be_written_leaves_the_old, what_is_not_finished_leaves_nothing,
              a_link_stays_a_link);
    return suite_run();
}
