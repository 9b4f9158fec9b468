/* tenon quantize: what it prints, and that what it writes runs. */
#include "process.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double perplexity_of(const char *model)
{
    process_result r = TENON(NULL, "perplexity", model, "models/demo/heldout.txt", "--kernels=none", "--quiet");
    ck_assert_msg(r.status == 0, "%s", r.err);
    return strtod(r.out + strlen("perplexity "), NULL);
}

/* What is printed of each tensor, and how many bits a value has in the end. */
START_TEST(a_table_of_tensors)
{
    char *out = tempdir_at(tempdir_new(), "demo.gguf");
    process_result r = TENON(NULL, "quantize", "models/demo", out, "--type", "Q4_K_M");
    ck_assert_msg(r.status == 0, "%s", r.err);
    suite_expect_in(r.out, "TENSOR ");
    suite_expect_in(r.out, "RMS ERROR\n");
    suite_expect_in(r.out, "token_embd.weight ");
    suite_expect_in(r.out, "blk.3.ffn_down_exps.weight ");
    suite_expect_in(r.out, "/demo.gguf: 2.2 MiB, 6.5");
    suite_expect_in(r.out, " bits per value\n");
    r = TENON(NULL, "quantize", "models/demo", out, "--type", "Q8_0", "--quiet");
    ck_assert_msg(r.status == 0, "%s", r.err);
    ck_assert_msg(strstr(r.out, "TENSOR") == NULL && strchr(r.out, '\n')[1] == '\0', "%s", r.out);
}
END_TEST

/* Within 2 % of the plain checkpoint. */
START_TEST(the_demo_reads_as_well)
{
    char *out = tempdir_at(tempdir_new(), "demo.gguf");
    process_result r = TENON(NULL, "quantize", "models/demo", out, "--type", "Q4_K_M", "--quiet");
    ck_assert_msg(r.status == 0, "%s", r.err);
    ck_assert_double_le(perplexity_of(out), 1.02 * perplexity_of("models/demo"));
}
END_TEST

/* The text is read first: a column more, and a line on experts that no token reached. */
START_TEST(a_text_says_what_counts)
{
    char *out = tempdir_at(tempdir_new(), "demo.gguf"), same[1001];
    process_result r = TENON(NULL, "quantize", "models/demo", out, "--type=Q4_0", "--imatrix=models/demo/heldout.txt");
    ck_assert_msg(r.status == 0, "%s", r.err);
    suite_expect_in(r.out, "RMS ERROR  WEIGHED\n");
    ck_assert_ptr_null(strstr(r.out, "reached by no token"));
    memset(same, 'a', sizeof same - 1);
    same[sizeof same - 1] = '\0';
    for (int i = 1; i < 1000; i += 2)
        same[i] = ' ';
    r = TENON(same, "quantize", "models/demo", out, "--type=Q4_0", "--imatrix=-", "--quiet");
    ck_assert_msg(r.status == 0, "%s", r.err);
    suite_expect_in(r.out,
                    " matrices of experts were reached by no token of standard input: their columns count alike\n");
}
END_TEST

/* One line each, and no file. */
START_TEST(texts_that_say_nothing)
{
    const char *folder = tempdir_new(), *out = tempdir_at(folder, "demo.gguf"), *text = tempdir_at(folder, "text");
#define QUANTIZE(type) TENON(NULL, "quantize", "models/demo", out, "--type", type, "--imatrix", text)
    process_expect_error(QUANTIZE("Q4_0"), 4, "/text: cannot open: ", NULL);
    tempdir_write(text, "", 0);
    process_expect_error(QUANTIZE("Q4_0"), 4, "/text: the text has 0 tokens; --imatrix needs at least 128", NULL);
    tempdir_write(text, "In the beginning", 16);
    process_expect_error(QUANTIZE("Q4_0"), 4, "/text: the text has ", "; give a longer one", NULL);
    tempdir_write(text, "GGUF\xff\xfe", 6);
    process_expect_error(QUANTIZE("Q4_0"), 4, "/text: is not UTF-8; give a text in that encoding", NULL);
    text = "models/demo/heldout.txt";
    process_expect_error(QUANTIZE("Q8_0"), 2, "a text changes nothing of Q8_0; leave it out", NULL);
    process_expect_error(QUANTIZE("FP8"), 2, "a text changes nothing of FP8; leave it out", NULL);
    ck_assert(!tempdir_exists(out));
}
END_TEST

/* ---- Ctrl-C ------------------------------------------------------------------------------------------------ */

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static pid_t start(const char *const *arguments)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    return process_start(arguments, dup(null), dup(null), null);
}

/* Either all of OUT is there, or what was before; nothing else ever. */
static void expect_end(const char *folder, const char *out, bool was_there, int ended)
{
    size_t size;
    ck_assert_msg(ended == 0 || ended == 128 + SIGINT, "status %d", ended);
    ck_assert_uint_eq(tempdir_count(folder), was_there || ended == 0);
    if (!was_there || ended == 0)
        return;
    char *left = tempdir_read(out, &size);
    ck_assert_str_eq(left, "before");
    free(left);
}

static const struct interrupted {
    const char *name, *type, *text; /* text NULL: none                                              */
} interrupted[] = {{"out.gguf", "Q4_K_M", NULL}, {"out.gguf", "Q4_0", "models/demo/heldout.txt"}, {"out", "FP8", NULL}};

/* A run that is interrupted after so many seconds, or never. */
static void interrupt_after(const struct interrupted *c, double wait)
{
    bool file = strcmp(c->type, "FP8") != 0;
    const char *folder = tempdir_new(), *out = tempdir_at(folder, c->name);
    const char *const arguments[] = {
        "quantize", "models/demo", out, "--quiet", "--type", c->type, c->text ? "--imatrix" : NULL, c->text, NULL};
    double whole = floor(wait);
    if (file)
        tempdir_write(out, "before", 6);
    pid_t pid = start(arguments);
    nanosleep(&(struct timespec){.tv_sec = (time_t)whole, .tv_nsec = (long)((wait - whole) * 1e9)}, NULL);
    if (wait > 0)
        kill(pid, SIGINT);
    expect_end(folder, out, file, process_wait(pid));
}

/* At moments spread over a whole run and somewhat beyond. */
START_TEST(interrupts_leave_no_files)
{
    enum { MOMENTS = 12 };
    double began = seconds();
    interrupt_after(&interrupted[_i], 0);
    double usual = seconds() - began;
    for (int i = 0; i < MOMENTS; i++)
        interrupt_after(&interrupted[_i], usual * 1.1 * (i + 0.5) / MOMENTS);
}
END_TEST

/* While the text is read, which takes longer than it takes to ask: the handler is there, and it is heard. */
START_TEST(an_interrupt_is_heard)
{
    const char *folder = tempdir_new(), *out = tempdir_at(folder, "out.gguf");
    const char *const arguments[] = {
        "quantize", "models/demo", out, "--type=Q4_0", "--imatrix=models/demo/heldout.txt", "--threads=1", NULL};
    tempdir_write(out, "before", 6);
    pid_t pid = start(arguments);
    process_await_handler(pid, SIGINT, true);
    kill(pid, SIGINT);
    int ended = process_wait(pid);
    ck_assert_int_eq(ended, 128 + SIGINT);
    expect_end(folder, out, true, ended);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("quantize", 120);
    suite_add(tcase, a_table_of_tensors, the_demo_reads_as_well, a_text_says_what_counts, texts_that_say_nothing,
              an_interrupt_is_heard);
    tcase_add_loop_test(tcase, interrupts_leave_no_files, 0, sizeof interrupted / sizeof *interrupted);
    return suite_run();
}
