/* Pictures and sounds of a conversation's messages, in the order in which these name them. Of run and chat. */
#ifndef TENON_ATTACHED_H
#define TENON_ATTACHED_H

#include "cli.h"

typedef struct attached_list {
    char **name; /* owned                                                                            */
    size_t count;
} attached_list;

typedef struct attached {
    attached_list images, sounds;
    tn_media *media; /* of all of them; NULL: none, or to be made                                    */
    uint64_t state;  /* another number where the files are others                                    */
} attached;

void attached_close(attached *a);

tn_status attached_add(attached *a, const char *name, size_t length, bool sound, tn_error *err);

/* Forgets the last ones of each kind. */
void attached_drop(attached *a, size_t images, size_t sounds);

/* Has the model's processor make media of them, where that is not so already. */
tn_status attached_read(attached *a, const tn_model *model, tn_error *err);

/* The next word of text that begins with @ and names a file that is there, whose suffix is one of a picture's or a
 * sound's; a mark at a sentence's end is none of its name. at: where the @ is; length: of the name behind it. */
typedef struct attached_word {
    size_t at, length;
    bool sound;
} attached_word;
bool attached_find(const char *text, size_t length, size_t from, attached_word *word);

#endif
