/* The device npu, on the simulator of the vendor's libraries. What its operations compute is compared with the CPU when
 * a model is opened (core/check/check_device.c): here is whether models open and give the same tokens, and what the
 * device does besides. */
#include "ascend.h"
#include "npu_pair.h"
#include "open/model.h"
#include "plugin/registry.h"
#include "process.h"
#include "sanitizer.h"
#include "suite.h"
#include "tempdir.h"

#include <limits.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PROMPT = 5, TOKENS = 6 };
static const int64_t prompt[PROMPT] = {1, 5, 9, 2, 11};

/* ---- the device ------------------------------------------------------------------------------------------- */

static const char *why_not(const char *name)
{
    static tn_error err;
    int32_t ordinal;
    err = (tn_error)TN_ERROR_INIT;
    npu_pair_scan();
    device d;
    const tn_device *ops = registry_device(name, &ordinal, &err);
    if (ops)
        ck_assert_int_ne(device_open(&d, ops, ordinal, true, &err), TN_OK);
    ck_assert_int_eq(err.code, TN_E_KERNEL);
    return err.message;
}

START_TEST(what_is_missing_is_told)
{
    unsetenv("LD_LIBRARY_PATH");
    process_expect_error(TENON(NULL, "run", "models/demo", "x", "--device", "npu"), 3, "'npu' is not available",
                         "libascendcl.so was not found; install CANN or source its set_env.sh; use cpu", NULL);
    process_result cpu =
        TENON(NULL, "run", "--temperature=0", "models/demo", "And it", "-n", "4", "-q", "--device=cpu");
    ck_assert_int_eq(cpu.status, 0);
    process_expect_output(
        TENON(NULL, "run", "--temperature=0", "models/demo", "And it", "-n", "4", "-q", "--device=auto"), cpu.out);
    process_free(&cpu);
}
END_TEST

/* As where nothing was sourced and the folder is named, with the libraries of one generation or of another. */
START_TEST(the_folder_of_the_installation_is_enough)
{
    static const char *const names[][3] = {{"libascendcl.so", "libnnopbase.so", "libopapi.so"},
                                           {"libacl_rt.so", "libnnopbase.so", "libopapi_math.so"}};
    char *home = tempdir_new(), *folder = tempdir_path(home, "lib64"), from[4200];
    ck_assert_int_eq(mkdir(folder, 0755), 0);
    for (int i = 0; i < 3; i++) {
        char *link = tempdir_path(folder, names[_i][i]);
        snprintf(from, sizeof from, "%s/tests/ascend_sim/%s", process_build(), names[0][i]);
        ck_assert_int_eq(symlink(from, link), 0);
        free(link);
    }
    unsetenv("LD_LIBRARY_PATH");
    setenv("ASCEND_HOME_PATH", home, 1);
    process_result r = TENON(NULL, "run", "--temperature=0", "models/demo", "And it", "-n", "4", "-q", "--device",
                             "npu", "--kernels=none");
    ck_assert_msg(r.status == 0, "%s", r.err);
    process_free(&r);
    free(folder);
    tempdir_remove(home);
}
END_TEST

/* One that has another library than those that were asked for. */
START_TEST(a_part_of_an_installation_is_none)
{
    char library[4200];
    char *home = tempdir_new();
    snprintf(library, sizeof library, "cp '%s/tests/ascend_sim/libascendcl.so' '%s'", process_build(), home);
    ck_assert_int_eq(system(library), 0);
    setenv("LD_LIBRARY_PATH", home, 1);
    process_expect_error(TENON(NULL, "run", "models/demo", "x", "--device", "npu"), 3,
                         "libnnopbase.so was not found; install CANN or source its set_env.sh", NULL);
    tempdir_remove(home);
}
END_TEST

START_TEST(machines_that_are_not_served)
{
    static const char *const chips[] = {"Ascend910A", "Ascend910B", "Ascend310B1", "Ascend950PR_9599"};
    char text[80];
    if (_i == 4) {
        setenv("ASCEND_SIM_DEVICES", "0", 1);
        ck_assert_ptr_nonnull(strstr(why_not("npu"), "there is no NPU in this machine"));
        return;
    }
    setenv("ASCEND_SIM_SOC", chips[_i], 1);
    snprintf(text, sizeof text, "the chip is %s; ", chips[_i]);
    ck_assert_msg(strstr(why_not("npu"), text) != NULL, "%s", why_not("npu"));
}
END_TEST

START_TEST(units_are_counted)
{
    setenv("ASCEND_SIM_DEVICES", "2", 1);
    ck_assert_str_eq(why_not("npu:2"), "'npu:2' cannot be opened: there are 2 NPUs, from 0 to 1");
    npu_pair_expect_clean();
}
END_TEST

/* ---- models ----------------------------------------------------------------------------------------------- */

static tn_model *open_model(const char *name, const char *device, const char *dtype, tn_error *err)
{
    char path[256];
    snprintf(path, sizeof path, "tests/data/models/%s", name);
    tn_model_options o = {.size = sizeof o, .dtype = dtype, .device = device};
    return tn_model_open(path, &o, err);
}

static tn_status generate(tn_model *m, int64_t *out, tn_error *err)
{
    tn_session_options so = {.size = sizeof so, .context = 32, .chunk = 3};
    tn_generate_options o = {.size = sizeof o, .max_tokens = TOKENS, .ignore_eos = true};
    tn_session *s = tn_session_new(m, &so, err);
    tn_status status = s ? tn_generate(s, prompt, PROMPT, &o, out, NULL, err) : err->code;
    tn_session_free(s);
    return status;
}

/* That every operation computes what the CPU does is looked at while the model is opened. */
static const char *const models[] = {"llama", "qwen3", "qwen2_sliding", "qwen3_moe", "deepseek_v3", "mixtral"};
enum { MODELS = sizeof models / sizeof *models };

START_TEST(models_give_the_same_tokens)
{
    const char *name = models[_i % MODELS], *dtype = _i / MODELS ? "bf16" : "f32";
    int64_t want[TOKENS], got[TOKENS];
    tn_error err = TN_ERROR_INIT;
    npu_pair_scan();
    tn_model *m = open_model(name, NULL, dtype, &err);
    ck_assert_msg(m && generate(m, want, &err) == TN_OK, "%s", err.message);
    tn_model_close(m);
    m = open_model(name, "npu", dtype, &err);
    ck_assert_msg(m != NULL, "%s: %s", err.where, err.message);
    ck_assert_msg(generate(m, got, &err) == TN_OK, "%s: %s", err.where, err.message);
    tn_model_close(m);
    if (_i / MODELS == 0) /* in bf16 a rounding may decide */
        ck_assert_mem_eq(want, got, sizeof want);
    npu_pair_expect_clean();
}
END_TEST

/* Executors and what describes tensors are kept: once the shapes of decode were met, a token makes none, waits once,
 * and all layers share what they see. What the host brings goes up at once, and in f32 the mask. Of two layers in bf16:
 * four norms, of which two are additions too; products for queries, keys and values at once, for what attention gives,
 * for gate and up at once, and down; six steps of a rotation of queries and keys at once; two copies to the cache;
 * attention; activation and product. Beside them the embedding, five steps of a mask, the last norm and the head. */
START_TEST(a_token_makes_nothing_new)
{
    enum { WARM = 3, MORE = 5 };
    tn_error err = TN_ERROR_INIT;
    sim_figures before, after;
    setenv("TENON_NPU_GRAPH", "no", 1); /* tests/ascend/test_ascend_graphs.c has what they change       */
    npu_pair_scan();
    tn_model *m = open_model("qwen3", "npu", _i ? "bf16" : "f32", &err);
    ck_assert_msg(m != NULL, "%s: %s", err.where, err.message);
    tn_model_info info = {.size = sizeof info};
    ck_assert_int_eq(tn_model_get_info(m, &info), TN_OK);
    float *logits = calloc((size_t)info.vocab, sizeof *logits);
    tn_session_options so = {.size = sizeof so, .context = 32, .chunk = 8};
    tn_session *s = tn_session_new(m, &so, &err);
    for (int i = 0; i < WARM + MORE; i++) {
        tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = 1, .ids = &prompt[i % PROMPT]};
        tn_outputs out = {.size = sizeof out, .last_logits = logits};
        if (i == WARM)
            before = npu_pair_figures();
        ck_assert_msg(tn_session_run(s, &batch, &out, &err) == TN_OK, "%s", err.message);
    }
    after = npu_pair_figures();
    ck_assert_int_eq(after.executors, before.executors);
    ck_assert_int_eq(after.descriptors, before.descriptors);
    ck_assert_int_eq(after.synchronisations - before.synchronisations, MORE);
    ck_assert_int_eq(after.uploads - before.uploads, (_i ? 1 : 2) * MORE);
    if (_i)
        ck_assert_int_eq(after.launches - before.launches, (2 * (4 + 4 + 6 + 2 + 1 + 2) + 8) * MORE);
    tn_session_free(s);
    tn_model_close(m);
    free(logits);
    npu_pair_expect_clean();
}
END_TEST

/* Matrices of experts' lists follow one another, those of gate and up in turn, wherever blocks of memory end: in f32
 * these weights take twice what the file has, which is what the first block is for. */
START_TEST(experts_follow_one_another)
{
    tn_error err = TN_ERROR_INIT;
    npu_pair_scan();
    tn_model *m = open_model("qwen3_moe", "npu", _i ? "bf16" : "f32", &err);
    ck_assert_msg(m != NULL, "%s", err.message);
    int lists = 0;
    for (size_t i = 0; i < m->target.graph->site_count; i++) {
        const tn_param *param = m->target.graph->sites[i]->site.param, *gate = &param[TN_ROLE_GATE];
        for (int64_t e = 0; e < gate->count && gate->count > 1; e++) {
            const tn_tensor *up = &param[TN_ROLE_UP].tensors[e], *down = &param[TN_ROLE_DOWN].tensors[e];
            size_t one = tn_dtype_bytes(up->dtype, tn_tensor_count(up));
            ck_assert_ptr_eq(gate->tensors[e].data, (char *)gate->tensors[0].data + 2 * (size_t)e * one);
            ck_assert_ptr_eq(up->data, (char *)gate->tensors[e].data + one);
            ck_assert_ptr_eq(down->data, (char *)down[-e].data + (size_t)e * one);
            lists++;
        }
    }
    ck_assert_int_ge(lists, 3);
    tn_model_close(m);
    npu_pair_expect_clean();
}
END_TEST

START_TEST(small_chips_decline_products_in_f32)
{
    static const char *const declined[][2] = {{"qwen3_5_text", "GATED_DELTA_RULE"}, {"bloom", "ATTENTION"}};
    setenv("ASCEND_SIM_SOC", "Ascend310P3", 1);
    npu_pair_scan();
    for (int i = 0; i < 2; i++) {
        char text[96];
        tn_error err = TN_ERROR_INIT;
        snprintf(text, sizeof text, "does not perform %s: Ascend310P3 has not the operators", declined[i][1]);
        ck_assert_ptr_null(open_model(declined[i][0], "npu", "f16", &err));
        ck_assert_msg(strstr(err.message, text) != NULL, "%s", err.message);
    }
    npu_pair_expect_clean();
}
END_TEST

START_TEST(small_chips_take_dense_models_in_f16)
{
    int64_t got[TOKENS];
    tn_error err = TN_ERROR_INIT;
    setenv("ASCEND_SIM_SOC", "Ascend310P3", 1);
    npu_pair_scan();
    tn_model *m = open_model("llama", "npu", "f16", &err);
    ck_assert_msg(m && generate(m, got, &err) == TN_OK, "%s: %s", err.where, err.message);
    tn_model_close(m);
    ck_assert_ptr_null(open_model("llama", "npu", "f32", &err));
    ck_assert_msg(strstr(err.message, "site has f32, Ascend310P3 takes f16; use --dtype f16") != NULL, "%s",
                  err.message);
    err = (tn_error)TN_ERROR_INIT;
    ck_assert_ptr_null(open_model("qwen3_moe", "npu", "f16", &err));
    ck_assert_msg(strstr(err.message, "Ascend310P3 has not the operators for it") != NULL, "%s", err.message);
    err = (tn_error)TN_ERROR_INIT; /* of the operator the vendor's documents name other chips alone          */
    ck_assert_ptr_null(open_model("llama_relu", "npu", "f16", &err));
    ck_assert_msg(strstr(err.message, "has no aclnnRelu for Ascend310P3") != NULL, "%s", err.message);
    npu_pair_expect_clean();
}
END_TEST

/* ---- faults ------------------------------------------------------------------------------------------------- */

#if SANITIZER
enum { POINTS = 60 }; /* what is sampled there takes five times as long                              */
#else
enum { POINTS = 300 };
#endif

/* What a child saw. */
typedef struct outcome {
    tn_error err;
    tn_status status;
    int64_t calls, leaks;
    int64_t tokens[TOKENS];
    bool ended;
} outcome;

/* From opening the model, or only behind that. */
static void run_with_fault(tn_model *m, int64_t number, outcome *o)
{
    if (m)
        npu_pair_let_fail(number);
    int64_t before = m ? npu_pair_ask("sim_calls") : 0;
    if (!m)
        m = open_model("llama", "npu", "f32", &o->err);
    o->status = m ? generate(m, o->tokens, &o->err) : o->err.code;
    tn_model_close(m);
    /* Not loaded: a child of this one was asked whether the device is available, and said no. */
    if (dlopen("libascendcl.so", RTLD_LAZY | RTLD_NOLOAD)) {
        o->calls = npu_pair_ask("sim_calls") - before;
        o->leaks = npu_pair_ask("sim_leaks");
    }
    o->ended = true;
}

typedef struct faulty {
    tn_model *m;
    int64_t number;
    outcome *o;
} faulty;

static void in_child(void *ctx)
{
    const faulty *f = ctx;
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)f->number);
    setenv("ASCEND_SIM_FAIL", text, 1);
    setenv("ASCEND_SIM_QUIET", "1", 1);
    run_with_fault(f->m, f->number, f->o);
}

static void run_in_child(tn_model *m, int64_t number, outcome *o)
{
    memset(o, 0, sizeof *o);
    npu_pair_in_child(in_child, &(faulty){m, number, o}, number);
    ck_assert_msg(o->ended, "call %lld fails", (long long)number);
}

/* One line, the vendor's number and the vendor's words; or nothing depended on the call. */
static void expect_told(const outcome *o, int64_t number, const int64_t *want)
{
    ck_assert_msg(o->leaks == 0, "call %lld fails: %lld objects are left: %s", (long long)number, (long long)o->leaks,
                  o->err.message);
    if (o->status == TN_OK) {
        ck_assert_mem_eq(o->tokens, want, sizeof o->tokens);
        return;
    }
    ck_assert_msg(o->status == TN_E_KERNEL || o->status == TN_E_MEMORY, "call %lld fails: class %d: %s",
                  (long long)number, (int)o->status, o->err.message);
    const char *with = strstr(o->err.message, " failed with ");
    bool coded = (with && strtol(with + 13, NULL, 10) >= 100000) || strstr(o->err.message, "out of memory");
    ck_assert_msg(coded && strstr(o->err.message, "fails because ASCEND_SIM_FAIL says so") &&
                      !strchr(o->err.message, '\n'),
                  "call %lld fails: %s", (long long)number, o->err.message);
}

static void walk(tn_model *m, int64_t most)
{
    outcome *o = mmap(NULL, sizeof *o, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(o, MAP_FAILED);
    run_in_child(m, 0, o);
    ck_assert_msg(o->status == TN_OK, "%s", o->err.message);
    int64_t want[TOKENS], calls = o->calls, told = 0;
    memcpy(want, o->tokens, sizeof want);
    ck_assert_int_gt(calls, 100);
    for (int64_t i = 0; i < most; i++) {
        /* All of them where they are few, else some from everywhere. */
        int64_t number = calls <= most ? i + 1 : 1 + i * (calls - 1) / (most - 1);
        if (number > calls)
            break;
        run_in_child(m, number, o);
        expect_told(o, number, want);
        told += o->status != TN_OK;
    }
    ck_assert_int_gt(told, most / 2);
    munmap(o, sizeof *o);
}

START_TEST(every_failing_call_of_a_generation_is_told)
{
    tn_error err = TN_ERROR_INIT;
    npu_pair_scan();
    tn_model *m = open_model("llama", "npu", "f32", &err);
    ck_assert_msg(m != NULL, "%s", err.message);
    walk(m, POINTS);
    tn_model_close(m);
    npu_pair_expect_clean();
}
END_TEST

/* The libraries are loaded in the children alone. */
START_TEST(so_are_those_of_opening_a_model)
{
    npu_pair_scan();
    walk(NULL, POINTS / 6);
}
END_TEST

/* ---- ---------------------------------------------------------------------------------------------------- */

static void add_tests(void)
{
    TCase *tc = suite_open("ascend", 600);
    suite_add(tc, what_is_missing_is_told);
    tcase_add_loop_test(tc, the_folder_of_the_installation_is_enough, 0, 2);
    suite_add(tc, a_part_of_an_installation_is_none);
    tcase_add_loop_test(tc, machines_that_are_not_served, 0, 5);
    suite_add(tc, units_are_counted);
    tcase_add_loop_test(tc, models_give_the_same_tokens, 0, 2 * MODELS);
    tcase_add_loop_test(tc, a_token_makes_nothing_new, 0, 2);
    tcase_add_loop_test(tc, experts_follow_one_another, 0, 2);
    suite_add(tc, small_chips_decline_products_in_f32, small_chips_take_dense_models_in_f16,
              every_failing_call_of_a_generation_is_told, so_are_those_of_opening_a_model);
}

int main(int argc, char **argv)
{
    (void)argc;
    add_tests();
    return npu_pair_main(argv);
}
