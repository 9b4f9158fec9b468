/* tenon lock, and --lock of the commands that compute: what was locked runs, and what differs is named. */
#include "process.h"
#include "suite.h"
#include "tempdir.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RUN "run", model, "Once", "-n", "3", "--temperature=0", "--only-plugins", plugins, "--no-measure"

static char *model, *plugins, *lock;

static void write_lock(void)
{
    process_result r = TENON(NULL, "lock", model, "--only-plugins", plugins);
    ck_assert_msg(r.status == 0, "%s", r.err);
    tempdir_write(lock, r.out, r.out_length);
}

static void set_up(void)
{
    char *cache = tempdir_new();
    setenv("XDG_CACHE_HOME", cache, 1);
    setenv("TENON_TRIAL_SECONDS", "60", 1);
    model = tempdir_new();
    plugins = tempdir_new();
    lock = tempdir_at(tempdir_new(), "demo.lock");
    tempdir_copy("models/demo", model);
    process_copy_built("plugins/npu_rmsnorm.so", plugins, "npu_rmsnorm.so");
    write_lock();
}

/* Changes one bit of the last byte but `back`. */
static void flip(const char *folder, const char *name, off_t back)
{
    int fd = open(tempdir_at(folder, name), O_RDWR | O_CLOEXEC);
    off_t at = lseek(fd, 0, SEEK_END) - 1 - back;
    unsigned char byte;
    ck_assert(fd >= 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 1;
    ck_assert(pwrite(fd, &byte, 1, at) == 1 && close(fd) == 0);
}

START_TEST(what_was_locked_runs)
{
    process_result plain = TENON(NULL, RUN), locked = TENON(NULL, RUN, "--lock", lock);
    ck_assert_msg(plain.status == 0 && locked.status == 0, "%s%s", plain.err, locked.err);
    ck_assert_str_eq(locked.out, plain.out);
    process_result again = TENON(NULL, "lock", model, "--only-plugins", plugins);
    size_t size;
    char *text = tempdir_read(lock, &size);
    ck_assert_str_eq(again.out, text);
    suite_expect_in(text, "{\"file\": \"npu_rmsnorm.so\", \"sha256\": \"");
    suite_expect_in(text, "\"name\": \"model.safetensors\",\n      \"bytes\": ");
    suite_expect_in(text, "\"name\": \"tokenizer.json\"");
    ck_assert_ptr_null(strstr(text, "README.md"));
    free(text);
    char *held = tempdir_at(model, "heldout.txt");
    process_expect_output(TENON(NULL, "verify", model, "--only-plugins", plugins, "--lock", lock), NULL);
    process_expect_output(TENON(NULL, "perplexity", model, held, "--kernels=none", "--lock", lock), NULL);
    process_expect_output(
        TENON(NULL, "bench", model, "--kernels=none", "--prompt=8", "--decode=2", "--repeat=1", "--lock", lock), NULL);
    process_expect_output(TENON("Hello\n", "chat", model, "--kernels=none", "-n", "2", "--lock", lock), NULL);
}
END_TEST

START_TEST(a_byte_is_named)
{
    static const char *const files[] = {"model.safetensors", "config.json", "tokenizer.json", "generation_config.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        flip(model, files[i], 0);
        process_expect_error(TENON(NULL, RUN, "--lock", lock), 4, files[i], "bytes 0 to ", "not those of the lock",
                             "demo.lock", NULL);
        flip(model, files[i], 0);
    }
    ck_assert_int_eq(TENON(NULL, RUN, "--lock", lock).status, 0);
}
END_TEST

START_TEST(a_file_is_named)
{
    tempdir_put(model, "chat_template.jinja", "{{ 1 }}");
    process_expect_error(TENON(NULL, RUN, "--lock", lock), 4, "chat_template.jinja", "is not in the lock", NULL);
    ck_assert_int_eq(unlink(tempdir_at(model, "chat_template.jinja")), 0);
    ck_assert_int_eq(unlink(tempdir_at(model, "generation_config.json")), 0);
    process_expect_error(TENON(NULL, RUN, "--lock", lock), 4, "has no 'generation_config.json'", NULL);
}
END_TEST

/* Behind the end of what is loaded: the plugin works as before, and is another file. */
START_TEST(a_plugin_is_named)
{
    char *file = tempdir_at(plugins, "npu_rmsnorm.so");
    size_t size;
    char *content = tempdir_read(file, &size), *more = calloc(1, size + 1);
    memcpy(more, content, size);
    tempdir_write(file, more, size + 1);
    process_expect_error(TENON(NULL, RUN, "--lock", lock), 3, "npu_rmsnorm.so", "is sha256:", "in the lock", NULL);
    ck_assert_int_eq(TENON(NULL, RUN).status, 0);
    tempdir_write(file, content, size);
    process_copy_built("plugins/npu_rope.so", plugins, "npu_rope.so");
    process_expect_error(TENON(NULL, RUN, "--lock", lock), 3, "npu_rope.so", "is not in the lock", NULL);
    ck_assert_int_eq(unlink(tempdir_at(plugins, "npu_rope.so")), 0);
    tempdir_put(plugins, "nothing.so", "is no plugin, and nobody loads it");
    process_result r = TENON(NULL, RUN, "--lock", lock);
    ck_assert_msg(r.status == 0, "%s", r.err);
    ck_assert_int_eq(unlink(file), 0);
    process_expect_error(TENON(NULL, RUN, "--lock", lock), 3, "npu_rmsnorm.so", "is in the lock", NULL);
    process_expect_output(TENON(NULL, "run", model, "Once", "-n", "3", "--kernels=none", "--lock", lock), NULL);
    tempdir_write(file, content, size);
    tempdir_write(tempdir_at(plugins, "npu_second.so"), more, size + 1); /* the same kernel once more                */
    process_expect_error(TENON(NULL, "lock", model, "--only-plugins", plugins), 3, "npu_second.so", "a lock wants",
                         NULL);
    free(content);
    free(more);
}
END_TEST

/* One that a plugin is linked with, and that is not the system's. */
START_TEST(a_plugins_library_is_named)
{
    char *below = tempdir_at(plugins, "lib"), *library = tempdir_at(below, "libfactor.so.1");
    ck_assert_int_eq(mkdir(below, 0755), 0);
    process_copy_built("tests/bad_plugins/calls_library.so", plugins, "calls.so");
    process_copy_built("tests/bad_plugins/factor_library.so", below, "libfactor.so.1");
    write_lock();
    size_t size;
    char *text = tempdir_read(lock, &size);
    suite_expect_in(text, "{\"file\": \"libfactor.so.1\", \"sha256\": \"");
    free(text);
    process_result r = TENON(NULL, RUN, "--lock", lock);
    ck_assert_msg(r.status == 0, "%s", r.err);
    char *content = tempdir_read(library, &size), *at = memmem(content, size, "factor=1.00", 11);
    ck_assert_ptr_nonnull(at);
    memcpy(at, "factor=1.50", 11);
    tempdir_write(library, content, size);
    free(content);
    process_expect_error(TENON(NULL, RUN, "--lock", lock), 3, "calls.so", "it loads ",
                         "libfactor.so.1, which is sha256:", NULL);
}
END_TEST

START_TEST(the_library_is_named)
{
    size_t size;
    char *text = tempdir_read(lock, &size), *at = strstr(text, "\"library\": \"");
    ck_assert_ptr_nonnull(at);
    at += strlen("\"library\": \"");
    *at = *at == 'a' ? 'b' : 'a';
    tempdir_write(lock, text, size);
    free(text);
    process_expect_error(TENON(NULL, RUN, "--lock", lock), 3, "libtenon.so", "is sha256:", NULL);
}
END_TEST

START_TEST(locks_that_are_none)
{
    char *none = tempdir_at(model, "none.lock");
    process_expect_error(TENON(NULL, RUN, "--lock", none), 4, "none.lock", "cannot open", NULL);
    tempdir_put(model, "none.lock", "{}");
    process_expect_error(TENON(NULL, RUN, "--lock", none), 4, "none.lock", "is this a lock?", NULL);
    process_expect_error(TENON(NULL, "lock"), 2, "MODEL is needed", NULL);
    process_expect_error(TENON(NULL, "lock", "nowhere/at/all"), 4, "nowhere/at/all", NULL);
    process_expect_error(TENON(NULL, RUN, "--lock", lock, "--adapter", model), 2, "an adapter is in no lock", NULL);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("cli_lock", 300);
    tcase_add_checked_fixture(tc, set_up, NULL);
    suite_add(tc, what_was_locked_runs, a_byte_is_named, a_file_is_named, a_plugin_is_named, a_plugins_library_is_named,
              the_library_is_named, locks_that_are_none);
    return process_main();
}
