/* Weights of tokens, and one of them by its place in their sum. */
#include "base/clones.h"

#include "generate/weights.h"

#include <stdbool.h>
#include <string.h>

/* x = n ln2 + r; the series of e^r ends where double precision does. */
static inline double exp_of(double x)
{
    static const double term[] = {
        1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
        1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       1.0 / 2,      1.0,         1.0};
    bool vanishes = x < -708.0;
    x = vanishes ? -708.0 : x;
    double shifted = x * 0x1.71547652b82fep+0 + 0x1.8p52; /* the integer n ends up in the low bits           */
    double n = shifted - 0x1.8p52;
    double r = (x - n * 0x1.62e42fee00000p-1) - n * 0x1.a39ef35793c76p-33, p = term[0];
    for (int k = 1; k < (int)(sizeof term / sizeof *term); k++)
        p = p * r + term[k];
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52; /* 2^n                                                                   */
    double power;
    memcpy(&power, &bits, sizeof power);
    return vanishes ? 0.0 : p * power;
}

double weights_exp(double x)
{
    return exp_of(x);
}

CLONES void weights_all(const float *restrict logits, int64_t n, double largest, double temperature,
                        double *restrict weight)
{
    for (int64_t i = 0; i < n; i++)
        weight[i] = exp_of(((double)logits[i] - largest) / temperature);
}

enum { BLOCK = 128, LANES = 16 };

/* In lanes, since compilers keep the order of one chain. */
CLONES static double sum_block(const double *weight, int64_t n)
{
    double lane[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++)
            lane[k] += weight[i + k];
    for (; i < n; i++)
        lane[0] += weight[i];
    for (int k = 0; k < LANES; k++)
        sum += lane[k];
    return sum;
}

static int64_t block_size(int64_t n, int64_t begin)
{
    return n - begin < BLOCK ? n - begin : BLOCK;
}

double weights_sum(const double *weight, int64_t n)
{
    double sum = 0;
    for (int64_t b = 0; b < n; b += BLOCK)
        sum += sum_block(weight + b, block_size(n, b));
    return sum;
}

int64_t weights_find(const double *weight, int64_t n, double target)
{
    double sum = 0, before = 0;
    int64_t block = 0, last = 0;
    for (int64_t b = 0; b < n && sum <= target; b += BLOCK) {
        double more = sum_block(weight + b, block_size(n, b));
        if (more > 0) {
            block = b;
            before = sum;
        }
        sum += more;
    }
    for (int64_t i = block; i < block + block_size(n, block) && before <= target; i++) {
        last = weight[i] > 0 ? i : last;
        before += weight[i];
    }
    return last;
}
