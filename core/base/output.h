/* Inside core: files that appear whole or not at all. */
#ifndef TENON_CORE_OUTPUT_H
#define TENON_CORE_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <tenon/error.h>

/* One file that is being written: beside its destination, so that renaming cannot cross file systems. */
typedef struct output {
    char *path, *temporary; /* temporary: NULL while there is no such file                           */
    int fd;
    bool unnamed; /* fd's file has no name yet                                                   */
} output;

/* out is {.fd = -1}, and closed in any case. */
tn_status output_open(output *out, const char *path, tn_error *err);
tn_status output_write(output *out, const void *data, size_t size, tn_error *err);

/* The file gets its name, in the place of what is there, once its data have reached the disk. */
tn_status output_commit(output *out, tn_error *err);

/* What was not committed is gone. */
void output_close(output *out);

#endif
