/* The kernels and devices that plugins brought. Entries are added, never changed in place or removed, so pointers to
 * them stay valid. */
#include "device/guard.h"
#include "eager/eager.h"
#include "plugin/registry.h"

#include "device/device.h"
#include "device/hoststate.h"
#include "device/tasks.h"
#include "device/visit.h"
#include "base/clock.h"
#include "base/notices.h"
#include "base/text.h"
#include "base/nearest.h"
#include "plugin/patience.h"
#include "plugin/plugins.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PROBE_SECONDS 10.0

typedef struct registry_machine { /* a device that a plugin brought                              */
    const tn_device *device;
    const char *file;
    bool probed, available;
    char reason[512];
} registry_machine;

static struct {
    pthread_mutex_t lock, probing;
    registry_kernel **kernels; /* ordered by device, then id                                      */
    size_t count, capacity;
    registry_machine **machines; /* in the order in which they came                                */
    size_t machine_count;
    const tn_group_kind *group; /* what a plugin brought                                           */
    const char *group_file;
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER, .probing = PTHREAD_MUTEX_INITIALIZER};

/* ---- adding ---------------------------------------------------------------------------------- */

static int compare(const char *device, const char *id, const registry_kernel *with)
{
    int c = strcmp(device, with->kernel.device);
    return c ? c : strcmp(id, with->kernel.id);
}

static registry_machine *find_machine(const char *name)
{
    for (size_t i = 0; i < registry.machine_count; i++)
        if (strcmp(registry.machines[i]->device->name, name) == 0)
            return registry.machines[i];
    return NULL;
}

/* Where (device, id) is or would be; found says which. */
static size_t place_of(const char *device, const char *id, bool *found)
{
    size_t low = 0, high = registry.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int c = compare(device, id, registry.kernels[middle]);
        if (c == 0) {
            *found = true;
            return middle;
        }
        if (c < 0)
            high = middle;
        else
            low = middle + 1;
    }
    *found = false;
    return low;
}

static tn_status check_new(const descriptor *d, const char *file, tn_error *err)
{
    for (size_t i = 0; i < d->kernel_count; i++) {
        const tn_kernel *k = &d->kernels[i];
        bool found;
        size_t at = place_of(k->device, k->id, &found);
        if (found)
            return tn_fail(err, TN_E_KERNEL, file,
                           "kernel '%s' for %s is already registered by %s; remove one of the two files", k->id,
                           k->device, registry.kernels[at]->file);
    }
    if (d->device && strcmp(d->device->name, eager_cpu.name) == 0)
        return tn_fail(err, TN_E_KERNEL, file, "device '%s' is built in; give the plugin's another name",
                       d->device->name);
    const registry_machine *m = d->device ? find_machine(d->device->name) : NULL;
    if (m)
        return tn_fail(err, TN_E_KERNEL, file, "device '%s' is already registered by %s; remove one of the two files",
                       d->device->name, m->file);
    if (d->group && registry.group)
        return tn_fail(err, TN_E_KERNEL, file, "it brings a group, '%s', as %s does; remove one of the two files",
                       d->group->name, registry.group_file);
    return TN_OK;
}

static bool reserve(size_t more)
{
    if (registry.count + more <= registry.capacity)
        return true;
    size_t capacity = (registry.count + more) * 2;
    registry_kernel **kernels = realloc(registry.kernels, capacity * sizeof *kernels);
    if (!kernels)
        return false;
    registry.kernels = kernels;
    registry.capacity = capacity;
    return true;
}

static void insert(registry_kernel *entry)
{
    bool found;
    size_t at = place_of(entry->kernel.device, entry->kernel.id, &found);
    memmove(&registry.kernels[at + 1], &registry.kernels[at], (registry.count - at) * sizeof(registry_kernel *));
    registry.kernels[at] = entry;
    registry.count++;
}

/* Room for one more device; NULL when there is no memory. */
static registry_machine *reserve_machine(void)
{
    registry_machine **machines = realloc(registry.machines, (registry.machine_count + 1) * sizeof *machines);
    if (!machines)
        return NULL;
    registry.machines = machines;
    return calloc(1, sizeof **machines);
}

/* Everything that can fail comes before the first insert. */
static tn_status add_locked(descriptor *d, const char *file, tn_error *err)
{
    tn_status status = check_new(d, file, err);
    if (status != TN_OK)
        return status;
    registry_kernel *entries = calloc(d->kernel_count ? d->kernel_count : 1, sizeof *entries);
    registry_machine *machine = d->device ? reserve_machine() : NULL;
    if (!entries || !reserve(d->kernel_count) || (d->device && !machine)) {
        free(entries);
        free(machine);
        return tn_fail(err, TN_E_MEMORY, file, "out of memory");
    }
    for (size_t i = 0; i < d->kernel_count; i++) {
        entries[i].kernel = d->kernels[i];
        entries[i].file = file;
        insert(&entries[i]);
    }
    if (d->kernel_count == 0)
        free(entries);
    if (machine) {
        *machine = (registry_machine){.device = d->device, .file = file};
        registry.machines[registry.machine_count++] = machine;
    }
    if (d->group) {
        registry.group = d->group;
        registry.group_file = file;
    }
    descriptor_keep(d); /* the entries point into it from now on                                  */
    return TN_OK;
}

tn_status registry_add(descriptor *d, const char *file, tn_error *err)
{
    const char *name = plugins_intern(file);
    if (!name)
        return tn_fail(err, TN_E_MEMORY, file, "out of memory");
    pthread_mutex_lock(&registry.lock);
    tn_status status = add_locked(d, name, err);
    pthread_mutex_unlock(&registry.lock);
    if (status == TN_OK)
        descriptor_free(d);
    return status;
}

/* ---- looking up --------------------------------------------------------------------------------- */

/* The kernels of one device lie side by side. */
static size_t range_of(const char *device, size_t *first)
{
    size_t count = 0;
    *first = 0;
    for (size_t i = 0; i < registry.count; i++)
        if (strcmp(registry.kernels[i]->kernel.device, device) == 0 && count++ == 0)
            *first = i;
    return count;
}

size_t registry_count(const char *device)
{
    size_t first;
    pthread_mutex_lock(&registry.lock);
    size_t count = range_of(device, &first);
    pthread_mutex_unlock(&registry.lock);
    return count;
}

registry_kernel *registry_at(const char *device, size_t index)
{
    size_t first;
    pthread_mutex_lock(&registry.lock);
    registry_kernel *kernel = index < range_of(device, &first) ? registry.kernels[first + index] : NULL;
    pthread_mutex_unlock(&registry.lock);
    return kernel;
}

registry_kernel *registry_any(size_t index)
{
    pthread_mutex_lock(&registry.lock);
    registry_kernel *kernel = index < registry.count ? registry.kernels[index] : NULL;
    pthread_mutex_unlock(&registry.lock);
    return kernel;
}

registry_kernel *registry_find(const char *device, const char *id)
{
    bool found;
    pthread_mutex_lock(&registry.lock);
    size_t at = place_of(device, id, &found);
    registry_kernel *kernel = found ? registry.kernels[at] : NULL;
    pthread_mutex_unlock(&registry.lock);
    return kernel;
}

const char *registry_nearest(const char *device, const char *id)
{
    const char *best = NULL;
    size_t first;
    pthread_mutex_lock(&registry.lock);
    size_t count = device ? range_of(device, &first) : registry.count;
    if (!device)
        first = 0;
    const char **ids = malloc((count ? count : 1) * sizeof *ids);
    for (size_t i = 0; ids && i < count; i++)
        ids[i] = registry.kernels[first + i]->kernel.id;
    if (ids)
        best = nearest_of(id, ids, count);
    free(ids);
    pthread_mutex_unlock(&registry.lock);
    return best;
}

/* ---- asking whether it is available ----------------------------------------------------------------- */

typedef struct probe {
    const char *who, *file;
    tn_status (*available)(tn_error *err);
    tn_error *err; /* shared with the child */
} probe;

/* What it may say is only whether it is there: one that changes the process says no. */

static int probe_body(void *ctx)
{
    probe *p = ctx;
    char changed[256];
    hoststate *before = hoststate_save();
    visit outer = visit_begin(p->who, p->file, "available");
    tn_status status = p->available(p->err);
    visit_end(outer, p->err);
    hoststate_restore(before, changed, sizeof changed);
    if (changed[0]) {
        tn_error_clear(p->err);
        status = tn_fail(p->err, TN_E_KERNEL, NULL, "when asked whether it is available it changed the %s", changed);
    }
    if (status != TN_OK)
        tn_fail(p->err, status, NULL, "it gives no reason");
    return 0;
}

/* Whether available says yes, in a child and then here. *status: an error where no child could be started. */
static bool ask(probe p, char *reason, size_t size, tn_status *status)
{
    reason[0] = '\0';
    *status = TN_OK;
    if (patience_gone(p.file, reason, size))
        return false;
    if (!p.available)
        return true;
    tn_error *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        snprintf(reason, size, "could not be asked: out of memory");
        *status = TN_E_MEMORY;
        return false;
    }
    char how[256];
    p.err = shared;
    double most = patience_most() < PROBE_SECONDS ? patience_most() : PROBE_SECONDS, begin = clock_seconds();
    tn_status ended = guard_run(probe_body, &p, most, how, sizeof how);
    bool yes = ended == TN_OK;
    double seconds = clock_seconds() - begin;
    if (!yes)
        snprintf(reason, size, "when asked whether it is available it %s", how);
    *status = ended == TN_E_KERNEL ? TN_OK : ended;
    patience_spend(p.file, seconds, !yes && seconds >= most ? reason : NULL);
    if (yes && shared->code == TN_OK) {
        tn_error_clear(shared);
        probe_body(&p);
    }
    if (yes && shared->code != TN_OK) {
        yes = false;
        shared->message[sizeof shared->message - 1] = '\0';
        snprintf(reason, size, "%.500s", shared->message);
    }
    munmap(shared, sizeof *shared);
    return yes;
}

tn_status registry_probe(registry_kernel *kernel, tn_error *err)
{
    tn_status status = TN_OK;
    pthread_mutex_lock(&registry.probing);
    if (!kernel->probed) {
        size_t tasks = tasks_count();
        kernel->available =
            ask((probe){.who = kernel->kernel.id, .file = kernel->file, .available = kernel->kernel.available},
                kernel->reason, sizeof kernel->reason, &status);
        if (kernel->kernel.available && tasks_left(tasks) > 0)
            notices_add("%s (%s) left a thread behind in available", kernel->kernel.id, kernel->file);
        kernel->probed = status == TN_OK;
        if (status != TN_OK)
            tn_fail(err, status, kernel->kernel.id, "%s", kernel->reason);
    }
    pthread_mutex_unlock(&registry.probing);
    return status;
}

const registry_verdict *registry_recall(registry_kernel *kernel, uint64_t shape)
{
    pthread_mutex_lock(&registry.lock);
    const registry_verdict *v = kernel->verdicts;
    while (v && v->shape != shape)
        v = v->next;
    pthread_mutex_unlock(&registry.lock);
    return v;
}

const registry_verdict *registry_remember(registry_kernel *kernel, uint64_t shape, const char *reason)
{
    registry_verdict *v = calloc(1, sizeof *v);
    if (!v)
        return NULL;
    v->shape = shape;
    v->trusted = !reason;
    snprintf(v->reason, sizeof v->reason, "%s", reason ? reason : "");
    pthread_mutex_lock(&registry.lock);
    v->next = kernel->verdicts;
    kernel->verdicts = v;
    pthread_mutex_unlock(&registry.lock);
    return v;
}

/* ---- devices ------------------------------------------------------------------------------------------ */

bool registry_parse_device(const char *text, char name[REGISTRY_NAME], int32_t *ordinal)
{
    size_t n = strcspn(text, ":");
    char *end = NULL;
    *ordinal = 0;
    if (n == 0 || n >= REGISTRY_NAME)
        return false;
    memcpy(name, text, n);
    name[n] = '\0';
    if (!text[n])
        return descriptor_is_device_name(name);
    long long number = text[n + 1] >= '0' && text[n + 1] <= '9' ? strtoll(text + n + 1, &end, 10) : -1;
    if (number < 0 || number > INT32_MAX || *end)
        return false;
    *ordinal = (int32_t)number;
    return descriptor_is_device_name(name);
}

/* "cpu, npu" */
static void list_machines(char *text, size_t size)
{
    size_t used = text_cut(text, size, "%s", eager_cpu.name);
    pthread_mutex_lock(&registry.lock);
    for (size_t i = 0; i < registry.machine_count; i++)
        used += text_cut(text + used, size - used, ", %s", registry.machines[i]->device->name);
    pthread_mutex_unlock(&registry.lock);
}

/* Is the plugins' device with this name here? Otherwise an error says what is missing. */
static const tn_device *machine_of(const char *name, tn_error *err)
{
    pthread_mutex_lock(&registry.lock);
    registry_machine *m = find_machine(name);
    pthread_mutex_unlock(&registry.lock);
    if (!m) {
        char names[256], refused[512];
        list_machines(names, sizeof names);
        plugins_tell_refused(refused, sizeof refused);
        tn_fail(err, TN_E_KERNEL, "device", "'%s' is not here: no plugin brings this device; there are: %s%s", name,
                names, refused);
        return NULL;
    }
    tn_status status = TN_OK;
    pthread_mutex_lock(&registry.probing);
    if (!m->probed) {
        m->available = ask((probe){.who = m->device->name, .file = m->file, .available = m->device->available},
                           m->reason, sizeof m->reason, &status);
        m->probed = status == TN_OK;
    }
    const tn_device *device = m->available ? m->device : NULL;
    if (status != TN_OK)
        tn_fail(err, status, "device", "%s: %s", name, m->reason);
    else if (!device)
        tn_fail(err, TN_E_KERNEL, "device", "'%s' is not available: %s; use %s", name, m->reason, eager_cpu.name);
    pthread_mutex_unlock(&registry.probing);
    return device;
}

const tn_device *registry_device_at(size_t index)
{
    pthread_mutex_lock(&registry.lock);
    const tn_device *device = index < registry.machine_count ? registry.machines[index]->device : NULL;
    pthread_mutex_unlock(&registry.lock);
    return device;
}

const tn_group_kind *registry_group(const char **file)
{
    pthread_mutex_lock(&registry.lock);
    const tn_group_kind *kind = registry.group;
    *file = registry.group_file;
    pthread_mutex_unlock(&registry.lock);
    return kind;
}

const char *registry_device_file(const char *name)
{
    pthread_mutex_lock(&registry.lock);
    const registry_machine *m = find_machine(name);
    const char *file = m ? m->file : NULL;
    pthread_mutex_unlock(&registry.lock);
    return file;
}

const tn_device *registry_device(const char *text, int32_t *ordinal, tn_error *err)
{
    char name[REGISTRY_NAME];
    *ordinal = 0;
    if (!text || strcmp(text, "auto") == 0)
        return &eager_cpu;
    if (!registry_parse_device(text, name, ordinal)) {
        tn_fail(err, TN_E_KERNEL, "device", "'%.64s' is not a device; give NAME or NAME:ORDINAL, such as %s:0", text,
                eager_cpu.name);
        return NULL;
    }
    return strcmp(name, eager_cpu.name) == 0 ? &eager_cpu : machine_of(name, err);
}
