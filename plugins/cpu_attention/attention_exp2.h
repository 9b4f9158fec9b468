/* 2^r on -1/2 .. 1/2, for every width of vectors: a polynomial through Chebyshev nodes, 2^-26 off. With the rounding of
 * its evaluation it is within 2 units of the last place. */
#ifndef CPU_ATTENTION_EXP2_H
#define CPU_ATTENTION_EXP2_H

static const float attention_exp2_fine[] = {
    0x1.44138ap-13f, 0x1.5f0890p-10f, 0x1.3b2a54p-7f, 0x1.c6af6cp-5f, 0x1.ebfbe0p-3f, 0x1.62e430p-1f, 1.0f};

#endif
