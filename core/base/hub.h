/* Inside core: models by the name that they have on the Hugging Face Hub, in the cache that its tools fill. Nothing is
 * ever fetched. */
#ifndef TENON_CORE_HUB_H
#define TENON_CORE_HUB_H

#include <tenon/error.h>

/* What a user means by path: path itself, where there is such a file or folder or where it is no name of the Hub's, as
 * that of a .gguf; else the snapshot that the cache has of the model ORG/NAME, NAME or ORG/NAME@REVISION. Owned:
 * free(). NULL: out of memory, or TN_E_INPUT with the command that fetches the model. */
char *hub_find(const char *path, tn_error *err);

/* An error about a file that is not there, in a snapshot that hub_find found for path, becomes one that says so. */
void hub_explain(const char *path, const char *found, tn_error *err);

#endif
