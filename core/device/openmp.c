/* OpenMP's threads. GCC's run time keeps them for the thread that used them, and does not notice a fork; those of LLVM
 * and Intel do. There may be several of it: a plugin's own, in a package, has a name with more in it. */
#include "device/openmp.h"

#include "base/text.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>

enum { COPIES = 8, NAME = 1024, PAUSE_HARD = 2 };

typedef struct copies {
    size_t count;
    char names[COPIES][NAME];
} copies;

static int find(struct dl_phdr_info *info, size_t size, void *arg)
{
    copies *c = arg;
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    (void)size;
    if (slash && !strncmp(slash + 1, "libgomp", 7) && c->count < COPIES && strlen(info->dlpi_name) < NAME)
        text_cut(c->names[c->count++], NAME, "%s", info->dlpi_name);
    return 0;
}

void openmp_rest(void)
{
    copies c = {0};
    dl_iterate_phdr(find, &c);
    for (size_t i = 0; i < c.count; i++) {
        int (*rest)(int) = NULL;
        void *library = dlopen(c.names[i], RTLD_LAZY | RTLD_NOLOAD);
        if (library && (*(void **)(void *)&rest = dlsym(library, "omp_pause_resource_all")))
            rest(PAUSE_HARD); /* fails inside a parallel region, where nothing can be done         */
        if (library)
            dlclose(library);
    }
}
