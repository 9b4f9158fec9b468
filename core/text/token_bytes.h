/* Inside core: what a single token stands for in the middle of a text, as bytes. */
#ifndef TENON_CORE_TOKEN_BYTES_H
#define TENON_CORE_TOKEN_BYTES_H

#include <tenon/text.h>

#include "text/buffer.h"

typedef enum token_kind { TOKEN_ABSENT, TOKEN_SPECIAL, TOKEN_TEXT } token_kind;

/* Appends the bytes, which need not be whole characters. *kind says what the id is; only TOKEN_TEXT has bytes. What
 * decoders do at the beginning or the end of a text is left out. TN_E_INPUT: a decoder by which a token stands for
 * nothing by itself. */
tn_status token_bytes(const tn_tokenizer *tokenizer, int64_t id, buffer *out, token_kind *kind, tn_error *err);

#endif
