/* Right as long as its files are what they were when it was opened: its numbers lie in its file and in that of a
 * library beside it. Tests write others there while it is in use. */
#include "honest.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

float in_use_library_factor(void);

static const volatile struct {
    char mark[16];
    float factor;
} number = {"IN_USE_PLUGIN__", 1.0f};

static tn_status forward(const tn_call *call, tn_error *err)
{
    tn_status status = honest_forward(call, err);
    const tn_tensor *y = &call->out[0];
    int64_t n = y->shape[y->ndim - 1], rows = tn_tensor_count(y) / n;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++)
            honest_place(y, r)[i] *= number.factor * in_use_library_factor();
    return status;
}

/* Its own file, where it is allowed to: not in a trial. */
__attribute__((constructor)) static void begin(void)
{
    const char *deed = getenv("BAD_PLUGIN");
    Dl_info info;
    if (!deed || strcmp(deed, "its file changes while it is opened") != 0 || !dladdr((void *)&number, &info))
        return;
    int fd = open(info.dli_fname, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd >= 0) {
        (void)!write(fd, "", 1);
        close(fd);
    }
}

HONEST_PLUGIN("in_use", "test_in_use", forward);
