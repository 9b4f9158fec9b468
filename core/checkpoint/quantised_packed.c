/* Codes that lie in words of 32 bits, in whichever direction, become rows of codes: a tile of rows and columns at a
 * time, so that what is read across the rows is read once from memory. */
#include "checkpoint/quantised.h"

#include <stdatomic.h>
#include <string.h>

enum { TILE_ROWS = 64, TILE_COLUMNS = 256, WORD_BITS = 32, TURN = 16, SQUARE = 8 };

/* Where AWQ has the codes of eight rows. */
static const uint8_t lane_of[SQUARE] = {0, 4, 1, 5, 2, 6, 3, 7};

/* Codes [first, first + n) of a stream; n <= TILE_COLUMNS, and first begins a word. */
static void read_stream(const quantised_packed *p, int64_t stream, int64_t first, int64_t n, uint8_t *codes)
{
    const char *at = p->words + stream * p->next + first * p->bits / WORD_BITS * p->step;
    uint64_t waiting = 0, mask = (1u << p->bits) - 1;
    int32_t have = 0;
    for (int64_t i = 0; i < n; i++) {
        if (have < p->bits) {
            uint32_t word;
            memcpy(&word, at, sizeof word);
            at += p->step;
            waiting |= (uint64_t)word << have;
            have += WORD_BITS;
        }
        codes[i] = (uint8_t)(waiting & mask);
        waiting >>= p->bits;
        have -= p->bits;
    }
    for (int64_t i = 0; p->lanes && i + 8 <= n; i += 8) {
        uint8_t lanes[8];
        memcpy(lanes, codes + i, sizeof lanes);
        for (int64_t k = 0; k < 8; k++)
            codes[i + k] = lanes[lane_of[k]];
    }
}

typedef struct unpack_job {
    const quantised_packed *packed;
    tn_tensor *out;
    int32_t add, limit;
    atomic_bool above;
} unpack_job;

static void read_tile(const quantised_packed *p, int64_t row, int64_t rows, int64_t column, int64_t columns,
                      uint8_t tile[TILE_ROWS][TILE_COLUMNS])
{
    uint8_t line[TILE_ROWS];
    for (int64_t i = 0; !p->columns && i < rows; i++)
        read_stream(p, row + i, column, columns, tile[i]);
    for (int64_t j = 0; p->columns && j < columns; j++) {
        read_stream(p, column + j, row, rows, line);
        for (int64_t i = 0; i < rows; i++)
            tile[i][j] = line[i];
    }
}

/* A row of a tile, in the type of out. */
static void write_row(const unpack_job *job, const uint8_t *codes, int64_t n, uint8_t *to)
{
    int32_t add = job->add;
    if (job->out->dtype == TN_U4)
        for (int64_t i = 0; i < n / 2; i++)
            to[i] = (uint8_t)((codes[2 * i] + add) | (codes[2 * i + 1] + add) << 4);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = (uint8_t)(codes[i] + add);
}

static bool is_above(const uint8_t *codes, int64_t n, int32_t limit)
{
    bool above = false;
    for (int64_t i = 0; i < n; i++)
        above |= codes[i] > limit;
    return above;
}

static void unpack_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    unpack_job *job = ctx;
    const tn_tensor *out = job->out;
    int64_t all = out->shape[1];
    uint8_t tile[TILE_ROWS][TILE_COLUMNS];
    (void)thread;
    for (int64_t row = begin * TILE_ROWS; row < end * TILE_ROWS && row < out->shape[0]; row += TILE_ROWS)
        for (int64_t column = 0; column < all; column += TILE_COLUMNS) {
            int64_t rows = out->shape[0] - row < TILE_ROWS ? out->shape[0] - row : TILE_ROWS;
            int64_t columns = all - column < TILE_COLUMNS ? all - column : TILE_COLUMNS;
            read_tile(job->packed, row, rows, column, columns, tile);
            for (int64_t i = 0; i < rows; i++) {
                if (is_above(tile[i], columns, job->limit))
                    atomic_store(&job->above, true);
                write_row(job, tile[i], columns,
                          (uint8_t *)out->data + tn_dtype_bytes(out->dtype, (row + i) * all + column));
            }
        }
}

/* ---- words that become words --------------------------------------------------------------------- */

/* Where a row's codes fill whole words, each of which keeps its place in the row: its bytes are those of U4 or, with
 * their highest bits changed over, of I8. */
static bool are_words(const unpack_job *job)
{
    const quantised_packed *p = job->packed;
    tn_dtype dtype = p->bits == 4 ? TN_U4 : p->bits == 8 ? TN_I8 : TN_DTYPE_NONE;
    return !p->columns && job->out->dtype == dtype && job->out->shape[1] * p->bits % WORD_BITS == 0 &&
           job->add == quantised_shift(p->bits, dtype) && job->limit == UINT8_MAX;
}

static void turn_words(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const unpack_job *job = ctx;
    const quantised_packed *p = job->packed;
    uint32_t change = p->bits == 8 ? 0x80808080u : 0, *out = job->out->data;
    int64_t rows = job->out->shape[0], words = job->out->shape[1] * p->bits / WORD_BITS;
    int64_t last = end * TURN < rows ? end * TURN : rows;
    (void)thread;
    for (int64_t row = begin * TURN; row < last; row += TURN)
        for (int64_t first = 0; first < words; first += TURN)
            for (int64_t i = first; i < first + TURN && i < words; i++)
                for (int64_t r = row; r < row + TURN && r < last; r++) {
                    uint32_t word;
                    memcpy(&word, p->words + i * p->step + r * p->next, sizeof word);
                    out[r * words + i] = word ^ change;
                }
}

/* Eight words of AWQ, which have a code of each of eight rows, become words with eight codes of one row each. */
static bool are_squares(const unpack_job *job)
{
    const quantised_packed *p = job->packed;
    return p->columns && p->lanes && p->bits == 4 && job->out->dtype == TN_U4 && job->out->shape[1] % SQUARE == 0 &&
           job->add == 0 && job->limit == UINT8_MAX;
}

/* Changes rows and columns of squares of 8 by 8 codes over: halves, then quarters, then single codes. */
static void turn_squares(uint32_t m[SQUARE][TURN])
{
    static const uint32_t masks[] = {0x0000ffff, 0x00ff00ff, 0x0f0f0f0f};
    for (int stage = 0, step = SQUARE / 2; step > 0; stage++, step /= 2)
        for (int a = 0; a < SQUARE; a++)
            for (int k = 0; k < TURN && !(a & step); k++) {
                uint32_t swapped = (m[a][k] >> (4 * step) ^ m[a + step][k]) & masks[stage];
                m[a + step][k] ^= swapped;
                m[a][k] ^= swapped << (4 * step);
            }
}

/* Columns [first, first + n) of words at eight rows of the file become eight rows of words each. */
static void read_squares(const quantised_packed *p, int64_t at, int64_t first, int64_t n, uint32_t rows[][TURN],
                         int64_t column)
{
    uint32_t square[SQUARE][TURN] = {0};
    for (int64_t i = 0; i < SQUARE; i++)
        memcpy(square[i], p->words + (at * SQUARE + i) * p->next + first * p->step, (size_t)n * sizeof square[i][0]);
    turn_squares(square);
    for (int64_t k = 0; k < n; k++)
        for (int64_t row = 0; row < SQUARE; row++)
            rows[k * SQUARE + row][column] = square[lane_of[row]][k];
}

/* So many words of rows at a time that lines of memory are written whole. */
static void turn_lanes(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const unpack_job *job = ctx;
    uint32_t rows[SQUARE * TURN][TURN], *out = job->out->data;
    int64_t words = job->out->shape[0] / SQUARE, across = job->out->shape[1] / SQUARE;
    (void)thread;
    for (int64_t first = begin * TURN; first < end * TURN && first < words; first += TURN)
        for (int64_t at = 0; at < across; at += TURN) {
            int64_t n = words - first < TURN ? words - first : TURN, wide = across - at < TURN ? across - at : TURN;
            for (int64_t i = 0; i < wide; i++)
                read_squares(job->packed, at + i, first, n, rows, i);
            for (int64_t row = 0; row < n * SQUARE; row++)
                memcpy(out + (first * SQUARE + row) * across + at, rows[row], (size_t)wide * sizeof *out);
        }
}

tn_dtype quantised_code_type(int32_t bits, int64_t columns)
{
    return bits <= 4 && columns % 2 == 0 ? TN_U4 : TN_I8;
}

int32_t quantised_shift(int32_t bits, tn_dtype dtype)
{
    return (dtype == TN_I8 ? 0 : 8) - (1 << (bits - 1));
}

tn_status quantised_unpack(const quantised *q, const quantised_part *part, const quantised_packed *packed, int64_t rows,
                           int64_t columns, tn_dtype dtype, int32_t add, int32_t limit, tn_tensor *out)
{
    unpack_job job = {.packed = packed, .out = out, .add = add, .limit = limit};
    size_t bytes = tn_dtype_bytes(dtype, rows * columns);
    *out = tn_tensor_dense(quantised_keep(q, part, bytes), dtype, 2, (int64_t[]){rows, columns});
    if (!out->data)
        return TN_E_MEMORY;
    if (are_words(&job))
        q->loop((rows + TURN - 1) / TURN, 1, turn_words, &job);
    else if (are_squares(&job))
        q->loop((rows / SQUARE + TURN - 1) / TURN, 1, turn_lanes, &job);
    else
        q->loop((rows + TILE_ROWS - 1) / TILE_ROWS, 1, unpack_rows, &job);
    return atomic_load(&job.above) ? TN_E_INPUT : TN_OK;
}
