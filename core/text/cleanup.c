/* Tidying the text of a token for two decoders: spaces in front of punctuation and of short English forms go. */
#include "text/buffer.h"
#include "text/decode.h"
#include "text/utf8.h"

#include <string.h>

bool cleanup_replace(const char *text, size_t length, const char *from, size_t from_length, const char *to, buffer *out)
{
    size_t to_length = strlen(to), i = 0;
    while (i < length) {
        if (from_length && length - i >= from_length && memcmp(text + i, from, from_length) == 0) {
            if (!buffer_add(out, to, to_length))
                return false;
            i += from_length;
            continue;
        }
        /* An empty text is found in front of every character, and at the end. */
        size_t n = from_length ? 1 : utf8_read(text + i, length - i).length;
        if ((!from_length && !buffer_add(out, to, to_length)) || !buffer_add(out, text + i, n))
            return false;
        i += n;
    }
    return from_length || buffer_add(out, to, to_length);
}

bool cleanup_english(const char *text, size_t length, buffer *out)
{
    static const char *const pairs[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                           {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                           {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    buffer work[2] = {{0}, {0}};
    bool memory = true;
    size_t count = sizeof pairs / sizeof pairs[0];
    for (size_t i = 0; i < count && memory; i++) {
        buffer *to = i + 1 == count ? out : &work[i % 2];
        if (to != out)
            to->size = 0;
        memory = cleanup_replace(text, length, pairs[i][0], strlen(pairs[i][0]), pairs[i][1], to);
        text = to->size ? to->data : "";
        length = to->size;
    }
    buffer_free(&work[0]);
    buffer_free(&work[1]);
    return memory;
}
