/* Models that are opened with a lock: every byte of what is read counts, and what is not read does not. */
#include "base/lockfile.h"
#include "checkpoint/locked.h"
#include "gguf_model.h"
#include "local_group.h"
#include "suite.h"
#include "tempdir.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tenon/tenon.h>
#include <unistd.h>

static char *folder, *lock; /* a model's, and its lock beside it                                                 */

static void write_lock(const char *model)
{
    tn_error err = TN_ERROR_INIT;
    const tn_lock_options options = {.size = sizeof options, .threads = 2};
    char *text = tn_lock_model(model, &options, &err);
    ck_assert_msg(text != NULL, "%s: %s", err.where, err.message);
    tempdir_write(lock, text, strlen(text));
    free(text);
}

static void begin(const char *name)
{
    folder = tempdir_new();
    lock = tempdir_at(tempdir_new(), "model.lock");
    if (name) {
        tempdir_copy(name, folder);
        write_lock(folder);
    }
}

static tn_model *open_locked(const char *path, tn_error *err)
{
    const tn_model_options options = {.size = sizeof options, .threads = 2, .lock = lock};
    return tn_model_open(path, &options, err);
}

static void expect_open(const char *path)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = open_locked(path, &err);
    ck_assert_msg(m != NULL, "%s: %s", err.where, err.message);
    tn_model_close(m);
}

static void expect_refused(const char *path, tn_status code, const char *where, const char *words)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(open_locked(path, &err));
    ck_assert_msg(err.code == code && strstr(err.where, where) && strstr(err.message, words), "%d: %s: %s", err.code,
                  err.where, err.message);
}

/* Changes one bit; at below 0: from the end. */
static void flip(const char *path, long at)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    off_t place = at < 0 ? lseek(fd, 0, SEEK_END) + at : at;
    unsigned char byte;
    ck_assert(fd >= 0 && pread(fd, &byte, 1, place) == 1);
    byte ^= 1;
    ck_assert(pwrite(fd, &byte, 1, place) == 1 && close(fd) == 0);
}

static void flip_in(const char *name, long at)
{
    flip(tempdir_at(folder, name), at);
}

/* ---- one process -------------------------------------------------------------------------------------------- */

START_TEST(every_file_counts)
{
    static const struct {
        const char *file;
        long at;
    } bytes[] = {{"model-00001-of-00002.safetensors", -1},
                 {"model-00002-of-00002.safetensors", -40},
                 {"model.safetensors.index.json", -1},
                 {"config.json", -1}};
    begin("tests/data/models/qwen2");
    expect_open(folder);
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        flip_in(bytes[i].file, bytes[i].at);
        expect_refused(folder, TN_E_INPUT, bytes[i].file, "bytes 0 to ");
        flip_in(bytes[i].file, bytes[i].at);
        expect_open(folder);
    }
}
END_TEST

START_TEST(files_that_come_and_go)
{
    begin("tests/data/models/llama");
    expect_open(folder);
    tempdir_put(folder, "README.md", "nothing that is read");
    tempdir_put(folder, "lock.json", "{}");
    expect_open(folder);
    tempdir_put(folder, "merges.txt", "");
    expect_refused(folder, TN_E_INPUT, "merges.txt", "is not in the lock");
    write_lock(folder); /* an empty file has no digests                                                      */
    expect_open(folder);
    ck_assert_int_eq(unlink(tempdir_at(folder, "merges.txt")), 0);
    expect_refused(folder, TN_E_INPUT, folder, "has no 'merges.txt', which is in the lock");
    tempdir_put(folder, "merges.txt", "a b\n");
    expect_refused(folder, TN_E_INPUT, "merges.txt", "has 4 bytes, 0 in the lock");
    tempdir_put(folder, "merges.txt", "");
    ck_assert_int_eq(mkdir(tempdir_at(folder, "additional_chat_templates"), 0755), 0);
    tempdir_put(folder, "additional_chat_templates/tool_use.jinja", "{{ 1 }}");
    expect_refused(folder, TN_E_INPUT, "tool_use.jinja", "is not in the lock");
    write_lock(folder);
    expect_open(folder);
    char *weights = tempdir_at(folder, "model.safetensors");
    size_t size;
    char *content = tempdir_read(weights, &size);
    tempdir_write(weights, content, size - 1);
    free(content);
    expect_refused(folder, TN_E_INPUT, "model.safetensors", " in the lock");
    ck_assert_int_eq(unlink(weights), 0);
    expect_refused(folder, TN_E_INPUT, folder, "has no 'model.safetensors', which is in the lock");
    tempdir_copy_file("tests/data/models/llama/model.safetensors", folder, "model.safetensors");
    expect_open(folder);
    flip_in("additional_chat_templates/tool_use.jinja", 3);
    expect_refused(folder, TN_E_INPUT, "tool_use.jinja", "bytes 0 to 6");
}
END_TEST

static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    ck_assert_ptr_nonnull(at);
    size_t size = strlen(text) + strlen(to) + 1;
    char *out = malloc(size);
    snprintf(out, size, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return out;
}

static void rewrite(const char *from, const char *to)
{
    size_t size;
    char *text = tempdir_read(lock, &size), *other = replaced(text, from, to);
    tempdir_write(lock, other, strlen(other));
    free(text);
    free(other);
}

START_TEST(the_library_counts)
{
    begin("tests/data/models/llama");
    rewrite("\"version\": \"" TN_VERSION "\"", "\"version\": \"9.9.9\"");
    expect_refused(folder, TN_E_KERNEL, "libtenon", "is version " TN_VERSION ", in the lock");
    write_lock(folder);
    size_t size;
    char *text = tempdir_read(lock, &size), *at = strstr(text, "\"library\": \"");
    ck_assert_ptr_nonnull(at);
    at += strlen("\"library\": \"");
    *at = *at == 'a' ? 'b' : 'a';
    tempdir_write(lock, text, size);
    free(text);
    expect_refused(folder, TN_E_KERNEL, "test_locked", "is sha256:");
}
END_TEST

START_TEST(what_goes_not_together)
{
    tn_error err = TN_ERROR_INIT;
    begin("tests/data/models/llama");
    tn_model_options options = {.size = sizeof options, .lock = lock, .adapter = "x"};
    ck_assert_ptr_null(tn_model_open(folder, &options, &err));
    ck_assert_int_eq(err.code, TN_E_USAGE);
    suite_expect_in(err.message, "an adapter is in no lock");
    tn_error_clear(&err);
    tn_model *m = open_locked(folder, &err);
    const tn_embedder_options pooling = {.size = sizeof pooling, .pooling = TN_POOLING_MEAN};
    ck_assert_ptr_null(tn_embedder_open(m, &pooling, &err));
    suite_expect_in(err.message, "its lock has no files of folders below");
    tn_model_close(m);
    expect_refused("tests/data/nothing", TN_E_INPUT, "tests/data/nothing", "");
    lock = tempdir_at(folder, "gone.lock");
    expect_refused(folder, TN_E_INPUT, "gone.lock", "cannot open");
}
END_TEST

START_TEST(a_gguf)
{
    begin(NULL);
    tempdir_copy_file("tests/data/models/gguf_mixtral/model.gguf", folder, "model.gguf");
    char *path = tempdir_at(folder, "model.gguf");
    tempdir_put(folder, "notes.txt", "nothing that is read");
    write_lock(path);
    expect_open(path);
    flip(path, -1);
    expect_refused(path, TN_E_INPUT, "model.gguf", "bytes 0 to ");
    flip(path, -1);
    ck_assert_int_eq(rename(path, tempdir_at(folder, "other.gguf")), 0);
    expect_refused(tempdir_at(folder, "other.gguf"), TN_E_INPUT, "", "model.gguf");
}
END_TEST

static int stop(void *ctx, const char *what, int64_t done, int64_t total)
{
    (void)what;
    ck_assert(done >= 0 && done <= total);
    ++*(int *)ctx;
    return 1;
}

START_TEST(cancelled)
{
    tn_error err = TN_ERROR_INIT;
    int calls = 0;
    begin(NULL);
    const tn_lock_options options = {.size = sizeof options, .progress = stop, .progress_ctx = &calls};
    ck_assert_ptr_null(tn_lock_model("tests/data/models/llama", &options, &err));
    ck_assert_int_eq(err.code, TN_E_CANCELLED);
    ck_assert_int_eq(calls, 1);
    tn_error_clear(&err);
    ck_assert_ptr_null(tn_lock_model(folder, NULL, &err));
    ck_assert_int_eq(err.code, TN_E_INPUT);
}
END_TEST

/* ---- ranges and what is read ---------------------------------------------------------------------------------- */

enum { MIB = 1 << 20 };

/* 40 MiB of zeros as a tensor, and eight bytes as another. */
static shards *open_large(void)
{
    static const int64_t shape[] = {40, MIB}, small[] = {8};
    static const char little[8] = "little";
    tn_error err = TN_ERROR_INIT;
    char *zeros = calloc(40, MIB);
    const tn_named_tensor tensors[] = {{"large", tn_tensor_dense(zeros, TN_U8, 2, shape)},
                                       {"little", tn_tensor_dense((void *)(uintptr_t)little, TN_U8, 1, small)}};
    ck_assert_int_eq(tn_safetensors_write(tempdir_at(folder, "model.safetensors"), tensors, 2, &err), TN_OK);
    free(zeros);
    shards *set = shards_open(folder, &err);
    ck_assert_msg(set != NULL, "%s", err.message);
    return set;
}

static const locked_work work = {.loop = tn_parallel_for};

static tn_status check_large(const shards *set, tn_error *err)
{
    lockfile *read = lockfile_read(lock, err);
    tn_status status = read ? locked_check_weights(set, read, &work, err) : err->code;
    lockfile_close(read);
    return status;
}

/* The lock of this file alone. */
static void lock_large(const shards *set)
{
    text out = {0};
    static const char digest[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    text_add(&out,
             "{\"tenon_lock\": 1, \"version\": \"1\", \"library\": \"%s\", \"plugins\": [], \"libraries\": [], "
             "\"piece_bytes\": %lld, \"files\": [",
             digest, (long long)LOCKFILE_PIECE);
    ck_assert_int_eq(locked_tell_weights(set, &work, true, &out, NULL), TN_OK);
    text_add(&out, "]}");
    tempdir_write(lock, out.data, out.length);
    free(out.data);
}

START_TEST(the_range_is_named)
{
    tn_error err = TN_ERROR_INIT;
    begin(NULL);
    shards *set = open_large();
    lock_large(set);
    ck_assert_int_eq(check_large(set, &err), TN_OK);
    flip_in("model.safetensors", 17 * MIB);
    ck_assert_int_eq(check_large(set, &err), TN_E_INPUT);
    suite_expect_in(err.message, "bytes 16777216 to 33554431 are not those of the lock");
    shards_close(set);
}
END_TEST

/* The mapping shows what is written to the file, so that each check looks at the file as it is. */
START_TEST(what_is_not_read_does_not_count)
{
    tn_error err = TN_ERROR_INIT;
    tn_tensor large;
    begin(NULL);
    shards *set = open_large();
    lock_large(set);
    ck_assert(shards_watch(set));
    flip_in("model.safetensors", 17 * MIB); /* the second of three pieces, which nobody read             */
    ck_assert_int_eq(check_large(set, &err), TN_OK);
    flip_in("model.safetensors", 20); /* the header                                                      */
    ck_assert_int_eq(check_large(set, &err), TN_E_INPUT);
    suite_expect_in(err.message, "bytes 0 to 16777215 are not");
    flip_in("model.safetensors", 20);
    tn_error_clear(&err);
    flip_in("model.safetensors", -3); /* what is little is read in any case                              */
    ck_assert_int_eq(check_large(set, &err), TN_E_INPUT);
    suite_expect_in(err.message, "bytes 33554432 to ");
    flip_in("model.safetensors", -3);
    tn_error_clear(&err);
    ck_assert(shards_get(set, "large", &large));
    shards_mark(set, (const char *)large.data + 30 * MIB, 1);
    ck_assert_int_eq(check_large(set, &err), TN_E_INPUT);
    suite_expect_in(err.message, "bytes 16777216 to 33554431 are not");
    int elsewhere = 0;
    shards_mark(set, &elsewhere, sizeof elsewhere);
    shards_close(set);
}
END_TEST

/* ---- ranks ------------------------------------------------------------------------------------------------------ */

/* Opens as one of two; 0: it could, else the status. */
static int open_rank(local_group *g, int32_t rank, const char *parallel)
{
    const tn_group end = local_group_end(g, rank);
    tn_error err = TN_ERROR_INIT;
    const tn_model_options options = {
        .size = sizeof options, .threads = 1, .parallel = parallel, .group = &end, .lock = lock};
    suite_limit_child();
    tn_model *m = tn_model_open(folder, &options, &err);
    if (m && rank > 0) {
        tn_config *config = tn_config_new();
        tn_follow(m, config, NULL);
        tn_config_free(config);
    }
    bool good = m || (strstr(err.message, "bytes 0 to ") && strstr(err.message, "are not those of the lock"));
    tn_model_close(m);
    return m ? 0 : good ? -err.code : 99;
}

static void both_end_with(const char *parallel, int status)
{
    local_group *g = local_group_new(2);
    ck_assert_ptr_nonnull(g);
    pid_t children[2];
    for (int32_t r = 0; r < 2; r++)
        if ((children[r] = fork()) == 0)
            _exit(open_rank(g, r, parallel));
    for (int32_t r = 0; r < 2; r++) {
        int ended = -1;
        ck_assert_int_eq(waitpid(children[r], &ended, 0), children[r]);
        ck_assert_msg(WIFEXITED(ended) && WEXITSTATUS(ended) == status, "%s, rank %d: %x", parallel, (int)r, ended);
    }
}

START_TEST(ranks)
{
    static const char *const ways[] = {"tensor=2", "pipeline=2", "sums=2"};
    begin("tests/data/models/qwen2");
    both_end_with(ways[_i], 0);
    flip_in("model-00002-of-00002.safetensors", -1);
    both_end_with(ways[_i], 4);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("locked", 0);
    suite_add(tc, every_file_counts, files_that_come_and_go, the_library_counts, what_goes_not_together, a_gguf,
              cancelled, the_range_is_named, what_is_not_read_does_not_count);
    tcase_add_loop_test(tc, ranks, 0, 3);
    return suite_run();
}
