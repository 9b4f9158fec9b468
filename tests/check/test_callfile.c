/* Files of calls: what is written can be read and performed; whatever stands in one, it is refused with a name or
 * performed, and what is told of it can be shown. */
#include "check/check.h"
#include "check/draw_site.h"
#include "op/op.h"
#include "replay_call.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static char *folder, *path, *other;

static void enter(void)
{
    folder = tempdir_new();
    path = tempdir_path(folder, "call.safetensors");
    other = tempdir_path(folder, "other.safetensors");
}

static void leave(void)
{
    free(path);
    free(other);
    tempdir_remove(folder);
}

/* A call of a small site of the operation, in the file. */
static void write_call(tn_op op, const callfile_facts *facts)
{
    tn_error err = TN_ERROR_INIT;
    tn_site like = draw_site_plain(op);
    draw_site d;
    check_reference r;
    ck_assert_msg(draw_site_open(&d, &like, 1, &err) == TN_OK, "%s", err.message);
    check_case size = {.batch = 2, .tokens = 3};
    ck_assert_msg(check_reference_open(&r, &cpu_device, &d.site, UINT32_MAX, size, &err) == TN_OK, "%s", err.message);
    ck_assert_msg(callfile_write(path, facts, &r.call, &r.call, &err) == TN_OK, "%s", err.message);
    check_reference_close(&r);
    draw_site_close(&d);
}

static const callfile_facts plain = {"k", "/plugins/k.so", "row 0, element 0 is 1, eager has 2", 3.5, 2};

/* The file again with one tensor changed: no data takes it away. */
static void rewrite(const char *name, const tn_tensor *instead)
{
    tn_error err = TN_ERROR_INIT;
    tn_safetensors *file = tn_safetensors_open(path, &err);
    ck_assert_msg(file != NULL, "%s", err.message);
    size_t count = tn_safetensors_count(file), kept = 0;
    tn_named_tensor *all = calloc(count + 1, sizeof *all);
    for (size_t i = 0; i < count; i++) {
        all[kept].name = tn_safetensors_name(file, i);
        tn_safetensors_get(file, all[kept].name, &all[kept].tensor);
        bool changed = strcmp(all[kept].name, name) == 0;
        if (changed && instead)
            all[kept].tensor = *instead;
        kept += !changed || instead;
    }
    ck_assert_msg(tn_safetensors_write(other, all, kept, &err) == TN_OK, "%s", err.message);
    free(all);
    tn_safetensors_close(file);
}

/* Reads other; performs it where it is accepted. The status of reading. */
static tn_status open_other(tn_error *err)
{
    callfile c;
    tn_error_clear(err);
    tn_status status = callfile_open(&c, other, err);
    ck_assert_int_eq(status, err->code);
    ck_assert_msg(status == TN_OK || status == TN_E_INPUT, "%d: %s", (int)status, err->message);
    if (status == TN_OK)
        ck_assert_int_ne(replay_call_perform(&c, err), TN_E_INTERNAL);
    callfile_close(&c);
    return status;
}

static const op_row *row_of(int i)
{
    const op_row *row = op_at((size_t)i);
    return row && row->kind == OP_CONTRACT ? row : NULL;
}

/* Every tensor: gone, of another type, with another dimension, one larger, and with other bytes. */
START_TEST(every_tensor_is_looked_at)
{
    static const unsigned char bytes[] = {0x00, 0xff, 0x7f, 0x80, 0x40, 0x01};
    tn_error err = TN_ERROR_INIT;
    if (!row_of(_i))
        return;
    write_call(row_of(_i)->op, &plain);
    tn_safetensors *file = tn_safetensors_open(path, NULL);
    for (size_t i = 0; i < tn_safetensors_count(file); i++) {
        const char *name = tn_safetensors_name(file, i);
        tn_tensor t, changed;
        tn_safetensors_get(file, name, &t);
        size_t size = (size_t)tn_tensor_count(&t) * tn_dtype_size(t.dtype);
        char *data = calloc(1, 2 * size + 64);
        rewrite(name, NULL);
        tn_status gone = open_other(&err);
        bool optional = strstr("kernel.1 eager.1 kernel.2 eager.2", name) != NULL;
        ck_assert_msg(gone == TN_E_INPUT || optional || strcmp(name, "param.11.0") == 0, "without %s", name);
        changed = tn_tensor_dense(data, t.dtype == TN_I64 ? TN_F64 : TN_I64, 1, (int64_t[]){(int64_t)size / 8 + 1});
        rewrite(name, &changed);
        ck_assert_msg(open_other(&err) == TN_E_INPUT, "%s of another type", name);
        for (size_t b = 0; b < sizeof bytes; b++) {
            memset(data, bytes[b], size);
            changed = tn_tensor_dense(data, t.dtype, t.ndim, t.shape);
            rewrite(name, &changed);
            open_other(&err);
        }
        free(data);
    }
    tn_safetensors_close(file);
}
END_TEST

/* ---- the site ---------------------------------------------------------------------------------------------------- */

/* The whole of a tensor with one element changed. */
static void rewrite_element(const char *name, size_t at, const void *element)
{
    tn_tensor t;
    tn_safetensors *file = tn_safetensors_open(path, NULL);
    ck_assert(tn_safetensors_get(file, name, &t));
    size_t each = tn_dtype_size(t.dtype), size = (size_t)tn_tensor_count(&t) * each;
    char *data = malloc(size);
    memcpy(data, t.data, size);
    memcpy(data + at * each, element, each);
    t.data = data;
    rewrite(name, &t);
    free(data);
    tn_safetensors_close(file);
}

START_TEST(axes_have_their_values)
{
    static const int32_t wild[] = {-1, INT32_MIN, INT32_MAX, 31, 32, 63, 64, 65, 1 << 30};
    tn_error err = TN_ERROR_INIT;
    if (!row_of(_i))
        return;
    write_call(row_of(_i)->op, &plain);
    for (size_t axis = 0; axis < TN_AXIS_MAX; axis++)
        for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
            rewrite_element("site.meaning", axis, &wild[i]);
            ck_assert_msg(open_other(&err) == TN_E_INPUT, "axis %zu: %d", axis, (int)wild[i]);
        }
}
END_TEST

START_TEST(dimensions_are_sizes)
{
    static const int64_t wild[] = {-1, INT64_MIN, INT64_MAX, INT64_C(1) << 62, INT64_C(1) << 31, INT64_C(1) << 40};
    tn_error err = TN_ERROR_INIT;
    const op_row *row = row_of(_i);
    if (!row)
        return;
    write_call(row->op, &plain);
    for (size_t dim = 0; dim < TN_DIM_MAX; dim++)
        for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
            rewrite_element("site.dim", dim, &wild[i]);
            tn_status status = open_other(&err);
            bool must = wild[i] < 0 || wild[i] > OP_LARGEST_DIM || (row->dims >> dim & 1);
            ck_assert_msg(status == TN_E_INPUT || !must, "dimension %zu: %lld", dim, (long long)wild[i]);
        }
}
END_TEST

START_TEST(numbers_are_finite)
{
    static const double wild[] = {NAN, INFINITY, -INFINITY};
    tn_error err = TN_ERROR_INIT;
    const op_row *row = row_of(_i);
    if (!row)
        return;
    write_call(row->op, &plain);
    for (size_t num = 0; num < TN_NUM_MAX; num++)
        for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
            rewrite_element("site.num", num, &wild[i]);
            ck_assert_msg(open_other(&err) == TN_E_INPUT || !(row->nums >> num & 1), "number %zu: %g", num, wild[i]);
        }
}
END_TEST

START_TEST(features_are_known)
{
    tn_error err = TN_ERROR_INIT;
    const op_row *row = row_of(_i);
    if (!row)
        return;
    write_call(row->op, &plain);
    for (int bit = 0; bit < 64; bit++) {
        int64_t features = (int64_t)(UINT64_C(1) << bit);
        rewrite_element("site.features", 0, &features);
        ck_assert_msg(open_other(&err) == TN_E_INPUT || (row->features >> bit & 1), "feature %d", bit);
    }
}
END_TEST

START_TEST(operations_and_threads)
{
    static const int32_t wild[] = {-1, 0, 12, 64, 99, INT32_MAX, INT32_MIN};
    const int32_t many = 1000000000;
    tn_error err = TN_ERROR_INIT;
    callfile c;
    write_call(TN_OP_LINEAR, &plain);
    for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
        rewrite_element("call", 0, &wild[i]);
        ck_assert_int_eq(open_other(&err), TN_E_INPUT);
    }
    rewrite_element("call", 1, &many);
    tn_error_clear(&err);
    ck_assert_int_eq(callfile_open(&c, other, &err), TN_OK);
    ck_assert_int_le(c.facts.threads, 1024);
    callfile_close(&c);
}
END_TEST

/* ---- what is told ------------------------------------------------------------------------------------------------ */

/* Colours, a cursor that moves, writing that turns around, and bytes that are no UTF-8 are written out. */
START_TEST(texts_are_shown)
{
    static const char text[] = "a\x1b[31m\r\n\xff\xe2\x80\xae\xd8\x9c\xc2\x9b";
    static const char shown[] = "a\\x1b[31m\\x0d\\x0a\\xff\\xe2\\x80\\xae\\xd8\\x9c\\xc2\\x9b";
    const callfile_facts facts = {text, text, text, 1, 1};
    tn_replay result = {.size = sizeof result};
    tn_error err = TN_ERROR_INIT;
    write_call(TN_OP_LINEAR, &facts);
    ck_assert_int_eq(tn_check_replay(NULL, path, &result, &err), TN_E_KERNEL);
    ck_assert_str_eq(err.where, shown);
    ck_assert_str_eq(result.kernel, shown);
    ck_assert_str_eq(result.then, shown);
    ck_assert_ptr_nonnull(strstr(err.message, shown));
}
END_TEST

/* Other programs write headers of any length, so that numbers lie at odd addresses. */
START_TEST(addresses_may_be_odd)
{
    size_t size;
    tn_error err = TN_ERROR_INIT;
    if (!row_of(_i))
        return;
    write_call(row_of(_i)->op, &plain);
    unsigned char *data = tempdir_read(path, &size);
    unsigned char *moved = malloc(size + 1);
    size_t length = (size_t)data[0] | (size_t)data[1] << 8;
    memcpy(moved, data, 8 + length);
    moved[8 + length] = ' ';
    memcpy(moved + 9 + length, data + 8 + length, size - 8 - length);
    moved[0] = (unsigned char)(length + 1);
    moved[1] = (unsigned char)((length + 1) >> 8);
    tempdir_write(other, moved, size + 1);
    ck_assert_msg(open_other(&err) == TN_OK, "%s", err.message);
    free(moved);
    free(data);
}
END_TEST

/* A hundred thousand million rows of nothing. */
START_TEST(empty_tensors_are_small)
{
    tn_error err = TN_ERROR_INIT;
    tn_tensor rows = tn_tensor_dense("", TN_F32, 3, (int64_t[]){INT64_C(1) << 40, 0, 1});
    write_call(TN_OP_RMS_NORM, &plain);
    rewrite("in.0", &rows);
    ck_assert_int_eq(open_other(&err), TN_E_INPUT);
    ck_assert_ptr_nonnull(strstr(err.message, "in.0: is missing or not as it should be"));
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("callfile", 240);
    int rows = 0;
    while (op_at((size_t)rows))
        rows++;
    tcase_add_checked_fixture(tcase, enter, leave);
    tcase_add_loop_test(tcase, every_tensor_is_looked_at, 0, rows);
    tcase_add_loop_test(tcase, axes_have_their_values, 0, rows);
    tcase_add_loop_test(tcase, dimensions_are_sizes, 0, rows);
    tcase_add_loop_test(tcase, numbers_are_finite, 0, rows);
    tcase_add_loop_test(tcase, features_are_known, 0, rows);
    suite_add(tcase, operations_and_threads, texts_are_shown);
    tcase_add_loop_test(tcase, addresses_may_be_odd, 0, rows);
    suite_add(tcase, empty_tensors_are_small);
    return suite_run();
}
