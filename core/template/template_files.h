/* Inside core: where a checkpoint's folder keeps its chat template and special tokens. */
#ifndef TENON_CORE_TEMPLATE_FILES_H
#define TENON_CORE_TEMPLATE_FILES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <tenon/error.h>

typedef struct template_files {
    char *usual, *tools; /* sources; tools: the one for calls with tools, or NULL */
    size_t usual_size, tools_size;
    char name[64];  /* the file of the first, for messages */
    json_t *tokens; /* special tokens by their names       */
    bool missing;   /* there is no template, which is an error; tokens are read nevertheless */
} template_files;

/* path: a folder, a .gguf, or a file with a template. err is not NULL. */
tn_status template_files_read(template_files *files, const char *path, tn_error *err);
void template_files_free(template_files *files);

#endif
