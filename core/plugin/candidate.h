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
    bool locked_out;       /* the lock knows it not, or another                                      */
    tn_plugin_state state; /* TN_PLUGIN_LOADED after examining: it may be opened                      */
    tn_error why;          /* it is not                                                             */
} candidate;

/* The file at folder/name; NULL: out of memory, or the name is too long. Owned: candidate_free. folder is borrowed. */
candidate *candidate_new(const char *folder, const char *name);
void candidate_free(candidate *c);

/* ---- the steps that load.c takes ---- */

/* Opens, checks and reads the file, and makes its digest. content is owned. */
tn_status candidate_read(candidate *c, char **content, tn_error *err);

/* Is it the file that the configuration pins, where it pins any? */
tn_status candidate_check_pin(const candidate *c, const tn_config *config, tn_error *err);

/* The same of the libraries that come in with it: they run like the plugin. */
tn_status candidate_check_library_pins(const candidate *c, objects_list *libraries, const tn_config *config,
                                       tn_error *err);

/* Is it the file that the configuration's lock knows, where there is a lock? With its libraries, as above. */
tn_status candidate_check_lock(candidate *c, const tn_config *config, tn_error *err);
tn_status candidate_check_library_lock(candidate *c, objects_list *libraries, const tn_config *config, tn_error *err);

/* Opens it in a child process, or recalls how that went. TN_OK: the host may open it. */
tn_status candidate_try(candidate *c, tn_error *err);

/* The files that were read are still those at their paths: what is opened is what was tried. */
tn_status candidate_check_unchanged(const candidate *c, tn_error *err);

/* From here on whoever writes to the file, or to a library that came in with it, changes nothing here. before: what was
 * loaded before it was opened; threads: that its constructor left behind. */
tn_status candidate_take_pages(const candidate *c, const objects_loaded *before, size_t threads, tn_error *err);

/* Lists it with what became of it, unless it is known. */
tn_status candidate_record(const candidate *c, tn_error *err);

#endif
