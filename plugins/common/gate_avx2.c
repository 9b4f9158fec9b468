/* The middle of gated MLPs, AVX2. */
#include "vec_avx2.h"

#include "gate_vec.h"

void gate_init_avx2(gate_kernels *kernels)
{
    *kernels = (gate_kernels){gate_cut_of, gate_glu, gate_grad};
}
