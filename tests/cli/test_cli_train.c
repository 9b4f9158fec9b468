/* tenon train: what it prints, keeps and refuses. tests/build/test_resume.sh kills it. */
#include "process.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QUICK "--kernels=none", "--dtype=f32", "--accumulate=2"

static char *folder, *data, *out;

/* Seven samples of tokens, of which the second has a prompt. */
static void setup(void)
{
    folder = tempdir_new();
    out = tempdir_at(folder, "out");
    data = tempdir_at(folder, "data.jsonl");
    FILE *file = fopen(data, "w");
    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < 7; i++) {
        fputs("{\"input_ids\": [20", file);
        for (int k = 1; k < 8 + i; k++)
            fprintf(file, ", %d", 20 + 31 * (i + k) % 70);
        fputs(i == 1 ? "], \"labels\": [-100, -100, -100, 51, 82, 43, 74, 35, 66]}\n" : "]}\n", file);
    }
    fclose(file);
}

#define TRAIN(...) TENON(NULL, "train", "models/demo", data, "--out", out, QUICK, __VA_ARGS__)

static void expect_end(process_result r, int status)
{
    ck_assert_msg(r.status == status, "status %d: %s", r.status, r.err);
}

static json_t *line_of(const char *name, int number)
{
    size_t size;
    char *text = tempdir_read(tempdir_at(out, name), &size), *at = text;
    for (int i = 0; i < number; i++)
        at = strchr(at, '\n') + 1;
    json_t *line = json_loadb(at, strcspn(at, "\n"), 0, NULL);
    ck_assert_msg(line != NULL, "no line %d: %s", number, text);
    free(text);
    return line;
}

static double number(const json_t *line, const char *name)
{
    const json_t *value = json_object_get(line, name);
    ck_assert_msg(json_is_number(value), "no number '%s'", name);
    return json_number_value(value);
}

/* ---- what comes out ------------------------------------------------------------------------------- */

/* Two epochs of four steps each, of which the last has one row: rates of the schedule, and each step's loss. */
START_TEST(the_log_has_every_step)
{
    expect_end(TRAIN("--full", "--epochs=2", "--lr=0.25", "--schedule=linear", "--warmup=2", "--eval", data), 0);
    static const double rates[] = {0, 0.125, 0.25, 0.25 * 5 / 6, 0.25 * 4 / 6, 0.25 * 3 / 6, 0.25 * 2 / 6, 0.25 / 6};
    for (int i = 0; i < 8; i++) {
        json_t *line = line_of("trainer_log.jsonl", i);
        ck_assert(number(line, "step") == i + 1 && number(line, "total_steps") == 8);
        ck_assert_double_eq_tol(number(line, "learning_rate"), rates[i], 1e-16);
        ck_assert_double_eq_tol(number(line, "epoch"), (i + 1) / 4.0, 1e-15);
        ck_assert(isfinite(number(line, "loss")) && number(line, "grad_norm") > 0);
        json_decref(line);
    }
    json_t *last = line_of("trainer_log.jsonl", 8);
    ck_assert(number(last, "step") == 8 && isfinite(number(last, "eval_loss")));
    json_decref(last);
}
END_TEST

/* The mean over all labels of a step, however they are cut into batches, and of rows that are packed. */
START_TEST(batches_of_a_step_are_one)
{
    static const char *const ways[][3] = {{"--batch=1", "--accumulate=7"},
                                          {"--batch=7", "--accumulate=1"},
                                          {"--batch=3", "--accumulate=3"},
                                          {"--batch=1", "--accumulate=7", "--pack"}};
    double first = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char name[16];
        snprintf(name, sizeof name, "out%zu", i);
        out = tempdir_at(folder, name);
        const char *const arguments[] = {"train",    "models/demo",    data,          "--out",     out,
                                         "--full",   "--kernels=none", "--dtype=f32", "--steps=1", ways[i][0],
                                         ways[i][1], ways[i][2],       NULL};
        expect_end(process_run(NULL, arguments), 0);
        json_t *line = line_of("trainer_log.jsonl", 0);
        first = i == 0 ? number(line, "loss") : first;
        /* sums of f32 values in another order: of 66 labels, each rounded to 2^-24 of a loss of the same size */
        ck_assert_double_eq_tol(number(line, "loss"), first, first * 66 * 0x1p-24);
        json_decref(line);
    }
}
END_TEST

START_TEST(lines_tell_steps)
{
    process_result r = TRAIN("--full", "--steps=3", "--eval", data);
    expect_end(r, 0);
    suite_expect_in(r.err, "data: 7 samples in 7 rows, 77 tokens, 68 of them labelled\n");
    suite_expect_in(r.out, "step 1/3, loss ");
    suite_expect_in(r.out, ", rate 0.00e+00, norm ");
    suite_expect_in(r.out, " tokens/s, 0:00:0");
    suite_expect_in(r.out, "\nstep 3/3, eval loss ");
    suite_expect_in(r.out, "/out: trained 3 steps, 3 of them now in ");
    out = tempdir_at(folder, "quiet");
    r = TRAIN("--full", "--steps=3", "--quiet");
    expect_end(r, 0);
    ck_assert_msg(strncmp(r.out, out, strlen(out)) == 0 && !*r.err, "%s%s", r.out, r.err);
}
END_TEST

/* What is left can be used: the model by itself, the adapter beside its model. */
START_TEST(the_result_runs)
{
    expect_end(TRAIN("--full", "--steps=2"), 0);
    expect_end(TENON(NULL, "run", out, "And", "-n2", "--kernels=none"), 0);
    char *model = out;
    out = tempdir_at(folder, "adapter");
    expect_end(TRAIN("--lora", "r=4,targets=q_proj,v_proj,alpha=4", "--steps=5", "--save-every=2", "--lr=1e-3"), 0);
    expect_end(TENON(NULL, "run", "models/demo", "And", "-n2", "--kernels=none", "--adapter", out), 0);
    ck_assert(!tempdir_exists(tempdir_at(out, "model.safetensors")));
    ck_assert(tempdir_exists(tempdir_at(out, "checkpoint-4")) && tempdir_exists(tempdir_at(out, "checkpoint-5")));
    ck_assert(!tempdir_exists(tempdir_at(out, "checkpoint-2")));
    size_t size;
    char *config = tempdir_read(tempdir_at(out, "adapter_config.json"), &size);
    suite_expect_in(config, "\"r\": 4,");
    suite_expect_in(config, "\"v_proj\"");
    free(config);
    char *first = out;
    out = tempdir_at(folder, "further");
    expect_end(TRAIN("--adapter", first, "--steps=1"), 0);
    ck_assert(tempdir_exists(tempdir_at(out, "adapter_model.safetensors")) && tempdir_exists(model));
}
END_TEST

START_TEST(losses_are_drawn)
{
    char *picture = tempdir_at(folder, "loss.svg");
    size_t size;
    process_result r = TRAIN("--full", "--steps=4", "--save-every=2", "--eval", data, "--plot", picture);
    if (r.status == 2 && strstr(r.err, "there is no gnuplot in PATH")) {
        puts("SKIPPED the plot of losses: gnuplot is not installed");
        return;
    }
    expect_end(r, 0);
    char *text = tempdir_read(picture, &size);
    suite_expect_in(text, "<svg");
    suite_expect_in(text, "ForCausalLM, 4 steps");
    suite_expect_in(text, ">eval<");
    free(text);
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------------ */

START_TEST(what_is_there_stays)
{
    tempdir_put(folder, "out", "mine");
    process_expect_error(TRAIN("--full", "--steps=1"), 4, "/out: is there already; go on with it by --resume", NULL);
    unlink(out);
    mkdtemp(strcpy(out, tempdir_new()));
    tempdir_put(folder, "notes.txt", "mine");
    out = folder;
    process_expect_error(TRAIN("--full", "--steps=1", "--resume"), 4, ": holds no training to go on with", NULL);
    ck_assert(tempdir_exists(tempdir_at(folder, "notes.txt")));
}
END_TEST

/* Before anything is made. */
START_TEST(wrong_data_are_named)
{
    char *bad = tempdir_at(folder, "bad.jsonl");
    tempdir_put(folder, "bad.jsonl", "{\"text\": \"In the beginning was the word.\"}\n{\"text\": 3}\n");
    process_expect_error(TENON(NULL, "train", "models/demo", bad, "--out", out, QUICK, "--full", "-q"), 4, bad,
                         ":2: ", NULL);
    process_expect_error(TRAIN("--full", "-q", "--eval", bad), 4, bad, ":2: ", NULL);
    ck_assert(!tempdir_exists(out));
    process_result r =
        TENON(NULL, "train", "models/demo", bad, "--out", out, QUICK, "--full", "--steps=1", "--skip-bad");
    expect_end(r, 0);
    suite_expect_in(r.err, "tenon: warning: 1 records are wrong and left out\n");
}
END_TEST

/* All weights of what no other can be made of; before anything is computed. */
START_TEST(what_could_not_be_written_is_refused)
{
    static const char *const models[][2] = {{"tests/data/models/gguf_mixtral/model.gguf", "is no folder"},
                                            {"tests/data/models/gptq_act_order", "is quantised"}};
    tempdir_put(folder, "few.jsonl", "{\"input_ids\": [3, 4, 5, 6, 7]}\n");
    data = tempdir_at(folder, "few.jsonl");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        process_expect_error(
            TENON(NULL, "train", models[i][0], data, "--out", out, "--kernels=none", "--full", "--steps=1"), 2,
            models[i][1], "train an adapter", NULL);
        ck_assert(!tempdir_exists(out));
        char *to = tempdir_at(folder, i ? "b" : "a");
        expect_end(TENON(NULL, "train", models[i][0], data, "--out", to, "--kernels=none", "--steps=1"), 0);
        ck_assert(tempdir_exists(tempdir_at(to, "adapter_model.safetensors")));
    }
}
END_TEST

/* Another model, other data or another option is told by its name. */
START_TEST(another_training_is_refused)
{
#define STEPS "--full", "--steps=4", "--save-every=2", "-q"
#define RESUME(...) TRAIN(STEPS, "--resume", __VA_ARGS__)
    expect_end(TRAIN(STEPS), 0);
    process_expect_error(RESUME("--lr=0.5"), 2, "/out: was begun with --lr 1e-05, and this is 0.5; ", NULL);
    process_expect_error(RESUME("--seed=7"), 2, "was begun with --seed 0, and this is 7; ", NULL);
    process_expect_error(RESUME("--schedule=linear"), 2, "was begun with --schedule cosine, and this is linear", NULL);
    process_expect_error(RESUME("--pack"), 2, "was begun with --pack no, and this is yes", NULL);
    process_expect_error(TENON(NULL, "train", "models/demo", data, data, "--out", out, QUICK, STEPS, "--resume"), 2,
                         "was begun with another DATA; ", NULL);
    char *other = tempdir_at(folder, "model");
    char *settings;
    size_t size;
    mkdtemp(strcpy(other, tempdir_new()));
    tempdir_copy("models/demo", other);
    settings = tempdir_read(tempdir_at(other, "generation_config.json"), &size);
    settings[size] = '\n'; /* in the place of its NUL                                               */
    tempdir_write(tempdir_at(other, "generation_config.json"), settings, size + 1);
    free(settings);
    process_expect_error(TENON(NULL, "train", other, data, "--out", out, QUICK, STEPS, "--resume"), 2,
                         "was begun with another MODEL; ", NULL);
    expect_end(RESUME("--threads=1", "--save-every=3"), 0);
}
END_TEST

/* Weights without bounds: the step is named, and the place where that is known; what is there is whole. */
START_TEST(no_number_ends_it)
{
#define BOUNDLESS "--full", "--steps=90", "--lr=1000", "--decay=1000", "--warmup=0", "--save-every=2", "-q"
    process_expect_error(TRAIN(BOUNDLESS), 4, "model.layers.", ".mlp.gate: step ", "are not numbers",
                         "; --resume goes on behind step ", NULL);
    out = tempdir_at(folder, "dense");
    process_expect_error(TENON(NULL, "train", "tests/data/models/llama", data, "--out", out, QUICK, BOUNDLESS), 5,
                         ": step ", "is no number", "; --resume goes on behind step ", NULL);
}
END_TEST

/* ---- signals -------------------------------------------------------------------------------------- */

/* It finishes the step, says how to go on, and ends by the signal; ignored ones stay ignored. */
START_TEST(a_signal_saves)
{
    int said[2], null = open("/dev/null", O_RDWR | O_CLOEXEC);
    char line[4096] = "";
    ck_assert_int_eq(pipe2(said, O_CLOEXEC), 0);
    const char *const arguments[] = {"train",  "models/demo",    data, "--out", out, QUICK,
                                     "--full", "--steps=100000", "-q", NULL};
    pid_t pid = process_start(arguments, dup(null), null, said[1]);
    while (!tempdir_exists(tempdir_at(out, "trainer_log.jsonl")))
        usleep(1000);
    process_await_handler(pid, SIGTERM, true);
    kill(pid, SIGTERM);
    ck_assert_int_eq(process_wait(pid), 128 + SIGTERM);
    ck_assert_int_gt((int)read(said[0], line, sizeof line - 1), 0);
    suite_expect_in(line, "tenon: stopped behind step ");
    suite_expect_in(line, "; the same command with --resume goes on\n");
    long long step = strtoll(line + strlen("tenon: stopped behind step "), NULL, 10);
    char name[64];
    snprintf(name, sizeof name, "checkpoint-%lld", step);
    ck_assert(step == 0 || tempdir_exists(tempdir_at(out, name)));
}
END_TEST

int main(void)
{
    TCase *all = suite_open("cli: train", 0);
    tcase_add_checked_fixture(all, setup, NULL);
    suite_add(all, the_log_has_every_step, batches_of_a_step_are_one, lines_tell_steps, the_result_runs,
              losses_are_drawn, what_is_there_stays, wrong_data_are_named, what_could_not_be_written_is_refused,
              another_training_is_refused, no_number_ends_it, a_signal_saves);
    return process_main();
}
