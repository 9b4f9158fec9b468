/* Every architecture with the sizes of a model that was published: tests/data/configs/MODEL_TYPE.json. Opened over a
 * record in place of files, it shows that all of its layers fit together and what the model is made of; with few layers
 * and random weights it runs. */
#include "model_config.h"
#include "open/model.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <glob.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const model_arch *const archs[] = {
#define ARCHITECTURE(name) &name##_arch,
#include "models/architectures.h"
#undef ARCHITECTURE
};
enum { ARCH_COUNT = sizeof archs / sizeof archs[0], TOKENS = 6, VOCAB = 1000 };

static const int64_t SMALL = 700000000; /* bytes that a test may write                                         */

/* What the model's authors say it has, in millions of parameters, towers included. */
static const struct {
    const char *model_type;
    double millions;
} sizes[] = {{"llama", 1235.8},    {"qwen2", 494.0},         {"qwen3", 596.0},          {"gemma2", 2614.3},
             {"mixtral", 46702.8}, {"mistral", 7241.7},      {"qwen2_moe", 14315.8},    {"qwen3_moe", 30532.1},
             {"gemma", 2506.2},    {"phi3", 3821.1},         {"olmo2", 1484.9},         {"olmo3", 7298.0},
             {"smollm3", 3075.1},  {"olmoe", 6919.2},        {"granite", 2533.5},       {"starcoder2", 3030.4},
             {"gpt_oss", 20914.8}, {"deepseek_v2", 15706.5}, {"deepseek_v3", 671026.4}, {"qwen2_5_vl", 3754.6},
             {"qwen3_vl", 8767.1}, {"qwen2_vl", 8291.4},     {"glm4v", 10290.0},        {"gpt2", 124.4},
             {"opt", 331.2},       {"phi", 2779.7},          {"gpt_neox", 162.3},       {"bloom", 559.2},
             {"falcon", 6921.7},   {"gptj", 6050.9},         {"olmo", 1176.8},          {"stablelm", 1644.5},
             {"zamba2", 1215.1}};

static void published_file(const char *model_type, char out[256])
{
    snprintf(out, 256, "tests/data/configs/%s.json", model_type);
}

/* The model of folder/config.json with tensors that nobody has written. */
static tn_model *open_record(const char *folder)
{
    tn_error err = TN_ERROR_INIT;
    shards *record = shards_record(TN_BF16, &err);
    tn_model *model = record ? model_open(folder, NULL, record, &err) : NULL;
    ck_assert_msg(model != NULL, "%s: %s", err.where, err.message);
    return model;
}

static void copy_config(const char *model_type, const model_config_changes *changes, const char *folder)
{
    char file[256];
    tn_error err = TN_ERROR_INIT;
    published_file(model_type, file);
    ck_assert_msg(model_config_copy(file, changes, folder, &err) == TN_OK, "%s: %s", err.where, err.message);
}

START_TEST(all_layers_fit_together)
{
    const char *type = archs[_i]->model_type;
    char *folder = tempdir_new();
    copy_config(type, &(model_config_changes){0}, folder);
    tn_model *model = open_record(folder);
    tn_model_info info = {.size = sizeof info};
    tn_model_get_info(model, &info);
    ck_assert_str_eq(info.model_type, type);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (!strcmp(sizes[i].model_type, type)) {
            double millions = (double)info.parameters / 1e6;
            ck_assert_msg(fabs(millions / sizes[i].millions - 1) < 0.001, "%s has %.1f million parameters, not %.1f",
                          type, millions, sizes[i].millions);
        }
    tn_model_close(model);
}
END_TEST

/* What is published around a text model with its tower, opened whole. */
static const struct {
    const char *model_type;
    double millions;
} seeing[] = {{"llava", 7063.4},   {"llava_next", 7566.7},  {"mistral3", 24011.4}, {"internvl", 938.2},
              {"gemma3", 4300.1},  {"paligemma", 2923.5},   {"gemma4", 4797.1},    {"llama4", 108641.8},
              {"gemma3n", 4733.8}, {"qwen2_5_omni", 8931.8}};

START_TEST(towers_fit_beside_their_text_model)
{
    char *folder = tempdir_new();
    copy_config(seeing[_i].model_type, &(model_config_changes){0}, folder);
    tn_model *model = open_record(folder);
    tn_model_info info = {.size = sizeof info};
    tn_model_get_info(model, &info);
    double millions = (double)info.parameters / 1e6;
    ck_assert_msg(fabs(millions / seeing[_i].millions - 1) < 0.005, "%s has %.1f million parameters, not %.1f",
                  seeing[_i].model_type, millions, seeing[_i].millions);
    ck_assert_ptr_nonnull(model->flow->shape(model->arch_state)->media);
    tn_model_close(model);
}
END_TEST

/* The tool lies beside this program, whatever the build folder is called. */
static void make_checkpoint(const char *model_type, int layers, const char *folder)
{
    char self[4096], command[8192], file[256];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    ck_assert_int_gt(n, 0);
    self[n] = '\0';
    published_file(model_type, file);
    snprintf(command, sizeof command, "'%s/make_checkpoint' --config %s --layers %d --vocab %d '%s' >/dev/null",
             dirname(self), file, layers, VOCAB, folder);
    int status = system(command);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s ends with status %d", command, status);
}

/* Some tokens give numbers, and not the same for all. */
static void run(const char *folder)
{
    tn_model *model = test_model(folder, .dtype = NULL);
    int64_t vocab = test_model_vocab(model);
    int64_t ids[TOKENS];
    for (int64_t i = 0; i < TOKENS; i++)
        ids[i] = 1 + i * 37 % (VOCAB - 1);
    float *logits = malloc((size_t)(TOKENS * vocab) * sizeof *logits), least = INFINITY, most = -INFINITY;
    tn_session *session = test_session(model, .context = TOKENS);
    test_model_run(session, TOKENS, ids, .logits = logits);
    for (int64_t i = 0; i < TOKENS * vocab; i++) {
        ck_assert_msg(isfinite(logits[i]), "logit %lld is %g", (long long)i, (double)logits[i]);
        least = fminf(least, logits[i]);
        most = fmaxf(most, logits[i]);
    }
    ck_assert_float_gt(most, least);
    free(logits);
}

/* As many layers as show each kind, or as few as are small enough. */
START_TEST(few_layers_run)
{
    const char *type = archs[_i]->model_type;
    for (int layers = 4; layers >= 1; layers /= 2) {
        char *folder = tempdir_new();
        copy_config(type, &(model_config_changes){.layers = layers, .vocab = VOCAB}, folder);
        tn_model *model = open_record(folder);
        tn_model_info info = {.size = sizeof info};
        tn_model_get_info(model, &info);
        int64_t bytes = shards_bytes(model->weights);
        ck_assert_int_le(info.layers, layers);
        tn_model_close(model);
        if (bytes <= SMALL) {
            make_checkpoint(type, layers, folder);
            run(folder);
            layers = 0;
        }
    }
}
END_TEST

/* docs/models.md has a row for it, and it is listed once. */
START_TEST(it_is_documented)
{
    char row[128];
    size_t size;
    char *page = tempdir_read("docs/models.md", &size);
    snprintf(row, sizeof row, "\n| `%s` | %s |", archs[_i]->model_type, archs[_i]->class_name);
    ck_assert_msg(strstr(page, row) != NULL, "docs/models.md has no row for %s, %s", archs[_i]->model_type,
                  archs[_i]->class_name);
    for (int i = 0; i < _i; i++)
        ck_assert_str_ne(archs[i]->model_type, archs[_i]->model_type);
    free(page);
}
END_TEST

/* ---- names -------------------------------------------------------------------------------------- */

/* Experts lie in files one by one or stacked: a record has the form of most files. What marks the ends of sound is a
 * parameter that nothing computes with; old files have masks. */
static bool may_differ(const char *name)
{
    return strstr(name, ".experts.") || strstr(name, "audio_bos_eos_token") || strstr(name, ".attn.bias") ||
           strstr(name, "self_attn.slope_rate") || strstr(name, "_decay"); /* MiniMax: as config.json says */
}

/* Dimensions of one element count for nothing: some files have them where the model has none. */
static bool same_shape(const tn_tensor *a, const tn_tensor *b)
{
    int32_t i = 0, j = 0;
    for (; i < a->ndim || j < b->ndim; i++, j++) {
        for (; i < a->ndim && a->shape[i] == 1; i++)
            ;
        for (; j < b->ndim && b->shape[j] == 1; j++)
            ;
        if ((i < a->ndim ? a->shape[i] : 1) != (j < b->ndim ? b->shape[j] : 1))
            return false;
    }
    return true;
}

/* As the file of a wrapped model calls it. */
static const char *wrapped_name(const tn_model *model, const shards *files, const char *name, char out[256])
{
    tn_tensor t;
    const build_alias *a = model->wrapper ? model->wrapper->aliases : NULL;
    for (; a && a->tree; a++)
        if (!strncmp(name, a->tree, strlen(a->tree))) {
            snprintf(out, 256, "%s%s", a->file, name + strlen(a->tree));
            if (shards_get(files, out, &t))
                return out;
        }
    return name;
}

/* What a record holds is what the file of a golden case holds, under the same names; of a quantised one what is
 * presented in place of its codes. */
static void compare_case(const char *folder)
{
    tn_error err = TN_ERROR_INIT;
    tn_status status = TN_OK;
    shards *files = shards_open(folder, &err);
    ck_assert_msg(files != NULL, "%s: %s", err.where, err.message);
    tn_model *model = open_record(folder);
    config_reader root = config_root(model->config, &status, &err);
    ck_assert_msg(quantised_resolve(files, &root, tn_parallel_for, &err) == TN_OK, "%s: %s", err.where, err.message);
    for (size_t i = 0; i < shards_count(model->weights); i++) {
        const char *name = shards_name(model->weights, i);
        tn_tensor asked, there;
        ck_assert(shards_get(model->weights, name, &asked));
        if (!shards_get(files, name, &there))
            name = shards_path(model->weights, i); /* an older name, and the tree's is there, too */
        char wrapped[256];
        name = wrapped_name(model, files, name, wrapped);
        if (!shards_get(files, name, &there) && !strncmp(name, "model.", 6)) /* of a base class               */
            name += 6;
        char longer[300]; /* of a tower that hangs beside the text model in the tree                         */
        snprintf(longer, sizeof longer, "model.%s", name);
        if (!shards_get(files, name, &there) && shards_get(files, longer, &there))
            name = longer;
        bool found = shards_get(files, name, &there);
        ck_assert_msg(found || may_differ(name), "%s: no tensor is called %s", folder, name);
        if (found) {
            ck_assert_msg(same_shape(&asked, &there), "%s: %s has another shape", folder, name);
            shards_take(files, name, NULL, TN_DTYPE_NONE);
        }
    }
    for (size_t i = 0; i < shards_count(files); i++) {
        const char *name = shards_name(files, i);
        tn_tensor hidden;
        bool beside =
            models_stands_beside(name) || strstr(name, "embed_audio."); /* layers behind the last that is used,
                                                                           and a tower that is not read */
        ck_assert_msg(!shards_get(files, name, &hidden) || shards_taken(files, i) || may_differ(name) ||
                          (model->wrapper && beside),
                      "%s: %s is not asked for", folder, name);
    }
    tn_model_close(model);
    shards_close(files);
}

START_TEST(names_are_those_of_files)
{
    int seen = 0;
    glob_t found;
    ck_assert_int_eq(glob("tests/data/models/*/config.json", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++, seen++) {
        *strrchr(found.gl_pathv[i], '/') = '\0';
        compare_case(found.gl_pathv[i]);
    }
    globfree(&found);
    ck_assert_int_ge(seen, 20);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("published", 300);
    tcase_add_loop_test(tc, all_layers_fit_together, 0, ARCH_COUNT);
    tcase_add_loop_test(tc, few_layers_run, 0, ARCH_COUNT);
    tcase_add_loop_test(tc, it_is_documented, 0, ARCH_COUNT);
    tcase_add_loop_test(tc, towers_fit_beside_their_text_model, 0, sizeof seeing / sizeof *seeing);
    suite_add(tc, names_are_those_of_files);
    return suite_run();
}
