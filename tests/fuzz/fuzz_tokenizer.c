/* Any bytes as a tokenizer.json and, behind a NUL, a text: opened, encoded, decoded at once and token by token. */
#include "fuzz.h"
#include "fuzz_json.h"
#include "fuzz_text.h"

FUZZ_ENTRY(fuzz_tokenizer)

int fuzz_tokenizer(const uint8_t *data, size_t size)
{
    const uint8_t *rest;
    char path[64];
    size_t rest_size, first = fuzz_parts(data, size, &rest, &rest_size);
    int fd = fuzz_file(data, first, path);
    tn_error err = TN_ERROR_INIT;
    tn_tokenizer *tokenizer = tn_tokenizer_open(path, &err);
    close(fd);
    fuzz_agree(tokenizer != NULL, &err);
    if (tokenizer)
        fuzz_use_tokenizer(tokenizer, rest, rest_size);
    tn_tokenizer_free(tokenizer);
    return 0;
}
