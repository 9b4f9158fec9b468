/* Reading protocol buffers: a walk over the fields of one message that never leaves its bytes. */
#include "text/sentencepiece.h"

static bool read_varint(protobuf *p, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 64 && p->at < p->size; shift += 7) {
        unsigned char byte = (unsigned char)p->data[p->at++];
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

/* Takes count bytes as a little-endian number. */
static bool read_fixed(protobuf *p, size_t count, uint64_t *value)
{
    *value = 0;
    if (p->size - p->at < count)
        return false;
    for (size_t i = 0; i < count; i++)
        *value |= (uint64_t)(unsigned char)p->data[p->at++] << 8 * i;
    return true;
}

bool protobuf_next(protobuf *p, protobuf_field *field)
{
    uint64_t key;
    *field = (protobuf_field){0};
    if (p->at >= p->size)
        return false;
    p->broken = !read_varint(p, &key) || key >> 3 == 0 || key >> 3 > UINT32_MAX;
    if (p->broken)
        return false;
    field->number = (uint32_t)(key >> 3);
    switch (key & 7) {
    case 0:
        p->broken = !read_varint(p, &field->value);
        break;
    case 1:
        p->broken = !read_fixed(p, 8, &field->value);
        break;
    case 2:
        p->broken = !read_varint(p, &field->value) || field->value > p->size - p->at;
        if (!p->broken) {
            field->bytes = p->data + p->at;
            field->length = (size_t)field->value;
            p->at += field->length;
        }
        break;
    case 5:
        p->broken = !read_fixed(p, 4, &field->value);
        break;
    default: /* groups, which are gone from the format, and what never was */
        p->broken = true;
    }
    field->wire = (unsigned)(key & 7);
    return !p->broken;
}
