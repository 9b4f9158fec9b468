/* Inside core: layers of several residual streams h [S,T,H] (Gemma 3n): attention and MLP see one of them, AltUp
 * predicts the others and corrects all by what came out, LAuReL is a low-rank path beside attention. */
#ifndef TENON_CORE_ALTUP_H
#define TENON_CORE_ALTUP_H

#include "models/decoder.h"
#include "models/layer_inputs.h"

enum { ALTUP_MAX_STREAMS = 16 };

typedef struct altup_spec {
    const char *altup_class, *laurel_class;
    const parts_norm_kind *norm;
    layer_inputs_spec inputs;
    int64_t hidden, streams, active, rank;
    bool scaled; /* the corrected stream times a row before it meets the layer's input            */
} altup_spec;

/* Specs of all three: altup_spec. */
extern const layer_kind altup_layer;
extern const stage_kind altup_first, altup_last; /* one stream to several and back                 */

#endif
