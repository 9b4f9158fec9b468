/* The test of a kernel of one's own: made-up sites and random inputs, compared with eager. Copy it and change 1, 2, 3.
 *
 *     cc check_kernel.c $(pkg-config --cflags --libs tenon) -o check_kernel
 *     ./check_kernel [FILE [bench]]    exit status 0: everything is right; bench: and how fast, against eager
 */
#include <stdio.h>
#include <tenon/tenon.h>

static const char *const plugin = "./hello_kernel.so"; /* 1. the file of the plugin                        */
static const char *const operation = "RMS_NORM";       /* 2. what its kernel computes                      */
static const tn_dtype dtypes[] = {TN_F32, TN_BF16};    /* 3. in these types, each of which must be right   */

static int on_row(void *ctx, const tn_check_row *row)
{
    uint64_t *right = ctx;
    if (row->kind == TN_CHECK_TIME)
        printf("%s, %s, %d tokens: %.1f us, eager %.1f us\n", row->kernel, row->shape, (int)row->max_tokens,
               row->kernel_seconds * 1e6, row->eager_seconds * 1e6);
    else if (row->result != TN_CHECK_PASSED)
        printf("%s, %s: %s\n", row->kernel, row->shape, row->reason);
    else
        *right |= (uint64_t)1 << row->dtype;
    return 0;
}

int main(int argc, char **argv)
{
    bool bench = argc > 2;
    tn_check_options options = {.size = sizeof options, .op = operation, .quick = !bench, .bench = bench};
    tn_error err = TN_ERROR_INIT;
    uint64_t right = 0;
    tn_status status = tn_check_plugin(argc > 1 ? argv[1] : plugin, &options, on_row, &right, &err);
    if (status != TN_OK)
        printf("%s: %s\n", err.where, err.message);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        bool passed = right >> dtypes[i] & 1;
        printf("%s %s: %s\n", operation, tn_dtype_name(dtypes[i]), passed ? "right" : "NOT RIGHT");
        status = passed ? status : TN_E_VERIFY;
    }
    return -status;
}
