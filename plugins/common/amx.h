/* The tile instructions of AMX-BF16 that kernels use: the processor's own or, with TN_EMULATE_AMX, their documented
 * effect in C, which aborts where the processor would fault. Tiles are named by numbers written out, 0 to 7. Included
 * by one file of a plugin only: the emulated tiles are that file's. */
#ifndef AMX_H
#define AMX_H

#include <stdint.h>

/* What LDTILECFG loads. Palette 1: eight tiles of at most 16 rows of 64 bytes; a tile without rows is not there. */
typedef struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_config;

#ifdef TN_EMULATE_AMX
#include "amx_emulator.h"
#else
#include <immintrin.h>

/* The compiler takes a tile's load for arithmetic on an address: without this it may drop or delay what was written
 * there before. */
static inline void amx_written(void)
{
    __asm__ volatile("" ::: "memory");
}

static inline void amx_load_config(const amx_config *config)
{
    amx_written();
    _tile_loadconfig(config);
}

#define amx_release() _tile_release()
#define amx_zero(tile) _tile_zero(tile)
#define amx_load(tile, base, stride) _tile_loadd(tile, base, stride)
/* The same for what streams through: it does not push other things out of the first cache. */
#define amx_load_past(tile, base, stride) _tile_stream_loadd(tile, base, stride)
#define amx_store(tile, base, stride) _tile_stored(tile, base, stride)
/* c[m][n] += a[m][2k] * b[k][2n] + a[m][2k + 1] * b[k][2n + 1], over all k */
#define amx_dot_bf16(c, a, b) _tile_dpbf16ps(c, a, b)
#endif

#endif
