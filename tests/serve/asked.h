/* The API without HTTP: exchanges that keep what they are answered, and a small model behind it. */
#ifndef TENON_TESTS_ASKED_H
#define TENON_TESTS_ASKED_H

#include "../../serve/api.h"

/* The demo model with a chat template of its own (asked_template), or that of options->folder, opened for a test and
 * closed behind it. Options NULL: usual ones; model, folder and name are filled in. */
extern const char asked_template[];
api *asked_open(const api_options *options);

/* What came of a request. The text of a stream is its events as they stand. */
typedef struct asked {
    int status;
    char *text;
    json_t *json;   /* of an answer that is no stream                                            */
    json_t *events; /* of a stream: those that are JSON, as an array                              */
    bool done;      /* its last event was [DONE]                                                 */
    char retry_after[16];
} asked;

/* Asks and waits for the end; kept until the test ends. GET where body is NULL. */
const asked *asked_for(api *a, const char *path, const char *body);
const asked *asked_format(api *a, const char *path, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The same in two steps, and the client going away between them. */
exchange *asked_begin(api *a, const char *path, const char *body);
void asked_leave(exchange *x, bool late);
void asked_wait_text(exchange *x, const char *words); /* until it holds them                                */
const asked *asked_end(exchange *x);

/* Piece by piece and without keeping anything, for walks over failing allocations: asked_hand is what may lack memory.
 * asked_status waits for the end, and until nothing is active. Was it this thread that ended it? */
exchange *asked_make(const char *path, const char *body);
void asked_hand(api *a, exchange *x);
int asked_status(api *a, exchange *x);
bool asked_ended_here(const exchange *x);
void asked_forget(exchange *x);

/* Waits until nothing is active. */
void asked_idle(api *a);

/* A member deep inside: "choices.0.message.content". */
json_t *asked_at(const json_t *json, const char *path);
const char *asked_string(const json_t *json, const char *path);

/* The texts of a stream's choice, joined. key: "content", or NULL: of a completion. Owned: free(). */
char *asked_joined(const asked *r, int choice, const char *key);

#endif
