/* The middle of gated MLPs, AVX-512. */
#include "vec_avx512.h"

#include "gate_vec.h"

void gate_init_avx512(gate_kernels *kernels)
{
    *kernels = (gate_kernels){gate_cut_of, gate_glu, gate_grad};
}
