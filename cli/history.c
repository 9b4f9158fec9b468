/* Where chat keeps the lines that were typed, from one conversation to the next. */
#include "line.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Makes the folders of a path, for this user alone. */
static void make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
}

bool history_path(char *path, size_t size)
{
    const char *state = secure_getenv("XDG_STATE_HOME"), *home = secure_getenv("HOME");
    int n = -1;
    if (state && state[0] == '/')
        n = snprintf(path, size, "%s/tenon/chat_history", state);
    else if (home && home[0] == '/')
        n = snprintf(path, size, "%s/.local/state/tenon/chat_history", home);
    if (n < 0 || (size_t)n >= size)
        return false;
    make_folders(path);
    return true;
}
