/* Inside core: the next token of a row, as tn_generate_options wants it chosen and told: of sessions and of engines. */
#ifndef TENON_CORE_NEXT_H
#define TENON_CORE_NEXT_H

#include "generate/sample.h"

/* Lets on_logits see and change logits [vocab], and chooses a token, the one behind `position` others of its row, of
 * which `step` were generated; the sampler has seen it then. *wish, a tn_next: anything but TN_NEXT_TOKEN is what
 * on_logits wants instead of one. */
tn_status next_choose(sampler *s, const tn_generate_options *options, int64_t row, int64_t step, int64_t position,
                      float *logits, int64_t *id, int *wish, tn_error *err);

/* Hands a token out; what the callbacks want of the row, a tn_next. */
int next_tell(const tn_generate_options *options, int64_t row, int64_t id);

/* Does the model end a text with it? */
bool next_is_end(const tn_model_info *info, int64_t id);

#endif
