/* A grouped product and its gradients: the linear layers of three experts, of which the second has no tokens.
 *
 *     cc grouped_matmul.c $(pkg-config --cflags --libs tenon) -o grouped_matmul
 *     ./grouped_matmul                        eager
 *     ./grouped_matmul /path/to/plugins       by the best kernel that takes it
 */
#include <stdio.h>
#include <tenon/tenon.h>

enum { ROWS = 4, IN = 3, OUT = 2, EXPERTS = 3 };

static void print(const char *name, const float *values, int rows, int columns)
{
    for (int row = 0; row < rows; row++) {
        printf("%-7s", row == 0 ? name : "");
        for (int column = 0; column < columns; column++)
            printf(" %3g", (double)values[row * columns + column]);
        printf("\n");
    }
}

static tn_status product(const char *kernel, tn_error *err)
{
    /* Tokens sorted by expert, and how many each has. */
    float x[ROWS][IN] = {{1, 2, 3}, {0, 1, 0}, {2, 0, 1}, {1, 1, 1}};
    const int64_t counts[EXPERTS] = {2, 0, 2};
    float w[EXPERTS][OUT][IN] = {{{1, 0, 0}, {0, 1, 0}}, {{9, 9, 9}, {9, 9, 9}}, {{1, 1, 1}, {1, -1, 0}}};
    float y[ROWS][OUT], grad_y[ROWS][OUT] = {{1, 2}, {1, 2}, {1, 2}, {1, 2}}, grad_x[ROWS][IN],
                        grad_w[EXPERTS][OUT][IN];

    const int64_t x_shape[] = {ROWS, IN}, y_shape[] = {ROWS, OUT}, w_shape[] = {EXPERTS, OUT, IN};
    tn_tensor tx = tn_tensor_dense(x, TN_F32, 2, x_shape), ty = tn_tensor_dense(y, TN_F32, 2, y_shape);
    tn_tensor tw = tn_tensor_dense(w, TN_F32, 3, w_shape), tgy = tn_tensor_dense(grad_y, TN_F32, 2, y_shape);
    tn_tensor tgx = tn_tensor_dense(grad_x, TN_F32, 2, x_shape), tgw = tn_tensor_dense(grad_w, TN_F32, 3, w_shape);

    tn_status status = tn_grouped_matmul(&tx, &tw, 1, TN_LAYOUT_STACKED_OI, counts, EXPERTS, &ty, kernel, err);
    if (status == TN_OK)
        status = tn_grouped_matmul_backward(&tx, &tw, 1, TN_LAYOUT_STACKED_OI, counts, EXPERTS, &tgy, &tgx, &tgw,
                                            kernel, err);
    if (status != TN_OK)
        return status;
    print("y", &y[0][0], ROWS, OUT);
    print("grad_x", &grad_x[0][0], ROWS, IN);
    print("grad_w", &grad_w[0][0][0], EXPERTS * OUT, IN);
    return TN_OK;
}

int main(int argc, char **argv)
{
    tn_error err = TN_ERROR_INIT;
    tn_config *config = tn_config_new();
    tn_status status = TN_OK;
    if (argc > 1 && (status = tn_config_add_plugins(config, argv[1], &err)) == TN_OK)
        status = tn_scan(config, &err);
    if (status == TN_OK)
        status = product(argc > 1 ? "auto" : "none", &err);
    if (status != TN_OK)
        fprintf(stderr, "%s: %s: %s\n", argv[0], err.where, err.message);
    tn_config_free(config);
    return -status;
}
