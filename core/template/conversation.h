/* Inside core: a conversation as a template sees it. */
#ifndef TENON_CORE_CONVERSATION_H
#define TENON_CORE_CONVERSATION_H

#include "template/value.h"

#include <jansson.h>

/* The values of JSON. */
value conversation_value(sandbox *s, const json_t *json);

/* The messages, with reasoning under all of its names. Contents in parts become one text each, a line a part, where the
 * template does not take parts; parts other than texts are then an error. */
value conversation_messages(sandbox *s, const json_t *json, bool parts);

/* Marks the end of the last message's content; text: that content. Fails when it has none. */
value conversation_mark(sandbox *s, value messages, const string **text);

/* Cuts what was rendered at the mark; returns the size left. */
size_t conversation_cut(sandbox *s, const char *rendered, size_t size, const string *text);

#endif
