/* Ceilings with AMX-BF16. */
#include "../../plugins/common/amx.h"
#include "ceiling.h"

/* Four sums of 16 x 16 from tiles that stay: a product takes 16 cycles and is there after some 52. */
double ceiling_dot_amx(int64_t rounds)
{
    amx_config config = {.palette = 1};
    uint16_t ones[16 * 32];
    for (int i = 0; i < 16 * 32; i++)
        ones[i] = 0x3f80;
    for (int t = 0; t < 8; t++) {
        config.rows[t] = 16;
        config.row_bytes[t] = 64;
    }
    amx_load_config(&config);
    amx_written();
    amx_load(4, ones, 64);
    amx_load(5, ones, 64);
    amx_load(6, ones, 64);
    amx_load(7, ones, 64);
    amx_zero(0);
    amx_zero(1);
    amx_zero(2);
    amx_zero(3);
    for (int64_t i = 0; i < rounds; i++) {
        amx_dot_bf16(0, 4, 6);
        amx_dot_bf16(1, 5, 6);
        amx_dot_bf16(2, 4, 7);
        amx_dot_bf16(3, 5, 7);
    }
    amx_release();
    return 4 * 2.0 * 16 * 16 * 32 * (double)rounds;
}
