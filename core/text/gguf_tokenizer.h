/* Inside core/text: the tokenizer in the metadata of a .gguf. */
#ifndef TENON_CORE_TEXT_GGUF_TOKENIZER_H
#define TENON_CORE_TEXT_GGUF_TOKENIZER_H

#include "text/buffer.h"

/* Appends the tokenizer.json that stands for it. */
tn_status gguf_tokenizer_convert(const char *path, buffer *json, tn_error *err);

#endif
