/* Plugins whose files change while the program uses them: what it prints stays the same, and the next one that is
 * started looks at them anew. */
#include "process.h"
#include "rewrite.h"
#include "suite.h"
#include "tempdir.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIRST "And it came to pass\n"
#define SECOND "in the days\n"

static char *root, *model, *plugins, *file;

static void setup(void)
{
    static const char template[] = "{%- for m in messages -%}{{ m.content }}{%- endfor -%}";
    umask(022);
    root = tempdir_new();
    model = tempdir_at(root, "model");
    plugins = tempdir_at(root, "plugins");
    ck_assert_int_eq(mkdir(model, 0755), 0);
    ck_assert_int_eq(mkdir(plugins, 0755), 0);
    tempdir_copy("models/demo", model);
    tempdir_put(model, "chat_template.jinja", template);
    process_copy_built("tests/bad_plugins/in_use.so", plugins, "in_use.so");
    process_copy_built("tests/bad_plugins/in_use_library.so", plugins, "libin_use.so.1");
    file = tempdir_at(plugins, "in_use.so");
    setenv("TENON_TRIAL_SECONDS", "60", 1);
}

#define OPTIONS "--only-plugins", plugins, "--kernels=test_in_use", "--dtype=f32", "--temperature=0"

/* A program that runs, with what it has printed. */
typedef struct program {
    pid_t pid;
    int in, out, err;
    char text[1 << 16];
    size_t length;
} program;

static void begin(program *p, const char *const *arguments)
{
    int in[2], out[2];
    ck_assert(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    *p = (program){.in = in[1], .out = out[0], .err = memfd_create("err", MFD_CLOEXEC)};
    p->pid = process_start(arguments, in[0], out[1], dup(p->err));
}

/* Reads until that many bytes came, or to the end. */
static void await(program *p, size_t length)
{
    ssize_t n = 1;
    while (p->length < length && n > 0) {
        n = read(p->out, p->text + p->length, sizeof p->text - 1 - p->length);
        p->length += n > 0 ? (size_t)n : 0;
    }
}

static void expect_end(program *p, const char *want, const char *when)
{
    char err[8192] = "";
    await(p, SIZE_MAX);
    int status = process_wait(p->pid);
    ck_assert_int_ge(pread(p->err, err, sizeof err - 1, 0), 0);
    ck_assert_msg(status == 0, "%s: status %d: %s", when, status, err);
    ck_assert_msg(strcmp(p->text, want) == 0, "%s: '%s', not '%s'", when, p->text, want);
    ck_assert_msg(!process_warning(err), "%s: %s", when, err);
    close(p->out);
    close(p->err);
}

START_TEST(a_conversation_goes_on)
{
    const rewrite *r = &rewrites[_i];
    const char *const line[] = {"chat", model, OPTIONS, "-n8", "-q", NULL};
    process_result one = process_run(FIRST, line), both = process_run(FIRST SECOND, line);
    ck_assert_msg(both.status == 0, "%s", both.err);
    ck_assert_uint_gt(one.out_length, 8);
    ck_assert_uint_gt(both.out_length, one.out_length + 8);
    program p;
    begin(&p, line);
    ck_assert_int_eq(write(p.in, FIRST, strlen(FIRST)), strlen(FIRST));
    await(&p, one.out_length - 1); /* it ends a line at the end                                            */
    r->act(file);
    ck_assert_int_eq(write(p.in, SECOND, strlen(SECOND)), strlen(SECOND));
    close(p.in);
    expect_end(&p, both.out, r->name);
}
END_TEST

START_TEST(a_text_goes_on)
{
    const rewrite *r = &rewrites[_i];
    const char *const line[] = {"run", model, "And", OPTIONS, "-n400", "--ignore-eos", "-q", NULL};
    process_result whole = process_run(NULL, line);
    ck_assert_msg(whole.status == 0, "%s", whole.err);
    program p;
    begin(&p, line);
    close(p.in);
    await(&p, 1);
    ck_assert_int_eq(kill(p.pid, SIGSTOP), 0); /* in the middle                                            */
    r->act(file);
    ck_assert_int_eq(kill(p.pid, SIGCONT), 0);
    expect_end(&p, whole.out, r->name);
}
END_TEST

/* What the next one that is started says of each. */
START_TEST(the_next_one_tries_it_again)
{
    static const char *const says[] = {"test_in_use  cpu     1.0.0    yes",
                                       "test_in_use  cpu     1.0.0    yes",
                                       "test_in_use  cpu     1.0.0    yes",
                                       "skipped: ",
                                       "skipped: ",
                                       "in_use.so: ",
                                       "test_in_use  cpu     1.0.0    yes",
                                       ""};
    process_result before = TENON(NULL, "kernels", "--only-plugins", plugins);
    ck_assert_msg(before.status == 0 && strstr(before.out, says[0]), "%s%s", before.out, before.err);
    rewrites[_i].act(file);
    process_result r = TENON(NULL, "kernels", "--only-plugins", plugins);
    ck_assert_msg(strstr(r.out, says[_i]) != NULL, "%s: %s%s", rewrites[_i].name, r.out, r.err);
    ck_assert_msg(!strstr(says[_i], "yes") == !strstr(r.out, "yes"), "%s: %s", rewrites[_i].name, r.out);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("cli: plugins in use", 600);
    tcase_add_checked_fixture(tc, setup, NULL);
    tcase_add_loop_test(tc, a_conversation_goes_on, 0, REWRITES);
    tcase_add_loop_test(tc, a_text_goes_on, 0, REWRITES);
    tcase_add_loop_test(tc, the_next_one_tries_it_again, 0, REWRITES);
    return process_main();
}
