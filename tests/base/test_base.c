/* What the rest of core stands on: errors and texts that are cut, element types, files that cannot be read, keys
 * without the system's random numbers, names that are near, and the edge to libraries that throw or reach for a null
 * pointer. */
#include "base/edge.h"
#include "base/file.h"
#include "base/nearest.h"
#include "base/siphash.h"
#include "base/tensor.h"
#include "base/text.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <tenon/tensor.h>
#include <unistd.h>

/* ---- errors and texts ------------------------------------------------------------------------------------------- */

/* A message ends with a whole character wherever it is cut. */
START_TEST(a_long_message_is_cut_between_characters)
{
    static const char *const characters[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "a"};
    const char *c = characters[_i % 4];
    tn_error err = TN_ERROR_INIT;
    size_t n = strlen(c), room = sizeof err.message, begin = (size_t)_i / 4;
    char text[2048] = "xxxx";
    for (size_t at = begin; at + n < sizeof text - 1; at += n)
        memcpy(text + at, c, n + 1);
    ck_assert_int_eq(tn_fail(&err, TN_E_INPUT, NULL, "%s", text), TN_E_INPUT);
    size_t length = strlen(err.message), whole = begin + (room - 1 - begin) / n * n;
    ck_assert_uint_eq(length, whole);
    ck_assert_int_eq(strncmp(err.message, text, length), 0);
    ck_assert_str_eq(err.where, "");
}
END_TEST

START_TEST(the_first_error_stays)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_fail(&err, TN_E_INPUT, "a", "first"), TN_E_INPUT);
    ck_assert_int_eq(tn_fail(&err, TN_E_MEMORY, "b", "second"), TN_E_MEMORY);
    ck_assert(err.code == TN_E_INPUT && !strcmp(err.where, "a") && !strcmp(err.message, "first"));
    ck_assert_int_eq(tn_fail(NULL, TN_E_MEMORY, "b", "second"), TN_E_MEMORY);
    tn_error_clear(&err);
    ck_assert(err.code == TN_OK && !err.where[0] && !err.message[0]);
}
END_TEST

/* What moves a terminal's cursor or turns the direction of writing, and bytes that are no UTF-8. */
START_TEST(what_could_deceive_is_escaped)
{
    static const char *const pairs[][2] = {
        {"a\nb", "a\\x0ab"},
        {"\x7f", "\\x7f"},
        {"\xc2\x9b", "\\xc2\\x9b"},
        {"\xe2\x80\x8e|\xe2\x80\xae", "\\xe2\\x80\\x8e|\\xe2\\x80\\xae"},
        {"\xe2\x81\xa7", "\\xe2\\x81\\xa7"},
        {"\xe2\x81\xa5\xe2\x81\xaa", "\xe2\x81\xa5\xe2\x81\xaa"},
        {"\xd8\x9c\xd8\x9b", "\\xd8\\x9c\xd8\x9b"},
        {"\xe2\x82\xac \xc3\xa9", "\xe2\x82\xac \xc3\xa9"},
        {"\xc3(", "\\xc3("},
        {"\xe0\x80\x80", "\\xe0\\x80\\x80"},
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"},
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
        {"\xff", "\\xff"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char out[64];
        ck_assert_uint_eq(text_escape(out, sizeof out, pairs[i][0]), strlen(pairs[i][1]));
        ck_assert_str_eq(out, pairs[i][1]);
    }
    char small[6];
    ck_assert_uint_eq(text_escape(small, sizeof small, "ab\ncd"), 2); /* no half of an escape           */
    ck_assert_str_eq(small, "ab");
    ck_assert_uint_eq(text_escape(small, 0, "ab"), 0);
}
END_TEST

START_TEST(quoted_text_is_json)
{
    text t = {0};
    text_add_quoted(&t, "a\"b\\c\n\xff\xc3\xa9\x7f\xc2\x9b\xe2\x80\xae");
    text_add_quoted(&t, NULL);
    ck_assert_str_eq(t.data, "\"a\\\"b\\\\c\\u000a\xef\xbf\xbd\xc3\xa9\\u007f\\u009b\\u202e\"\"\"");
    ck_assert(!t.failed);
    free(t.data);
}
END_TEST

/* ---- element types ---------------------------------------------------------------------------------------------- */

START_TEST(sizes_of_blocks_fit_together)
{
    for (tn_dtype d = TN_DTYPE_NONE + 1; d < TN_DTYPE_COUNT; d++) {
        int64_t elements = tn_dtype_block_elements(d);
        size_t bytes = tn_dtype_block_bytes(d);
        ck_assert_msg(elements > 0 && bytes > 0, "%s", tn_dtype_name(d));
        ck_assert_uint_eq(tn_dtype_bytes(d, 3 * elements), 3 * bytes);
        ck_assert_uint_eq(tn_dtype_size(d), elements == 1 ? bytes : 0);
        ck_assert_int_eq(tn_dtype_parse(tn_dtype_name(d)), d);
    }
    ck_assert_int_eq(tn_dtype_block_elements(TN_Q4_K), 256);
    ck_assert_uint_eq(tn_dtype_block_bytes(TN_Q4_K), 144);
    ck_assert(tn_dtype_block_elements(TN_DTYPE_COUNT) == 0 && tn_dtype_block_bytes(TN_DTYPE_NONE) == 0);
    ck_assert(tn_dtype_bytes(TN_DTYPE_COUNT, 64) == 0 && tn_dtype_parse("f33") == TN_DTYPE_NONE);
    ck_assert(tn_dtype_parse("torch.bfloat16") == TN_BF16 && tn_dtype_parse("torch.float") == TN_F32);
    ck_assert(tn_dtype_parse("torch.") == TN_DTYPE_NONE && tn_dtype_parse("torch") == TN_DTYPE_NONE);
    ck_assert_str_eq(tn_dtype_name(TN_DTYPE_COUNT), "?");
}
END_TEST

/* ---- files ------------------------------------------------------------------------------------------------------ */

static void expect_unread(const char *path, size_t limit, const char *words)
{
    tn_error err = TN_ERROR_INIT;
    char *data = NULL;
    size_t size = 0;
    ck_assert_int_eq(file_read(path, limit, &data, &size, &err), TN_E_INPUT);
    ck_assert_ptr_null(data);
    ck_assert_msg(!strcmp(err.where, path) && strstr(err.message, words), "%s: %s", err.where, err.message);
}

/* Counts and bytes never wrap: what is no shape has no elements, and what is too much is as much as a number holds. */
START_TEST(counts_do_not_overflow)
{
    static const int64_t huge = INT64_MAX;
    float data;
    tn_tensor t = {.dtype = TN_F32, .ndim = 2, .shape = {huge, 2}, .stride = {2, 1}};
    ck_assert_int_eq(tn_tensor_count(&t), huge);
    t.shape[0] = (int64_t)1 << 32;
    t.shape[1] = (int64_t)1 << 32;
    ck_assert_int_eq(tn_tensor_count(&t), huge);
    t.shape[1] = 0;
    ck_assert_int_eq(tn_tensor_count(&t), 0);
    t.shape[1] = -2;
    ck_assert_int_eq(tn_tensor_count(&t), 0);
    t.ndim = TN_MAX_DIMS + 1;
    ck_assert_int_eq(tn_tensor_count(&t), 0);
    ck_assert_int_eq(tn_tensor_count(NULL), 0);
    ck_assert_uint_eq(tn_dtype_bytes(TN_F64, huge), SIZE_MAX);
    ck_assert_uint_eq(tn_dtype_bytes(TN_I8, huge), huge);
    ck_assert_uint_eq(tn_dtype_bytes(TN_F32, -1), 0);
    t = (tn_tensor){.dtype = TN_F64, .ndim = 1, .shape = {huge}};
    ck_assert_uint_eq(tensor_padded_bytes(&t), SIZE_MAX);
    int64_t shape[100] = {0};
    for (int i = 0; i < 100; i++)
        shape[i] = 2;
    static const int32_t wrong[] = {-1, TN_MAX_DIMS + 1, 100};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        t = tn_tensor_dense(&data, TN_F32, wrong[i], shape);
        ck_assert(tn_tensor_count(&t) == 0 && t.dtype == TN_DTYPE_NONE && !t.data);
    }
    t = tn_tensor_dense(&data, TN_F32, 2, NULL);
    ck_assert_int_eq(tn_tensor_count(&t), 0);
    t = tn_tensor_dense(&data, TN_F32, 2, (const int64_t[]){3, -1});
    ck_assert_int_eq(tn_tensor_count(&t), 0);
    t = tn_tensor_dense(&data, TN_F32, 3, (const int64_t[]){2, huge, 4});
    ck_assert_int_eq(t.stride[0], huge);
    t = tn_tensor_dense(&data, TN_F32, 0, NULL);
    ck_assert_int_eq(tn_tensor_count(&t), 1);
}
END_TEST

START_TEST(files_that_cannot_be_read)
{
    static const char shorter[] = "/sys/devices/system/cpu/online"; /* says 4096 bytes, gives a few          */
    char *folder = tempdir_new(), *fifo = tempdir_at(folder, "fifo"), *file = tempdir_at(folder, "file");
    struct stat st;
    tempdir_write(file, "12345", 5);
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    expect_unread("/no/such/file", 10, "cannot open: No such file or directory; check the path");
    expect_unread(folder, 10, "is not a regular file; give one");
    expect_unread(fifo, 10, "is not a regular file; give one"); /* and nobody waits for a writer            */
    expect_unread(file, 4, "has 5 bytes, at most 4 are sensible for such a file");
    if (stat(shorter, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 100)
        expect_unread(shorter, 1 << 20, "cannot read: Input/output error");
    tn_error err = TN_ERROR_INIT;
    size_t size;
    tempdir_write(file, "", 0);
    ck_assert_ptr_null(file_map(file, &size, &err));
    ck_assert(err.code == TN_E_INPUT && strstr(err.message, "is empty"));
}
END_TEST

/* ---- keys ------------------------------------------------------------------------------------------------------- */

static bool random_barred;

/* In place of the C library's, as a filter of system calls would have it. */
ssize_t getrandom(void *out, size_t size, unsigned flags)
{
    if (random_barred) {
        errno = ENOSYS;
        return -1;
    }
    int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    ssize_t n = read(file, out, size);
    (void)flags;
    close(file);
    return n;
}

START_TEST(a_key_without_the_system_call)
{
    siphash_key one = siphash_draw(), other = siphash_draw();
    ck_assert_mem_ne(&one, &other, sizeof one);
    random_barred = true;
    one = siphash_draw();
    const void *given = (const void *)getauxval(AT_RANDOM);
    ck_assert_ptr_nonnull(given);
    ck_assert_mem_eq(&one, given, sizeof one);
    random_barred = false;
}
END_TEST

/* ---- the edge --------------------------------------------------------------------------------------------------- */

static sigjmp_buf back;
static volatile uintptr_t seen;

static void with_info(int signal_number, siginfo_t *info, void *context)
{
    (void)signal_number;
    (void)context;
    seen = (uintptr_t)info->si_addr;
    siglongjmp(back, 1);
}

static void without_info(int signal_number)
{
    seen = (uintptr_t)signal_number;
    siglongjmp(back, 1);
}

/* No sanitizer looks at what is meant to fault. */
__attribute__((noinline, no_sanitize("undefined", "address"))) static void write_to(void *where)
{
    void *volatile place = where; /* the compiler is not to know where */
    *(volatile char *)place = 1;
}

static void throw(void *unused)
{
    void (*end)(void);
    (void)unused;
    *(void **)(void *)&end = dlsym(RTLD_DEFAULT, "_ZSt9terminatev");
    ck_assert_msg(end != NULL, "libstdc++ is not here");
    end();
}

static void nothing(void *unused)
{
    (void)unused;
}

START_TEST(what_falls_beyond_the_edge_comes_back)
{
    ck_assert(edge_call(nothing, NULL));
    ck_assert(!edge_call(write_to, (void *)(uintptr_t)64));
    ck_assert(!edge_call(throw, NULL));
    ck_assert(edge_call(nothing, NULL));
}
END_TEST

/* A program's own handler gets what is not the edge's: a fault elsewhere, and one while nothing is beyond the edge. */
START_TEST(other_faults_are_handed_on)
{
    struct sigaction own = {.sa_flags = SA_NODEFER | (_i == 0 ? SA_SIGINFO : 0)};
    if (_i == 0)
        own.sa_sigaction = with_info;
    else
        own.sa_handler = without_info;
    sigaction(SIGSEGV, &own, NULL);
    edge_install();
    void *page = mmap(NULL, 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(page != MAP_FAILED);
    const uintptr_t far = (uintptr_t)page;
    if (sigsetjmp(back, 1) == 0)
        write_to((void *)(uintptr_t)64);
    ck_assert_uint_eq(seen, _i == 0 ? 64 : SIGSEGV);
    seen = 0;
    if (sigsetjmp(back, 1) == 0)
        edge_call(write_to, page);
    ck_assert_uint_eq(seen, _i == 0 ? far : SIGSEGV);
}
END_TEST

START_TEST(a_fault_that_nobody_wants_ends_the_program)
{
    signal(SIGSEGV, SIG_DFL);
    edge_install();
    write_to((void *)(uintptr_t)64);
}
END_TEST

START_TEST(an_exception_elsewhere_ends_the_program)
{
    edge_install();
    throw(NULL);
}
END_TEST

START_TEST(the_nearest_name_is_found)
{
    static const char *const names[] = {"npu_fused_rope", "npu_fused_swiglu", "npu_fused_moe"};
    ck_assert_str_eq(nearest_of("npu_fused_rop", names, 3), "npu_fused_rope");
    ck_assert_str_eq(nearest_of("npu_fused_swilgu", names, 3), "npu_fused_swiglu");
    ck_assert_str_eq(nearest_of("fused_moe", names, 3), "npu_fused_moe");
    /* A part of a name, whole or with a mistake in a long one. */
    ck_assert_str_eq(nearest_of("swiglu", names, 3), "npu_fused_swiglu");
    ck_assert_str_eq(nearest_of("swilgu", names, 3), "npu_fused_swiglu");
    ck_assert_str_eq(nearest_of("rope", names, 3), "npu_fused_rope");
    ck_assert_str_eq(nearest_of("npu_fused", names, 3), "npu_fused_moe"); /* of equals the shortest */
    ck_assert_ptr_null(nearest_of("fu", names, 3));
    ck_assert_ptr_null(nearest_of("norm", names, 3));
    ck_assert_str_eq(tn_nearest_name("fused_mo", names, 3), "npu_fused_moe");
    ck_assert_ptr_null(tn_nearest_name("fused_moe", NULL, 3));
    ck_assert_ptr_null(nearest_of("", names, 3));
    ck_assert_ptr_null(nearest_of("x", names, 0));
    ck_assert_uint_eq(nearest_distance("abc", "abc"), 0);
    ck_assert_uint_eq(nearest_distance("abc", "acb"), 1);
    ck_assert_uint_eq(nearest_distance("", "abc"), 3);
    ck_assert_uint_eq(nearest_distance("kitten", "sitting"), 3);
    char longest[4096];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    ck_assert_uint_eq(nearest_distance(longest, ""), 127);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("base", 0);
    tcase_add_loop_test(tc, a_long_message_is_cut_between_characters, 0, 16);
    suite_add(tc, the_first_error_stays, what_could_deceive_is_escaped, quoted_text_is_json,
              sizes_of_blocks_fit_together, counts_do_not_overflow, files_that_cannot_be_read,
              a_key_without_the_system_call, what_falls_beyond_the_edge_comes_back, the_nearest_name_is_found);
    tcase_add_loop_test(tc, other_faults_are_handed_on, 0, 2);
    tcase_add_test_raise_signal(tc, a_fault_that_nobody_wants_ends_the_program, SIGSEGV);
    tcase_add_test_raise_signal(tc, an_exception_elsewhere_ends_the_program, SIGABRT);
    return suite_run();
}
