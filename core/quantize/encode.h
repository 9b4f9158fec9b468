/* Inside core/quantize: values as blocks. */
#ifndef TENON_CORE_ENCODE_H
#define TENON_CORE_ENCODE_H

#include <stdbool.h>
#include <tenon/tensor.h>

/* Is it a type that rows can be written in: f32, bf16, f16, Q4_0, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, IQ4_NL, MXFP4? */
bool encode_has(tn_dtype dtype);

/* Does importance change what rows become in that type? */
bool encode_weighs(tn_dtype dtype);

/* Writes count finite values, which are whole blocks. Types of 32 values get the bits that gguf-py gives them; the
 * others scales that are searched for. A value beyond the largest of f16 makes a scale infinite. importance: [count]
 * above 0, how much it counts what each value is off by, for which all types but Q8_0 search; NULL: none is known. */
void encode_row(tn_dtype dtype, const float *x, const float *importance, int64_t count, void *out);

/* The nearest value of F8_E4M3, at most 448, ties to even. */
uint8_t encode_e4m3(float x);

/* The encoders of one block each (encode_32.c, encode_k.c). w: how much the square of what each value is off by counts;
 * NULL: as is usual for the type. */
typedef void encode_block(const float *x, const float *w, uint8_t *b);
encode_block encode_q4_0, encode_q5_0, encode_q5_1, encode_q8_0, encode_iq4_nl, encode_mxfp4;
encode_block encode_q4_k, encode_q5_k, encode_q6_k;

#endif
