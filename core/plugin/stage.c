/* Where tn_register puts what constructors hand over. It checks nothing: it runs inside the dynamic linker. */
#include "plugin/stage.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

static _Thread_local stage *current;

/* Plugins that came without a scan. More than fit are ignored: nobody links that many into a program. */
static struct {
    pthread_mutex_t lock;
    size_t count;
    const tn_plugin *plugins[64];
    const char *files[64]; /* of the dynamic linker, which keeps them with the object             */
    bool taken[64];
} foreign = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* From the first open of ours on only what we open may register: before it, nobody but the program could. Of what
 * comes otherwise only the address is kept: this may run while another thread is inside the dynamic linker and waits.
 */
enum { LATE_MAX = 64 };
static atomic_bool opened;
static struct {
    pthread_mutex_t lock;
    size_t count;
    const tn_plugin *plugins[LATE_MAX];
} late = {.lock = PTHREAD_MUTEX_INITIALIZER};

void stage_begin(stage *to)
{
    atomic_store(&opened, true);
    *to = (stage){0};
    current = to;
}

void stage_end(void)
{
    current = NULL;
}

static void note_late(const tn_plugin *plugin)
{
    pthread_mutex_lock(&late.lock);
    if (late.count < LATE_MAX)
        late.plugins[late.count++] = plugin;
    pthread_mutex_unlock(&late.lock);
}

size_t stage_late_count(void)
{
    pthread_mutex_lock(&late.lock);
    size_t count = late.count;
    pthread_mutex_unlock(&late.lock);
    return count;
}

const char *stage_late_file(size_t index)
{
    Dl_info info;
    return dladdr(late.plugins[index], &info) && info.dli_fname ? info.dli_fname : "";
}

void tn_register(const tn_plugin *plugin)
{
    if (current) {
        if (current->count++ == 0)
            current->plugin = plugin;
        return;
    }
    if (atomic_load(&opened)) {
        note_late(plugin);
        return;
    }
    Dl_info info;
    if (!plugin || !dladdr(plugin, &info) || !info.dli_fname)
        return;
    /* The program may close what it opened; what has registered stays. The main program itself cannot be opened by
     * name and never leaves. */
    dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    pthread_mutex_lock(&foreign.lock);
    if (foreign.count < sizeof foreign.plugins / sizeof foreign.plugins[0]) {
        foreign.plugins[foreign.count] = plugin;
        foreign.files[foreign.count++] = info.dli_fname;
    }
    pthread_mutex_unlock(&foreign.lock);
}

const tn_plugin *stage_foreign_next(size_t *index, const char **file)
{
    const tn_plugin *plugin = NULL;
    pthread_mutex_lock(&foreign.lock);
    for (size_t i = *index; i < foreign.count && !plugin; i++) {
        if (foreign.taken[i])
            continue;
        plugin = foreign.plugins[i];
        *file = foreign.files[i];
        *index = i + 1;
    }
    pthread_mutex_unlock(&foreign.lock);
    return plugin;
}

const tn_plugin *stage_foreign_in(uint64_t dev, uint64_t ino)
{
    const tn_plugin *plugin = NULL;
    pthread_mutex_lock(&foreign.lock);
    for (size_t i = 0; i < foreign.count && !plugin; i++) {
        struct stat st;
        if (stat(foreign.files[i], &st) == 0 && (uint64_t)st.st_dev == dev && (uint64_t)st.st_ino == ino)
            plugin = foreign.plugins[i];
    }
    pthread_mutex_unlock(&foreign.lock);
    return plugin;
}

void stage_foreign_take(const tn_plugin *plugin)
{
    pthread_mutex_lock(&foreign.lock);
    for (size_t i = 0; i < foreign.count; i++)
        if (foreign.plugins[i] == plugin)
            foreign.taken[i] = true;
    pthread_mutex_unlock(&foreign.lock);
}
