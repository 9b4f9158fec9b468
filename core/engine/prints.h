/* Inside core: tokens that stand for pictures and sounds, told apart by what they show. */
#ifndef TENON_CORE_PRINTS_H
#define TENON_CORE_PRINTS_H

#include "engine/held.h"
#include "generate/media.h"

/* In a text's tokens, those that stand for something become negative numbers that are equal where they stand for the
 * same row of the same thing. m: of the text's prompt, as media_begin leaves it. Whoever does not know key cannot make
 * two pictures that are taken for the same. */
void prints_set(held_text *t, const media *m, uint64_t key);

/* The token that the model is given. */
int64_t prints_token(const media *m, int64_t token, int64_t place);

/* One for prints_set, drawn. */
uint64_t prints_draw_key(void);

#endif
