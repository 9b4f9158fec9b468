/* Keys that clients must show. */
#ifndef TENON_SERVE_KEYS_H
#define TENON_SERVE_KEYS_H

#include <tenon/tenon.h>

typedef struct key_list {
    char **keys; /* owned                                                                          */
    size_t count;
    bool asked; /* without a file everybody may                                                      */
} key_list;

/* One key a line; empty lines and those that begin with # are none. A file that others than its owner can read is
 * refused, and so is one without keys. keys_close is due also after a failure. */
tn_status keys_read(key_list *list, const char *path, tn_error *err);
void keys_close(key_list *list);

/* authorization: "Bearer KEY"; plain: the key itself (X-Api-Key); each may be NULL. Takes the same time whichever key
 * it is, and whether it is one. */
bool keys_match(const key_list *list, const char *authorization, const char *plain);

#endif
