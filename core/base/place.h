/* Inside core: what a folder that is given as a checkpoint's holds in place of one. */
#ifndef TENON_CORE_PLACE_H
#define TENON_CORE_PLACE_H

#include <tenon/error.h>

/* TN_E_INPUT where weights in safetensors are missing and others lie there: an adapter's, pickles, GGUF that is to be
 * named itself. TN_OK also where there are none at all, which whoever reads them tells. */
tn_status place_check_weights(const char *folder, tn_error *err);

/* TN_E_INPUT where there is neither config.json nor a tokenizer: with the same words, or what to give instead. wanted:
 * the one of the two, "config.json" or "tokenizer.json", that it is looked into for. */
tn_status place_check(const char *folder, const char *wanted, tn_error *err);

#endif
