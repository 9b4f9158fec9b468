/* When oneDNN makes code: at the first product of a type, and not in the middle of a text, where memory may be short.
 */
#include "eager/gemm.h"
#include "suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes that may run and are of no file. */
static size_t code_bytes(void)
{
    char line[8192], rights[8];
    size_t bytes = 0;
    unsigned long long start, end, inode;
    FILE *maps = fopen("/proc/self/maps", "re");
    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%llx-%llx %7s %*s %*s %llu", &start, &end, rights, &inode) == 4 && rights[2] == 'x' &&
            inode == 0)
            bytes += (size_t)(end - start);
    fclose(maps);
    return bytes;
}

static const tn_dtype types[] = {TN_F32, TN_BF16};
enum { MOST = 1 << 22 };

START_TEST(code_is_made_once)
{
    static const int64_t rows[] = {1, 4, 5, 6, 12, 15, 16, 17, 48, 64, 128, 500, 512},
                         columns[] = {1, 8, 24, 64, 96, 128, 512, 1024, 11264, 40000},
                         inner[] = {1, 8, 24, 64, 128, 300, 1024, 4096};
    tn_dtype type = gemm_type(types[_i], types[_i]);
    void *a = calloc(MOST, sizeof(float)), *w = calloc(MOST, sizeof(float));
    float *c = calloc(MOST, sizeof *c);
    ck_assert(a && w && c);
    gemm_context *context = gemm_acquire();
    gemm_shape s = {
        .type = type, .w_type = type, .form = GEMM_NT, .m = 3, .n = 8, .k = 8, .lda = 8, .ldw = 8, .ldc = 8};
    gemm_run(context, &s, a, w, c, NULL);
    size_t before = code_bytes();
    printf("%s: %zu KiB of code\n", tn_dtype_name(type), before >> 10);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t j = 0; j < sizeof columns / sizeof *columns; j++)
            for (size_t l = 0; l < 3 * sizeof inner / sizeof *inner; l++) {
                int64_t m = rows[i], n = columns[j], k = inner[l / 3];
                s.form = (gemm_form)(l % 3);
                s.m = m;
                s.n = s.ldc = n;
                s.k = k;
                s.lda = s.form == GEMM_TN ? m : k;
                s.ldw = s.form == GEMM_NT ? k : n;
                if (m * k > MOST || n * k > MOST || m * n > MOST || m * n * k > INT64_C(1) << 27)
                    continue;
                gemm_run(context, &s, a, w, c, NULL);
                ck_assert_msg(code_bytes() == before, "form %d, %lld x %lld x %lld: %zu KiB more", (int)s.form,
                              (long long)m, (long long)n, (long long)k, (code_bytes() - before) >> 10);
            }
    ck_assert_int_eq(gemm_check(NULL), TN_OK);
    gemm_release(context);
    free(a);
    free(w);
    free(c);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("code of oneDNN", 600);
    tcase_add_loop_test(tc, code_is_made_once, 0, 2);
    return suite_run();
}
