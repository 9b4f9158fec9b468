/* Ceilings with AMX-BF16. */
#include "device/ceiling.h"

#include <immintrin.h>

/* What LDTILECFG loads. Palette 1: eight tiles of at most 16 rows of 64 bytes. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* Six sums of 16 x 16 from two tiles that stay: a product takes 16 cycles and is there after some 52. */
double ceiling_dot_amx(int64_t rounds)
{
    tile_config config = {.palette = 1};
    uint16_t ones[16 * 32];
    for (int i = 0; i < 16 * 32; i++)
        ones[i] = 0x3f80;
    for (int t = 0; t < 8; t++) {
        config.rows[t] = 16;
        config.row_bytes[t] = 64;
    }
    /* The compiler takes loads of tiles for arithmetic on addresses and may drop what was written there before. */
    __asm__ volatile("" ::: "memory");
    _tile_loadconfig(&config);
    _tile_loadd(6, ones, 64);
    _tile_loadd(7, ones, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (int64_t i = 0; i < rounds; i++) {
        _tile_dpbf16ps(0, 6, 7);
        _tile_dpbf16ps(1, 6, 7);
        _tile_dpbf16ps(2, 6, 7);
        _tile_dpbf16ps(3, 6, 7);
        _tile_dpbf16ps(4, 6, 7);
        _tile_dpbf16ps(5, 6, 7);
    }
    _tile_release();
    return 6 * 2.0 * 16 * 16 * 32 * (double)rounds;
}
