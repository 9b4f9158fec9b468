/* Inside core: what a checkpoint says of generating: generation_config.json. */
#ifndef TENON_CORE_GENERATION_H
#define TENON_CORE_GENERATION_H

#include "open/model.h"

/* Fills in m->eos, m->eos_count, m->sampling and m->stop_strings. m->config is open. Without the file there are
 * config.json's tokens and no sampling; a link to nothing, or a file that cannot be read, is TN_E_INPUT. */
tn_status generation_read(tn_model *m, tn_error *err);
void generation_free(tn_model *m);

#endif
