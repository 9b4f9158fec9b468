/* Inside core/plugin: opening a plugin in a child process first, and remembering how that went. */
#ifndef TENON_CORE_PLUGIN_TRIAL_H
#define TENON_CORE_PLUGIN_TRIAL_H

#include "plugin/elfnote.h"

typedef struct trial_verdict {
    tn_plugin_state state; /* TN_PLUGIN_LOADED: the host may open it                               */
    bool lasting;          /* worth remembering: the file's own doing, and costly to find out again    */
    char reason[768];
} trial_verdict;

/* Opens the library with all symbols bound, lets it register and validates what it registers, all in a child. */
void trial_run(const char *path, const elfnote *note, double seconds, trial_verdict *verdict);

/* The limit in seconds: TENON_TRIAL_SECONDS, else 5. */
double trial_seconds(void);

/* verdict.c. What an earlier trial of the same content on this machine by this library said; false when unknown. */
bool verdict_load(const char *sha256, trial_verdict *verdict);

/* Remembers a verdict when there is a place for it; silently not otherwise. */
void verdict_store(const char *sha256, const trial_verdict *verdict);

#endif
