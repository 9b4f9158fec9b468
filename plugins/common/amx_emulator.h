/* The tile instructions in C, after their descriptions in Intel's manual, for checks on machines without them. What
 * would fault there ends the process here, with a message: it is a defect of the kernel. */
#ifndef AMX_EMULATOR_H
#define AMX_EMULATOR_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xmmintrin.h>

/* Each thread has its own tiles. */
static _Thread_local struct {
    int rows[8], row_bytes[8]; /* 0: the tile is not there                                         */
    unsigned char data[8][16][64];
} amx;

static inline void amx_check(int good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "amx emulator: %s\n", what);
    abort();
}

static inline void amx_load_config(const amx_config *config)
{
    static const unsigned char zeros[16];
    amx_check(config->palette == 1, "ldtilecfg: palette is not 1");
    amx_check(config->start_row == 0 && !memcmp(config->reserved, zeros, sizeof config->reserved) &&
                  !memcmp(config->row_bytes + 8, zeros, 16) && !memcmp(config->rows + 8, zeros, 8),
              "ldtilecfg: a reserved field is not 0");
    memset(&amx, 0, sizeof amx);
    for (int t = 0; t < 8; t++) {
        amx_check(config->rows[t] <= 16 && config->row_bytes[t] <= 64, "ldtilecfg: a tile is too large");
        amx_check(!config->rows[t] == !config->row_bytes[t], "ldtilecfg: a tile has rows or columns alone");
        amx.rows[t] = config->rows[t];
        amx.row_bytes[t] = config->row_bytes[t];
    }
}

static inline void amx_release(void)
{
    memset(&amx, 0, sizeof amx);
}

static inline void amx_written(void)
{
}

static inline void amx_is_there(int tile)
{
    amx_check(tile >= 0 && tile < 8 && amx.rows[tile] > 0, "a tile is used that is not configured");
}

static inline void amx_zero(int tile)
{
    amx_is_there(tile);
    memset(amx.data[tile], 0, sizeof amx.data[tile]);
}

static inline void amx_load(int tile, const void *base, int64_t stride)
{
    amx_zero(tile); /* what lies behind the loaded bytes and rows becomes 0 */
    for (int r = 0; r < amx.rows[tile]; r++)
        memcpy(amx.data[tile][r], (const char *)base + r * stride, (size_t)amx.row_bytes[tile]);
}

static inline void amx_load_past(int tile, const void *base, int64_t stride)
{
    amx_load(tile, base, stride);
}

static inline void amx_store(int tile, void *base, int64_t stride)
{
    amx_is_there(tile);
    for (int r = 0; r < amx.rows[tile]; r++)
        memcpy((char *)base + r * stride, amx.data[tile][r], (size_t)amx.row_bytes[tile]);
}

/* The even or the odd elements of a row of bf16 as f32. Of fixed sizes, so that compilers make vectors of the loop. */
static inline void amx_widen(const unsigned char row[64], int odd, float out[16])
{
    uint32_t pairs[16];
    memcpy(pairs, row, sizeof pairs);
    for (int i = 0; i < 16; i++)
        pairs[i] = odd ? pairs[i] & 0xffff0000 : pairs[i] << 16;
    memcpy(out, pairs, sizeof pairs);
}

/* One row of c. Products of even and of odd elements are summed apart, each step rounded once; the two sums are added,
 * and then to c. Not inlined: no arithmetic moves out of the caller's mode of rounding. */
__attribute__((noinline)) static void amx_dot_row(float *c, const unsigned char a[64], unsigned char (*b)[64],
                                                  int pairs, int columns)
{
    float sum[2][16] = {{0}};
    for (int odd = 0; odd < 2; odd++) {
        float ones[16], row[16];
        amx_widen(a, odd, ones);
        for (int k = 0; k < pairs; k++) {
            amx_widen(b[k], odd, row);
            for (int n = 0; n < 16; n++)
                sum[odd][n] = fmaf(ones[k], row[n], sum[odd][n]);
        }
    }
    for (int n = 0; n < columns; n++)
        c[n] += sum[0][n] + sum[1][n];
}

/* Rounds to nearest, takes denormals for 0 and gives none, and neither asks nor changes the thread's MXCSR. */
static inline void amx_dot_bf16(int c, int a, int b)
{
    amx_is_there(c);
    amx_is_there(a);
    amx_is_there(b);
    amx_check(c != a && c != b && a != b, "tdpbf16ps: two operands are one tile");
    amx_check(amx.rows[a] == amx.rows[c] && amx.row_bytes[b] == amx.row_bytes[c] &&
                  amx.row_bytes[a] == 4 * amx.rows[b] && amx.row_bytes[c] % 4 == 0,
              "tdpbf16ps: the tiles' shapes do not fit");
    unsigned mode = _mm_getcsr();
    _mm_setcsr(0x1f80 | 0x8000 | 0x0040); /* no exceptions, flush to zero, denormals are zeros */
    for (int m = 0; m < amx.rows[c]; m++) {
        float row[16];
        memcpy(row, amx.data[c][m], sizeof row);
        amx_dot_row(row, amx.data[a][m], amx.data[b], amx.row_bytes[a] / 4, amx.row_bytes[c] / 4);
        memcpy(amx.data[c][m], row, sizeof row);
    }
    _mm_setcsr(mode);
}

#endif
