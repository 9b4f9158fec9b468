/* Inside core/plugin: opening a plugin in a child process first, and remembering how that went. */
#ifndef TENON_CORE_PLUGIN_TRIAL_H
#define TENON_CORE_PLUGIN_TRIAL_H

#include "plugin/elfnote.h"
#include "plugin/needs.h"

typedef struct trial_verdict {
    tn_plugin_state state; /* TN_PLUGIN_LOADED: the host may open it                               */
    bool lasting;          /* worth remembering: the file's own doing, and costly to find out again    */
    bool brief;            /* but not for long: somebody else may be to blame                          */
    char reason[768];
    objects_list objects; /* every library that came in with it and that this process does not have   */
} trial_verdict;

/* Opens the library with all symbols bound, lets it register, validates what it registers and lets it end, all in a
 * child. named: its libraries may be anyone's. n: what it is known to need. Owned: trial_free. */
void trial_run(const char *path, const elfnote *note, const needs *n, bool named, trial_verdict *verdict);
void trial_free(trial_verdict *verdict);

/* verdict.c. What an earlier trial of the same content on this machine by this library said, if every library that came
 * in with it is the same now; false when unknown. */
bool verdict_load(const char *sha256, const needs *n, trial_verdict *verdict);

/* Remembers a verdict when there is a place for it; silently not otherwise. */
void verdict_store(const char *sha256, const trial_verdict *verdict);

#endif
