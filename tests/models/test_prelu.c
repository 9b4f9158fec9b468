/* hidden_act "prelu": each MLP has the slope below 0 in the file. Made-up checkpoints, whose MLPs are computed again
 * here in double precision. */
#include "broken.h"
#include "open/model.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <jansson.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/half.h>
#include <unistd.h>

enum { ROWS = 5, HIDDEN_MOST = 64, INTER_MOST = 128 };

/* 0.3 is no number of bf16; with 0 it is ReLU. */
static const float slopes[] = {0.3f, -2.0f, 0.0f};
enum { SLOPES = sizeof slopes / sizeof *slopes };

static const struct {
    const char *model;
    bool gated;
} models[] = {{"llama", true}, {"arcee", false}};

/* Writes the one number of a tensor of a file in f32. */
static void set_number(const char *folder, const char *name, float value)
{
    char path[4200];
    uint64_t length;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *f = fopen(path, "r+b");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fread(&length, sizeof length, 1, f), 1);
    char *text = malloc(length);
    ck_assert_uint_eq(fread(text, 1, length, f), length);
    json_t *header = json_loadb(text, length, 0, NULL), *tensor = json_object_get(header, name);
    ck_assert_str_eq(json_string_value(json_object_get(tensor, "dtype")), "F32");
    json_int_t at = json_integer_value(json_array_get(json_object_get(tensor, "data_offsets"), 0));
    ck_assert_int_eq(fseek(f, (long)(sizeof length + length) + (long)at, SEEK_SET), 0);
    ck_assert_uint_eq(fwrite(&value, sizeof value, 1, f), 1);
    ck_assert_int_eq(fclose(f), 0);
    json_decref(header);
    free(text);
}

static void name_of(int layer, const char *rest, char out[64])
{
    snprintf(out, 64, "model.layers.%d.mlp%s", layer, rest);
}

/* The tool lies beside this program. */
static char *make_model(const char *like)
{
    char self[4096], command[3 * 4096], *from = broken_copy(like), *to = tempdir_new();
    broken_json(from, "config.json", "hidden_act", "\"prelu\"");
    broken_json(from, "config.json", "num_hidden_layers", "3");
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    ck_assert_int_gt(n, 0);
    self[n] = '\0';
    snprintf(command, sizeof command, "'%s/make_checkpoint' --config '%s/config.json' --dtype f32 '%s' >/dev/null",
             dirname(self), from, to);
    ck_assert_int_eq(system(command), 0);
    for (int layer = 0; layer < SLOPES; layer++) {
        char name[64];
        name_of(layer, ".act_fn.weight", name);
        set_number(to, name, slopes[layer]);
    }
    return to;
}

static double row_times(const tn_tensor *w, int64_t row, const double *x)
{
    double sum = 0;
    for (int64_t i = 0; i < w->shape[1]; i++)
        sum += (double)((const float *)w->data)[row * w->shape[1] + i] * x[i];
    return sum;
}

/* One row through the layer's matrices; size receives what sums have at most. */
static void by_hand(const tn_site *site, bool gated, double slope, const double *x, double *y, double *size)
{
    const tn_tensor *down = site->param[TN_ROLE_DOWN].tensors, *up = site->param[TN_ROLE_UP].tensors;
    const tn_tensor *gate = gated ? site->param[TN_ROLE_GATE].tensors : up;
    double p[INTER_MOST];
    for (int64_t i = 0; i < gate->shape[0]; i++) {
        double g = row_times(gate, i, x);
        p[i] = (g < 0 ? slope * g : g) * (gated ? row_times(up, i, x) : 1);
    }
    for (int64_t i = 0; i < down->shape[0]; i++) {
        y[i] = row_times(down, i, p);
        size[i] = 0;
        for (int64_t k = 0; k < down->shape[1]; k++)
            size[i] += fabs((double)((const float *)down->data)[i * down->shape[1] + k] * p[k]);
    }
}

START_TEST(slopes_come_from_the_file)
{
    char *folder = make_model(models[_i].model);
    tn_model *m = test_model(folder, .dtype = "f32");
    for (int layer = 0; layer < SLOPES; layer++) {
        char path[64];
        tn_error err = TN_ERROR_INIT;
        name_of(layer, "", path);
        const tn_site *site = &test_model_site(m, path, TN_OP_MLP)->site;
        int64_t hidden = site->dim[TN_DIM_HIDDEN], shape[2] = {ROWS, hidden};
        float x[ROWS * HIDDEN_MOST], y[ROWS * HIDDEN_MOST];
        ck_assert_int_le(hidden, HIDDEN_MOST);
        ck_assert_int_le(site->dim[TN_DIM_INTER], INTER_MOST);
        for (int64_t i = 0; i < ROWS * hidden; i++)
            x[i] = (float)((i * 37 + 11 * layer) % 101 - 50) / 16;
        const tn_tensor in = tn_tensor_dense(x, TN_F32, 2, shape), out = tn_tensor_dense(y, TN_F32, 2, shape);
        ck_assert_msg(tn_site_forward(m, path, TN_OP_MLP, &in, 1, &out, 1, &err) == TN_OK, "%s", err.message);
        for (int64_t row = 0; row < ROWS; row++) {
            double of_row[HIDDEN_MOST], want[HIDDEN_MOST], size[HIDDEN_MOST];
            for (int64_t i = 0; i < hidden; i++)
                of_row[i] = (double)x[row * hidden + i];
            by_hand(site, models[_i].gated, (double)slopes[layer], of_row, want, size);
            for (int64_t i = 0; i < hidden; i++)
                ck_assert_double_eq_tol((double)y[row * hidden + i], want[i], 1e-4 * size[i]);
        }
    }
}
END_TEST

/* The weight is a parameter: in the model's type. */
START_TEST(slopes_are_in_the_type_of_the_model)
{
    tn_model *m = test_model(make_model("llama"), .dtype = "bf16");
    char path[64];
    name_of(0, "", path);
    double slope = test_model_site(m, path, TN_OP_MLP)->site.num[TN_NUM_ALPHA];
    ck_assert_double_eq(slope, (double)tn_bf16_to_f32(tn_f32_to_bf16(slopes[0])));
    ck_assert_double_ne(slope, (double)slopes[0]);
}
END_TEST

/* Where activations are of other modules, too, it is refused rather than read as another. */
START_TEST(others_refuse_it)
{
    static const char *const others[] = {"bamba", "falcon_h1", "mixtral", "qwen3", "zamba2"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        tn_error err = TN_ERROR_INIT;
        char *folder = broken_copy(others[i]);
        broken_json(folder, "config.json", "hidden_act", "\"prelu\"");
        ck_assert_ptr_null(tn_model_open(folder, NULL, &err));
        broken_expect(&err, TN_E_INPUT, "hidden_act", "prelu", "silu", NULL);
    }
}
END_TEST

START_TEST(a_weight_that_is_missing)
{
    tn_error err = TN_ERROR_INIT;
    char *folder = broken_copy("llama");
    broken_json(folder, "config.json", "hidden_act", "\"prelu\"");
    ck_assert_ptr_null(tn_model_open(folder, NULL, &err));
    broken_expect(&err, TN_E_INPUT, "model.layers.0.mlp.act_fn.weight", NULL);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("prelu", 60);
    tcase_add_loop_test(tc, slopes_come_from_the_file, 0, 2);
    suite_add(tc, slopes_are_in_the_type_of_the_model, others_refuse_it, a_weight_that_is_missing);
    return suite_run();
}
