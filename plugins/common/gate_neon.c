/* The middle of gated MLPs, NEON. */
#include "vec_neon.h"

#include "gate_vec.h"

void gate_init_neon(gate_kernels *kernels)
{
    *kernels = (gate_kernels){gate_cut_of, gate_glu, gate_grad};
}
