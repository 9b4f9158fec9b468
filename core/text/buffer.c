/* Growing arrays: bytes, ids and pieces of a text. */
#include "text/buffer.h"

#include "text/bpe.h"
#include "text/doc.h"
#include "text/spans.h"

#include <stdlib.h>
#include <string.h>

/* A hostile file can make a short text grow without end; nothing honest comes near this. */
#define BUFFER_LIMIT ((size_t)1 << 30)

void *buffer_grow(void *array, size_t *capacity, size_t need, size_t element)
{
    if (need <= *capacity && array)
        return array;
    size_t wanted = *capacity < 16 ? 16 : *capacity;
    while (wanted < need)
        wanted = wanted > SIZE_MAX / 2 ? need : wanted * 2;
    if (wanted > SIZE_MAX / element)
        return NULL;
    void *grown = realloc(array, wanted * element);
    if (grown)
        *capacity = wanted;
    return grown;
}

bool buffer_reserve(buffer *b, size_t extra)
{
    size_t limit = b->limit ? b->limit : BUFFER_LIMIT;
    if (extra > limit || b->size + extra > limit) {
        b->full = true;
        return false;
    }
    char *grown = buffer_grow(b->data, &b->capacity, b->size + extra, 1);
    if (grown)
        b->data = grown;
    return grown != NULL;
}

size_t buffer_bound(size_t length)
{
    const size_t least = (size_t)64 << 20;
    return length > least / 64 ? (length < BUFFER_LIMIT / 64 ? length * 64 : BUFFER_LIMIT) : least;
}

tn_status buffer_failed(const buffer *b, place at, tn_error *err)
{
    if (!b->full)
        return tn_fail(err, TN_E_MEMORY, at.file, "out of memory");
    return tn_fail(err, TN_E_INPUT, at.file,
                   "%s: makes more than %zu MB of this text, which no honest file does; use another file or less text",
                   at.component, (b->limit ? b->limit : BUFFER_LIMIT) >> 20);
}

bool buffer_add(buffer *b, const char *text, size_t length)
{
    if (length == 0)
        return true;
    if (!buffer_reserve(b, length))
        return false;
    memcpy(b->data + b->size, text, length);
    b->size += length;
    return true;
}

void buffer_free(buffer *b)
{
    free(b->data);
    *b = (buffer){0};
}

bool buffer_add_id(id_list *list, int64_t id)
{
    int64_t *grown = buffer_grow(list->ids, &list->capacity, list->count + 1, sizeof *grown);
    if (!grown)
        return false;
    list->ids = grown;
    list->ids[list->count++] = id;
    return true;
}

bool buffer_repeat_ids(id_list *list, size_t first, size_t count)
{
    int64_t *grown = buffer_grow(list->ids, &list->capacity, list->count + count, sizeof *grown);
    if (!grown)
        return false;
    list->ids = grown;
    for (size_t i = 0; i < count; i++)
        grown[list->count + i] = grown[first + i];
    list->count += count;
    return true;
}

bool buffer_add_piece(pieces *p, size_t start, size_t end, int64_t id)
{
    span *grown = buffer_grow(p->spans, &p->capacity, p->count + 1, sizeof *grown);
    if (!grown)
        return false;
    p->spans = grown;
    p->spans[p->count++] = (span){start, end, id};
    return true;
}

bool buffer_append_piece(pieces *p, const char *text, size_t length, int64_t id)
{
    size_t start = p->text.size;
    return buffer_add(&p->text, text, length) && buffer_add_piece(p, start, start + length, id);
}

void buffer_free_pieces(pieces *p)
{
    buffer_free(&p->text);
    free(p->spans);
    *p = (pieces){0};
}
