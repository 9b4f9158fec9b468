/* Writing a lock, and opening a model and finding plugins with it. */
#include "memory_pieces.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Without taking memory. */
static void write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    size_t length = strlen(text);
    if (fd < 0 || write(fd, text, length) != (ssize_t)length || close(fd) != 0)
        abort();
}

tn_status piece_lock(const char *path, uint64_t *sum, tn_error *err)
{
    char lock[PATH_MAX];
    char *text = tn_lock_model(path, NULL, err);
    if (!text)
        return err->code;
    piece_add(sum, text, strlen(text));
    snprintf(lock, sizeof lock, "%s/model.lock", pieces_folder());
    write_text(lock, text);
    free(text);
    const tn_model_options options = {.size = sizeof options, .lock = lock};
    tn_config *config = tn_config_new();
    tn_status status =
        config ? tn_config_set_lock(config, lock, err) : tn_fail(err, TN_E_MEMORY, "config", "out of memory");
    tn_config_free(config);
    tn_model *m = status == TN_OK ? tn_model_open(path, &options, err) : NULL;
    tn_model_close(m);
    return m ? TN_OK : err->code;
}
