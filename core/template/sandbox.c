/* Bounded memory, time and depth for templates, and the way out of them. */
#include "template/sandbox.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE ((size_t)64 << 10)
#define ALIGN ((size_t)16)

struct sandbox_piece {
    sandbox_piece *before;
    _Alignas(16) char data[];
};

void sandbox_start(sandbox *s, const char *name, tn_error *err)
{
    memset(s, 0, sizeof *s);
    s->name = name;
    s->err = err;
    s->line = 1;
    s->steps = SANDBOX_STEPS;
    s->memory = SANDBOX_MEMORY;
    s->deepest = SANDBOX_DEPTH;
}

void sandbox_free(sandbox *s)
{
    while (s->piece) {
        sandbox_piece *before = s->piece->before;
        free(s->piece);
        s->piece = before;
    }
    s->next = NULL;
    s->left = 0;
}

_Noreturn void sandbox_fail(sandbox *s, const char *format, ...)
{
    char where[300], message[768];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    snprintf(where, sizeof where, "%.200s:%d", s->name, s->line);
    s->status = tn_fail(s->err, TN_E_INPUT, where, "%s", message);
    longjmp(s->out, 1);
}

_Noreturn void sandbox_out_of_memory(sandbox *s)
{
    s->status = tn_fail(s->err, TN_E_MEMORY, s->name, "out of memory");
    longjmp(s->out, 1);
}

static void new_piece(sandbox *s, size_t bytes)
{
    size_t size = bytes > PIECE / 4 ? bytes : PIECE;
    if (size > s->memory)
        sandbox_fail(s, "the template takes more than %zu MB of memory; simplify it, or shorten the conversation",
                     SANDBOX_MEMORY >> 20);
    sandbox_piece *piece = calloc(1, sizeof *piece + size);
    if (!piece)
        sandbox_out_of_memory(s);
    s->memory -= size;
    piece->before = s->piece;
    s->piece = piece;
    s->next = piece->data;
    s->left = size;
}

void *sandbox_alloc(sandbox *s, size_t bytes)
{
    if (bytes > SANDBOX_MEMORY)
        bytes = SANDBOX_MEMORY + ALIGN; /* which new_piece refuses */
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (bytes == 0)
        bytes = ALIGN;
    sandbox_step(s, 1 + bytes / 64);
    if (bytes > s->left)
        new_piece(s, bytes);
    void *data = s->next;
    s->next += bytes;
    s->left -= bytes;
    return data;
}

void *sandbox_array(sandbox *s, size_t count, size_t each)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, each, &bytes))
        bytes = SIZE_MAX;
    return sandbox_alloc(s, bytes);
}

void sandbox_step(sandbox *s, size_t count)
{
    s->steps -= count > (size_t)SANDBOX_STEPS ? SANDBOX_STEPS : (int64_t)count;
    if (s->steps < 0)
        sandbox_fail(s, "the template takes more than %lld steps; simplify it, or shorten the conversation",
                     (long long)SANDBOX_STEPS);
}

void sandbox_enter(sandbox *s)
{
    sandbox_step(s, 1);
    if (++s->depth > s->deepest)
        sandbox_fail(s, "nested deeper than %d levels; simplify the template", s->deepest);
}

void sandbox_leave(sandbox *s)
{
    s->depth--;
}
