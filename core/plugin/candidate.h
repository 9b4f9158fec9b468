/* Inside core/plugin: one file on its way from a folder to the list of plugins. */
#ifndef TENON_CORE_CANDIDATE_H
#define TENON_CORE_CANDIDATE_H

#include "plugin/trial.h"

#include <limits.h>
#include <sys/stat.h>

typedef struct candidate {
    struct candidate *next;
    const char *folder;   /* absolute, without links; owned by whoever scans                        */
    const char *name;     /* in the folder                                                         */
    char file[PATH_MAX];  /* folder/name                                                           */
    char shown[PATH_MAX]; /* how it is listed: file without what a terminal or JSON cannot bear     */
    char path[PATH_MAX];  /* what is opened: a link's target                                       */
    struct stat st;
    elfnote note;
    needs need;
    trial_verdict verdict;
    char sha256[65];
    char warning[256];     /* what its constructor changed                                          */
    bool named;            /* the user named this very file: no rules for folders, no earlier verdict  */
    bool known;            /* it is loaded already, under this or another name                        */
    tn_plugin_state state; /* TN_PLUGIN_LOADED after examining: it may be opened                      */
    tn_error why;          /* it is not                                                             */
} candidate;

/* The file at folder/name; NULL: out of memory, or the name is too long. Owned: candidate_free. folder is borrowed. */
candidate *candidate_new(const char *folder, const char *name);
void candidate_free(candidate *c);

/* Everything that comes before its code runs in this process: who may write it, its pin, its note, what it needs, its
 * trial. */
void candidate_examine(candidate *c, const tn_config *config);

/* Opens and registers it where examining found nothing against that. */
void candidate_open(candidate *c);

/* Lists it with what became of it, unless it is known. */
tn_status candidate_record(const candidate *c, tn_error *err);

#endif
