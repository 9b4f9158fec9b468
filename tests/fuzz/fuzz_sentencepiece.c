/* Any bytes as a tokenizer.model: opened, and its own last bytes encoded as a text. */
#include "fuzz.h"
#include "fuzz_folder.h"
#include "fuzz_text.h"
#include "text/sentencepiece.h"

FUZZ_ENTRY(fuzz_sentencepiece)

#ifdef TN_FUZZER
#include "fuzz_mutate.h"

static size_t write_varint(uint8_t *to, uint64_t value)
{
    size_t n = 0;
    for (; value >= 0x80; value >>= 7)
        to[n++] = (uint8_t)(value | 0x80);
    to[n++] = (uint8_t)value;
    return n;
}

/* A field that holds bytes, drawn among those of the message; false when it has none, or is no message. */
static bool draw_field(const uint8_t *data, size_t size, protobuf_field *drawn, size_t *begin, size_t *end)
{
    protobuf p = {.data = (const char *)data, .size = size};
    uint32_t seen = 0;
    size_t at = 0;
    for (protobuf_field f; protobuf_next(&p, &f); at = p.at) {
        if (f.wire != 2 || fuzz_random(++seen) != 0)
            continue;
        *drawn = f;
        *begin = at;
        *end = p.at;
    }
    return seen > 0 && !p.broken;
}

/* Removes, doubles or changes one field of a message, or one of the message that it is, and keeps lengths right, or
 * little would get as far as what the fields say. */
static size_t mutate_message(uint8_t *data, size_t size, size_t max_size, int depth)
{
    enum { KEY_MAX = 20 };
    protobuf_field field;
    size_t begin, end;
    if (fuzz_random(8) == 0 || !draw_field(data, size, &field, &begin, &end))
        return LLVMFuzzerMutate(data, size, max_size);
    uint32_t how = fuzz_random(8);
    if (how == 0) {
        memmove(data + begin, data + end, size - end);
        return size - (end - begin);
    }
    if (how == 1 && size + (end - begin) <= max_size) {
        memmove(data + end + (end - begin), data + end, size - end);
        memcpy(data + end, data + begin, end - begin);
        return size + (end - begin);
    }
    size_t others = size - (end - begin) + KEY_MAX;
    if (others + field.length >= max_size)
        return LLVMFuzzerMutate(data, size, max_size);
    size_t room = max_size - others, head = 0;
    uint8_t *payload = malloc(room + size), key[KEY_MAX];
    memcpy(payload, field.bytes, field.length);
    size_t length = depth == 0 && fuzz_random(2) ? mutate_message(payload, field.length, room, depth + 1)
                                                 : LLVMFuzzerMutate(payload, field.length, room);
    memcpy(payload + length, data + end, size - end);
    head += write_varint(key, (uint64_t)field.number << 3 | 2);
    head += write_varint(key + head, length);
    memcpy(data + begin, key, head);
    memcpy(data + begin + head, payload, length + size - end);
    free(payload);
    return begin + head + length + size - end;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    fuzz_state = seed;
    return mutate_message(data, size, max_size, 0);
}
#endif

int fuzz_sentencepiece(const uint8_t *data, size_t size)
{
    enum { TEXT = 256 };
    char path[PATH_MAX + 32];
    size_t length = size < TEXT ? size : TEXT;
    fuzz_folder_write("tokenizer.model", data, size);
    snprintf(path, sizeof path, "%s/tokenizer.model", fuzz_folder());
    tn_error err = TN_ERROR_INIT;
    tn_tokenizer *tokenizer = tn_tokenizer_open(path, &err);
    fuzz_agree(tokenizer != NULL, &err);
    if (tokenizer)
        fuzz_use_tokenizer(tokenizer, length ? data + size - length : NULL, length);
    tn_tokenizer_free(tokenizer);
    return 0;
}
