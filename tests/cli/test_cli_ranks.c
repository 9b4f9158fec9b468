/* --parallel where nobody starts ranks: what is said, and what each would hold. tests/machines has mpirun. */
#include "printed.h"
#include "process.h"
#include "suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODEL "models/demo"

static const char *const models[] = {MODEL,
                                     "tests/data/models/llama",
                                     "tests/data/models/qwen3_next",
                                     "tests/data/models/deepseek_v3",
                                     "tests/data/models/phi3_longrope",
                                     "tests/data/models/qwen3_moe"};

static json_int_t sum_of(json_t *ranks, const char *key)
{
    json_t *rank;
    size_t i;
    json_int_t sum = 0;
    json_array_foreach (ranks, i, rank)
        sum += json_integer_value(json_object_get(rank, key));
    return sum;
}

static json_t *ranks_of(const char *model, const char *parallel)
{
    process_result r = TENON(NULL, "inspect", model, "--parallel", parallel, "--format", "json");
    ck_assert_msg(r.status == 0, "%s", r.err);
    return json_object_get(printed_json(&r, 0), "ranks");
}

/* Parts are parts of the same: none is lost, none is twice there. */
START_TEST(ranks_share_the_weights)
{
    json_t *one = ranks_of(models[_i], "tensor=1"), *two = ranks_of(models[_i], "tensor=2"),
           *three = ranks_of(models[_i], "tensor=3");
    ck_assert_uint_eq(json_array_size(one), 1);
    ck_assert_uint_eq(json_array_size(two), 2);
    ck_assert_uint_eq(json_array_size(three), 3);
    json_int_t all = sum_of(one, "cut_bytes") + sum_of(one, "whole_bytes");
    ck_assert_int_gt(3 * sum_of(two, "cut_bytes"), 2 * all);
    ck_assert_int_eq(sum_of(two, "cut_bytes") + sum_of(two, "whole_bytes") / 2, all);
    ck_assert_int_eq(sum_of(three, "cut_bytes") + sum_of(three, "whole_bytes") / 3, all);
    two = ranks_of(models[_i], "sums=2");
    three = ranks_of(models[_i], "sums=3");
    ck_assert_int_eq(sum_of(two, "cut_bytes") + sum_of(two, "whole_bytes") / 2, all);
    ck_assert_int_ge(sum_of(three, "cut_bytes") + sum_of(three, "whole_bytes") / 3, all); /* keys may be twice there */
    ck_assert_int_eq(sum_of(two, "vocab"), sum_of(one, "vocab"));
    ck_assert_int_eq(sum_of(two, "heads"), sum_of(one, "heads"));
    ck_assert_int_eq(sum_of(three, "inner"), sum_of(one, "inner"));
    json_int_t cache = sum_of(one, "cache_bytes_per_1000");
    two = ranks_of(models[_i], "pipeline=2");
    if (!strstr(models[_i], "qwen3_next")) /* states have their memory everywhere                         */
        ck_assert_int_eq(sum_of(two, "cache_bytes_per_1000"), cache);
    ck_assert_int_eq(sum_of(two, "cut_bytes") + sum_of(two, "whole_bytes") / 2, all);
}
END_TEST

/* Stages have layers, their ranks parts of them, and all ranks rows of the head. */
START_TEST(stages_are_cut)
{
    json_t *one = ranks_of(MODEL, "tensor=1"), *layers = ranks_of(MODEL, "pipeline=2"), *both[2];
    both[0] = ranks_of(MODEL, "pipeline=2,tensor=2");
    both[1] = ranks_of(MODEL, "pipeline=2,sums=2");
    for (size_t k = 0; k < 2; k++) {
        ck_assert_uint_eq(json_array_size(both[k]), 4);
        ck_assert_int_eq(sum_of(both[k], "vocab"), sum_of(one, "vocab"));
        ck_assert_int_eq(sum_of(both[k], "cache_bytes_per_1000"), sum_of(one, "cache_bytes_per_1000"));
        ck_assert_int_eq(sum_of(both[k], "heads"), sum_of(layers, "heads"));
        ck_assert_int_eq(sum_of(both[k], "inner"), sum_of(layers, "inner"));
        json_int_t four = sum_of(both[k], "cut_bytes"), two = sum_of(layers, "cut_bytes");
        ck_assert_int_ge(four, two); /* norms and routers are on both ranks of a stage                   */
        ck_assert_int_lt(four, two + two / 20);
    }
}
END_TEST

/* Of four layers the first is small, so that it goes with the second one: bytes count, not layers. */
START_TEST(layers_are_dealt_out_by_bytes)
{
    json_t *three = ranks_of(MODEL, "pipeline=3");
    json_int_t cut[3];
    for (size_t i = 0; i < 3; i++)
        cut[i] = json_integer_value(json_object_get(json_array_get(three, i), "cut_bytes"));
    ck_assert_int_gt(cut[0], cut[1]);
    ck_assert_int_eq(cut[1], cut[2]);
}
END_TEST

/* A message takes two hops with four ranks, each of which gets three quarters of it. */
START_TEST(how_long_a_network_takes)
{
    process_result r =
        TENON(NULL, "inspect", MODEL, "--parallel", "tensor=4", "--network", "100,2", "--format", "json");
    ck_assert_msg(r.status == 0, "%s", r.err);
    json_t *calls = json_object_get(printed_json(&r, 0), "calls"), *one = json_array_get(calls, 0);
    ck_assert_uint_eq(json_array_size(calls), 2);
    double messages = json_number_value(json_object_get(one, "messages"));
    double bytes = json_number_value(json_object_get(one, "message_bytes"));
    double seconds = json_number_value(json_object_get(one, "exchange_seconds"));
    ck_assert_double_gt(messages, 0);
    ck_assert_double_eq_tol(seconds, messages * 2 * 100e-6 + 0.75 * bytes / 2e9, 1e-9);
    ck_assert_double_gt(json_number_value(json_object_get(one, "compute_seconds")), 0);
    r = TENON(NULL, "inspect", MODEL, "--parallel", "pipeline=2,tensor=2", "--network", "1000000,1000", "--format",
              "json");
    ck_assert_msg(r.status == 0, "%s", r.err);
    one = json_array_get(json_object_get(printed_json(&r, 0), "calls"), 0);
    /* Of four layers four gathers each, of two hops; two hops of the logits; and two or three passes, twice. */
    ck_assert_double_eq_tol(json_number_value(json_object_get(one, "exchange_seconds")), 16 * 2 + 2 + 5, 1.1);
    r = TENON(NULL, "inspect", MODEL, "--parallel", "pipeline=2", "--network", "20,1.1");
    ck_assert_msg(r.status == 0 && strstr(r.out, "a prompt of 512"), "%s%s", r.out, r.err);
    process_expect_error(TENON(NULL, "inspect", MODEL, "--network", "20,1"), 2, "goes with --parallel", NULL);
    static const char *const wrong[] = {"20", "20,", "20,0", "-1,1", "20,1,", "x,1", "20,inf", "nan,1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        process_expect_error(TENON(NULL, "inspect", MODEL, "--parallel", "tensor=2", "--network", wrong[i]), 2,
                             "--network", "such as 20,1.1", NULL);
}
END_TEST

START_TEST(what_is_said)
{
    char library[4200];
    snprintf(library, sizeof library, "%s/plugins/mpi/open_mpi.so", process_build());
    /* What Open MPI does not give back comes from parts of it that are unloaded by then, and has no name. */
    const char *options = getenv("ASAN_OPTIONS");
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
    process_result r = TENON(NULL, "run", MODEL, "And", "--parallel", "tensor");
    setenv("ASAN_OPTIONS", options ? options : "", 1);
    if (access(library, F_OK) == 0)
        process_expect_error(r, 2, "there is one process", "mpirun", NULL);
    else /* a build without MPI                                                                     */
        process_expect_error(r, 3, "open_mpi.so", "libopenmpi-dev", NULL);
    process_expect_error(TENON(NULL, "run", MODEL, "And", "--parallel", "sum"), 2, "'sum'",
                         "tensor, sums, experts or pipeline", NULL);
    process_expect_error(TENON(NULL, "inspect", MODEL, "--parallel", "tensor"), 2, "tensor=4", NULL);
    process_expect_error(TENON(NULL, "inspect", MODEL, "--parallel", "pipeline=2,tensor"), 2, "pipeline=2,tensor=4",
                         NULL);
    process_expect_error(TENON(NULL, "inspect", MODEL, "--parallel", "pipeline=8,tensor=2"), 2,
                         "num_hidden_layers is 4: pipeline takes at most 4 stages, not 8; pipeline=4,tensor=4", NULL);
    process_expect_error(TENON(NULL, "inspect", MODEL, "--parallel", "tensor=2", "--format", "dot"), 2, "text or json",
                         NULL);
    process_expect_error(
        TENON(NULL, "train", MODEL, "models/demo/heldout.txt", "--out", "build/none", "--parallel", "tensor"), 2,
        "training is not cut over ranks", "replicas", NULL);
    process_expect_error(TENON(NULL, "run", MODEL, "And", "--parallel", "replicas"), 2, "replicas are for training",
                         NULL);
}
END_TEST

/* The first of those that were started says it for all. */
START_TEST(several_processes_and_no_word_of_it)
{
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("OMPI_COMM_WORLD_RANK", _i ? "1" : "0", 1);
    process_result r = TENON(NULL, "run", MODEL, "And", "-n", "1");
    if (_i == 0) {
        process_expect_error(r, 2, "2 processes were started", "--parallel tensor, sums, experts or pipeline", NULL);
        return;
    }
    ck_assert_int_eq(r.status, 2);
    ck_assert_str_eq(r.out, "");
    ck_assert_str_eq(r.err, "");
    r = TENON(NULL, "run", MODEL, "And", "--nothing");
    ck_assert_int_eq(r.status, 2);
    ck_assert_str_eq(r.err, "");
    r = TENON(NULL, "version");
    ck_assert_msg(r.status == 0 && strncmp(r.out, "tenon ", 6) == 0, "%s%s", r.out, r.err);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("cli: ranks", 300);
    tcase_add_loop_test(tc, ranks_share_the_weights, 0, sizeof models / sizeof *models);
    tcase_add_test(tc, stages_are_cut);
    tcase_add_test(tc, layers_are_dealt_out_by_bytes);
    tcase_add_test(tc, how_long_a_network_takes);
    tcase_add_test(tc, what_is_said);
    tcase_add_loop_test(tc, several_processes_and_no_word_of_it, 0, 2);
    return process_main();
}
