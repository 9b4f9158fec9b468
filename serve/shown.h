/* Pictures and sounds that messages bring along, as bytes within the request. Nothing is fetched. */
#ifndef TENON_SERVE_SHOWN_H
#define TENON_SERVE_SHOWN_H

#include "request.h"
#include "state.h"

enum { SHOWN_MOST = 64 };

typedef struct shown {
    int file[SHOWN_MOST]; /* open, without a name                                                   */
    bool sound[SHOWN_MOST];
    size_t count;
} shown;

/* Takes a part {"type": "image_url", "image_url": {"url": "data:...;base64,..."}} or {"type": "input_audio",
 * "input_audio": {"data": "..."}}, and gives what the template has in its place. Owned; NULL: e says why, with param.
 */
json_t *shown_take(shown *s, const json_t *part, const char *param, request_error *e);

/* What the model sees and hears of them. Owned; NULL: e says why. */
tn_media *shown_make(const shown *s, const api *a, request_error *e);

void shown_close(shown *s);

#endif
