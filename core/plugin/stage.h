/* Inside core/plugin: where tn_register puts what constructors hand over. */
#ifndef TENON_CORE_STAGE_H
#define TENON_CORE_STAGE_H

#include <tenon/tenon.h>

/* What registered while one library was being opened by this thread. */
typedef struct stage {
    const tn_plugin *plugin; /* the first                                                        */
    size_t count;
} stage;

/* Constructors that run on this thread until stage_end register into stage. What registers in any other way from now on
 * is late. */
void stage_begin(stage *stage);
void stage_end(void);

/* What registered before the first plugin was opened here: linked into the program, or opened by it. Its code has run
 * already and its object is kept loaded. Returns the next one after *index that was not taken yet and moves *index to
 * it; NULL at the end. Start with *index 0; file: of the object that holds it. */
const tn_plugin *stage_foreign_next(size_t *index, const char **file);

/* One of those, taken or not, whose object is that file, or NULL. */
const tn_plugin *stage_foreign_in(uint64_t dev, uint64_t ino);

/* It has been dealt with. */
void stage_foreign_take(const tn_plugin *plugin);

/* How many registered otherwise: from a thread that a constructor started, a later call, a library that a plugin
 * opened. No trial has seen them, so nothing of them is read. */
size_t stage_late_count(void);

/* The file of the object that holds one of them; "" when none does. */
const char *stage_late_file(size_t index);

#endif
