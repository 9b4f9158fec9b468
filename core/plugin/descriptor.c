/* A plugin's descriptor, read, checked and copied whole. A struct may be shorter or longer than the host's: fields that
 * the plugin's version lacks are zero, bytes that the host does not know must be zero. Arrays are walked with the
 * plugin's own element size. Nothing of the plugin's memory is used before it was copied, and a pointer to nothing is
 * an error like any other. */
#include "plugin/descriptor.h"

#include "base/text.h"
#include "op/match.h"
#include "plugin/peek.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STRUCT_MAX = 4096, /* bytes; a larger size is a mistake, not a later version                  */
    KERNELS_MAX = 1024,
    IMPLS_MAX = 64,
    TEXT_MAX = 256
};

#define DEVICE_NAME_RULE "a device's name is 1 to 31 lower case letters, digits, '_' or '-', and not 'auto' or 'none'"

/* One struct of the plugin. what names it in messages. */
typedef struct source {
    const char *what;
    uint32_t size;
    const char *from;       /* where it lies in the plugin                                           */
    char bytes[STRUCT_MAX]; /* the copy                                                            */
} source;

static tn_status not_readable(const char *what, const char *file, tn_error *err)
{
    return tn_fail(err, TN_E_KERNEL, file, "%s: a pointer leads to no memory; a plugin registers constant data", what);
}

static tn_status open_struct(source *s, const void *raw, const char *what, const char *file, tn_error *err)
{
    s->what = what;
    s->from = raw;
    if (!peek_copy(&s->size, raw, sizeof s->size))
        return not_readable(what, file, err);
    if (s->size == 0)
        return tn_fail(err, TN_E_KERNEL, file, "%s: its size is 0; write .size = sizeof(the struct)", what);
    if (s->size < 2 * sizeof(uint32_t) || s->size > STRUCT_MAX || s->size % _Alignof(void *) != 0)
        return tn_fail(err, TN_E_KERNEL, file, "%s: its size is %u, which no version has; write .size = sizeof(it)",
                       what, s->size);
    return peek_copy(s->bytes, raw, s->size) ? TN_OK : not_readable(what, file, err);
}

/* functions[i] may be NULL. */
static tn_status check_functions(const void *const *functions, size_t count, const char *what, const char *file,
                                 tn_error *err)
{
    for (size_t i = 0; i < count; i++)
        if (functions[i] && !peek_is_code(functions[i]))
            return tn_fail(err, TN_E_KERNEL, file, "%s: one of its functions is at an address where no code is", what);
    return TN_OK;
}

/* Copies count bytes at `from` of the plugin's struct to the host's `size` bytes. */
static tn_status copy_part(void *to, size_t size, const source *s, size_t from, size_t count, const char *file,
                           tn_error *err)
{
    const char *bytes = s->bytes + from;
    memset(to, 0, size);
    memcpy(to, bytes, count < size ? count : size);
    for (size_t i = size; i < count; i++)
        if (bytes[i] != 0)
            return tn_fail(
                err, TN_E_KERNEL, file,
                "%s: byte %zu is in use and unknown to this host; use a newer tenon or build the plugin for ABI "
                "%d.%d",
                s->what, from + i, TN_ABI_MAJOR, TN_ABI_MINOR);
    return TN_OK;
}

static tn_status copy_struct(void *to, size_t size, const source *s, const char *file, tn_error *err)
{
    tn_status status = copy_part(to, size, s, 0, s->size, file, err);
    uint32_t own = (uint32_t)size;
    memcpy(to, &own, sizeof own);
    return status;
}

/* A match lies inside its impl and may have another size than the host's, which moves everything behind it. */
static tn_status copy_impl(tn_impl *to, const source *s, const char *file, tn_error *err)
{
    size_t at = offsetof(tn_impl, match), head = offsetof(tn_impl, tolerance);
    if (s->size < at + 2 * sizeof(uint32_t))
        return tn_fail(err, TN_E_KERNEL, file, "%s: its size is %u: too small for a match", s->what, s->size);
    memset(to, 0, sizeof *to);
    memcpy(to, s->bytes, at);
    to->size = sizeof *to;
    char what[160];
    snprintf(what, sizeof what, "%s: match", s->what);
    source match;
    tn_status status = open_struct(&match, s->from + at, what, file, err);
    if (status == TN_OK && at + match.size > s->size)
        status = tn_fail(err, TN_E_KERNEL, file, "%s: it does not fit into its impl", what);
    if (status == TN_OK)
        status = copy_struct(&to->match, sizeof to->match, &match, file, err);
    if (status == TN_OK)
        status = copy_part(&to->tolerance, sizeof *to - head, s, at + match.size, s->size - at - match.size, file, err);
    return status;
}

/* Memory that lives as long as the descriptor. */
static void *new_piece(descriptor *d, size_t bytes)
{
    descriptor_piece *piece = malloc(sizeof *piece + bytes);
    if (!piece)
        return NULL;
    piece->next = d->pieces;
    d->pieces = piece;
    return piece + 1;
}

/* Replaces a text by a copy: present (absent: what stands for one that is not; NULL: it must be there), short, without
 * control characters. Bytes that are not UTF-8 are shown as numbers: a summary in another encoding harms nobody. */
static tn_status copy_text(descriptor *d, const char **text, const char *absent, const char *what, const char *name,
                           const char *file, tn_error *err)
{
    const char *from = *text ? *text : absent;
    char got[TEXT_MAX] = "", shown[4 * TEXT_MAX] = "";
    char byte;
    if (from && !peek_copy(&byte, from, 1))
        return not_readable(what, file, err);
    bool good = from && peek_text(got, sizeof got, from);
    got[TEXT_MAX - 1] = '\0';
    text_escape(shown, sizeof shown, got);
    for (size_t i = 0; good && got[i]; i++)
        good = (unsigned char)got[i] >= 0x20 && got[i] != 0x7f;
    if (!good)
        return tn_fail(err, TN_E_KERNEL, file, "%s: %s must be one line of at most %d bytes%s%.80s%s", what, name,
                       TEXT_MAX - 1, shown[0] ? "; it is '" : "", shown, shown[0] ? "'" : "");
    size_t length = strlen(shown);
    char *copy = new_piece(d, length + 1);
    if (!copy)
        return tn_fail(err, TN_E_MEMORY, file, "out of memory");
    memcpy(copy, shown, length + 1);
    *text = copy;
    return TN_OK;
}

/* An id stands in lists separated by commas and beside patterns. */
static bool is_id(const char *id)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    static const char *const words[] = {"auto", "none", "true", "false"}; /* of a SPEC, where '-' also has a meaning */
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(id, words[i]) == 0)
            return false;
    return strlen(id) < 64 && id[0] != '-' && id[strspn(id, letters)] == '\0';
}

bool descriptor_is_device_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";
    return name[0] && strnlen(name, 32) < 32 && name[strspn(name, letters)] == '\0' && strcmp(name, "auto") != 0 &&
           strcmp(name, "none") != 0;
}

static tn_status check_kernel(descriptor *d, tn_kernel *k, uint32_t index, const char *file, tn_error *err)
{
    char what[96];
    snprintf(what, sizeof what, "kernel %u", index);
    tn_status status = copy_text(d, &k->id, "", what, "its id", file, err);
    if (status != TN_OK)
        return status;
    if (!k->id[0])
        return tn_fail(err, TN_E_KERNEL, file, "kernel %u has an empty id; give it one", index);
    if (!is_id(k->id))
        return tn_fail(
            err, TN_E_KERNEL, file,
            "kernel %u: its id must be at most 63 letters, digits, '_', '-' or '.', not begin with '-', and not be "
            "'auto', 'none', 'true' or 'false'; it is '%.80s'",
            index, k->id);
    snprintf(what, sizeof what, "kernel '%s'", k->id);
    if ((status = copy_text(d, &k->version, "", what, "its version", file, err)) != TN_OK ||
        (status = copy_text(d, &k->summary, "", what, "its summary", file, err)) != TN_OK ||
        (status = copy_text(d, &k->device, NULL, what, "the name of its device", file, err)) != TN_OK)
        return status;
    if (!descriptor_is_device_name(k->device))
        return tn_fail(err, TN_E_KERNEL, file, "%s: '%.40s' names no device; %s", what, k->device, DEVICE_NAME_RULE);
    if (k->impl_count == 0 || !k->impls)
        return tn_fail(err, TN_E_KERNEL, file, "kernel '%s' has no impl; it needs at least one", k->id);
    if (k->impl_count > IMPLS_MAX)
        return tn_fail(err, TN_E_KERNEL, file, "kernel '%s' has %u impls; at most %d", k->id, k->impl_count, IMPLS_MAX);
    const void *functions[] = {(const void *)(uintptr_t)k->available};
    return check_functions(functions, 1, what, file, err);
}

/* What an impl's match points to. */
static tn_status copy_match(descriptor *d, tn_match *match, const char *what, const char *file, tn_error *err)
{
    if (match->class_glob) {
        tn_status status = copy_text(d, &match->class_glob, NULL, what, "the pattern of class names", file, err);
        if (status != TN_OK)
            return status;
    }
    /* A count that cannot be is refused with the match. */
    if (match->dim_count == 0 || match->dim_count > TN_DIM_MAX || !match->dims)
        return TN_OK;
    tn_dim_rule *rules = new_piece(d, match->dim_count * sizeof *rules);
    if (!rules)
        return tn_fail(err, TN_E_MEMORY, file, "out of memory");
    if (!peek_copy(rules, match->dims, match->dim_count * sizeof *rules))
        return not_readable(what, file, err);
    match->dims = rules;
    return TN_OK;
}

/* All elements of an array have the size of the first: that is the array's stride. */
static tn_status open_element(source *s, const void *array, uint32_t index, const char *what, const char *file,
                              tn_error *err)
{
    uint32_t stride;
    if (!peek_copy(&stride, array, sizeof stride))
        return not_readable(what, file, err);
    tn_status status = open_struct(s, (const char *)array + (size_t)index * stride, what, file, err);
    if (status == TN_OK && s->size != stride)
        status = tn_fail(err, TN_E_KERNEL, file, "%s: its size is %u, that of the first is %u", what, s->size, stride);
    return status;
}

static tn_status read_kernels(descriptor *d, const char *file, tn_error *err)
{
    tn_status status = TN_OK;
    for (uint32_t i = 0; status == TN_OK && i < d->plugin.kernel_count; i++) {
        char what[32];
        snprintf(what, sizeof what, "kernel %u", i);
        source s;
        status = open_element(&s, d->plugin.kernels, i, what, file, err);
        if (status == TN_OK)
            status = copy_struct(&d->kernels[i], sizeof d->kernels[i], &s, file, err);
        if (status == TN_OK)
            status = check_kernel(d, &d->kernels[i], i, file, err);
        for (uint32_t j = 0; status == TN_OK && j < i; j++)
            if (strcmp(d->kernels[j].device, d->kernels[i].device) == 0 &&
                strcmp(d->kernels[j].id, d->kernels[i].id) == 0)
                status = tn_fail(err, TN_E_KERNEL, file, "kernel '%s' for %s is registered twice; ids are unique",
                                 d->kernels[i].id, d->kernels[i].device);
    }
    d->kernel_count = d->plugin.kernel_count;
    return status;
}

static tn_status check_impl_functions(const tn_impl *impl, const char *what, const char *file, tn_error *err)
{
    const void *functions[] = {(const void *)(uintptr_t)impl->plan, (const void *)(uintptr_t)impl->pack,
                               (const void *)(uintptr_t)impl->forward, (const void *)(uintptr_t)impl->backward};
    return check_functions(functions, sizeof functions / sizeof functions[0], what, file, err);
}

static tn_status read_impls(descriptor *d, const char *file, tn_error *err)
{
    size_t total = 0, next = 0;
    for (size_t i = 0; i < d->kernel_count; i++)
        total += d->kernels[i].impl_count;
    d->impls = calloc(total ? total : 1, sizeof *d->impls);
    if (!d->impls)
        return tn_fail(err, TN_E_MEMORY, file, "out of memory");
    for (size_t i = 0; i < d->kernel_count; i++) {
        tn_kernel *k = &d->kernels[i];
        for (uint32_t j = 0; j < k->impl_count; j++) {
            tn_impl *impl = &d->impls[next + j];
            char what[128];
            snprintf(what, sizeof what, "kernel '%s', impl %u", k->id, j);
            source s;
            tn_error why = TN_ERROR_INIT;
            tn_status status = open_element(&s, k->impls, j, what, file, err);
            if (status == TN_OK)
                status = copy_impl(impl, &s, file, err);
            if (status == TN_OK)
                status = copy_match(d, &impl->match, what, file, err);
            if (status == TN_OK)
                status = check_impl_functions(impl, what, file, err);
            if (status == TN_OK && (status = match_validate(impl, &why)) != TN_OK)
                status = tn_fail(err, TN_E_KERNEL, file, "%s: %s", what, why.message);
            if (status != TN_OK)
                return status;
        }
        k->impls = &d->impls[next];
        next += k->impl_count;
    }
    return TN_OK;
}

static tn_status read_device(descriptor *d, const char *file, tn_error *err)
{
    if (!d->plugin.device)
        return TN_OK;
    d->device = calloc(1, sizeof *d->device);
    if (!d->device)
        return tn_fail(err, TN_E_MEMORY, file, "out of memory");
    source s;
    tn_status status = open_struct(&s, d->plugin.device, "device", file, err);
    if (status == TN_OK)
        status = copy_struct(d->device, sizeof *d->device, &s, file, err);
    if (status != TN_OK)
        return status;
    tn_device *v = d->device;
    if ((status = copy_text(d, &v->name, NULL, "device", "its name", file, err)) != TN_OK ||
        (status = copy_text(d, &v->summary, "", "device", "its summary", file, err)) != TN_OK)
        return status;
    if (!descriptor_is_device_name(v->name))
        return tn_fail(err, TN_E_KERNEL, file, "device: its name is '%.40s'; %s", v->name, DEVICE_NAME_RULE);
    if (!v->alloc || !v->free || !v->upload || !v->download || !v->eager)
        return tn_fail(err, TN_E_KERNEL, file, "device '%s' lacks alloc, free, upload, download or eager", v->name);
    if (v->close && !v->open)
        return tn_fail(err, TN_E_KERNEL, file, "device '%s' has a close and no open", v->name);
    d->plugin.device = v;
    const void *functions[] = {(const void *)(uintptr_t)v->available, (const void *)(uintptr_t)v->open,
                               (const void *)(uintptr_t)v->close,     (const void *)(uintptr_t)v->alloc,
                               (const void *)(uintptr_t)v->free,      (const void *)(uintptr_t)v->upload,
                               (const void *)(uintptr_t)v->download,  (const void *)(uintptr_t)v->sync,
                               (const void *)(uintptr_t)v->supports,  (const void *)(uintptr_t)v->scratch,
                               (const void *)(uintptr_t)v->eager,     (const void *)(uintptr_t)v->backward_scratch,
                               (const void *)(uintptr_t)v->backward};
    return check_functions(functions, sizeof functions / sizeof functions[0], "device", file, err);
}

static tn_status read_group(descriptor *d, const char *file, tn_error *err)
{
    if (!d->plugin.group)
        return TN_OK;
    d->group = calloc(1, sizeof *d->group);
    if (!d->group)
        return tn_fail(err, TN_E_MEMORY, file, "out of memory");
    source s;
    tn_group_kind *v = d->group;
    tn_status status = open_struct(&s, d->plugin.group, "group", file, err);
    if (status == TN_OK)
        status = copy_struct(v, sizeof *v, &s, file, err);
    if (status == TN_OK)
        status = copy_text(d, &v->name, NULL, "group", "its name", file, err);
    if (status == TN_OK)
        status = copy_text(d, &v->summary, "", "group", "its summary", file, err);
    if (status != TN_OK)
        return status;
    if (!descriptor_is_device_name(v->name) || !v->open)
        return tn_fail(err, TN_E_KERNEL, file, "group: it needs a name such as 'mpi', and open");
    d->plugin.group = v;
    return check_functions((const void *[]){(const void *)(uintptr_t)v->open}, 1, "group", file, err);
}

static tn_status check_plugin(descriptor *d, tn_plugin *p, const elfnote *note, const char *file, tn_error *err)
{
    if (p->abi_major != TN_ABI_MAJOR)
        return tn_fail(err, TN_E_KERNEL, file, "plugin ABI: expected major %d, got %u; rebuild it", TN_ABI_MAJOR,
                       p->abi_major);
    if (p->abi_minor_needed > TN_ABI_MINOR)
        return tn_fail(err, TN_E_KERNEL, file, "plugin ABI: it needs %u.%u, this host has %d.%d; use a newer tenon",
                       p->abi_major, p->abi_minor_needed, TN_ABI_MAJOR, TN_ABI_MINOR);
    tn_status status = copy_text(d, &p->name, NULL, "plugin", "its name", file, err);
    if (status == TN_OK)
        status = copy_text(d, &p->version, NULL, "plugin", "its version", file, err);
    if (status != TN_OK)
        return status;
    if (!p->name[0])
        return tn_fail(err, TN_E_KERNEL, file, "plugin: its name is empty; give it one");
    if (note && (note->abi_minor_needed != p->abi_minor_needed || strcmp(note->name, p->name) != 0 ||
                 strcmp(note->version, p->version) != 0))
        return tn_fail(err, TN_E_KERNEL, file,
                       "plugin: its note says %s %s, it registers as %s %s; register with TN_PLUGIN only", note->name,
                       note->version, p->name, p->version);
    if (p->kernel_count == 0 && !p->device && !p->group)
        return tn_fail(err, TN_E_KERNEL, file, "plugin: it registers neither a kernel nor a device");
    if (p->kernel_count > KERNELS_MAX || (p->kernel_count > 0 && !p->kernels))
        return tn_fail(err, TN_E_KERNEL, file, "plugin: %u kernels, and no such list; set .kernels and .kernel_count",
                       p->kernel_count);
    return TN_OK;
}

descriptor *descriptor_read(const tn_plugin *raw, const elfnote *note, const char *file, tn_error *err)
{
    if (!raw) {
        tn_fail(err, TN_E_KERNEL, file, "plugin: it registers a null descriptor; register with TN_PLUGIN");
        return NULL;
    }
    descriptor *d = calloc(1, sizeof *d);
    if (!d) {
        tn_fail(err, TN_E_MEMORY, file, "out of memory");
        return NULL;
    }
    source s;
    tn_status status = open_struct(&s, raw, "plugin", file, err);
    if (status == TN_OK)
        status = copy_struct(&d->plugin, sizeof d->plugin, &s, file, err);
    if (status == TN_OK)
        status = check_plugin(d, &d->plugin, note, file, err);
    if (status == TN_OK) {
        d->kernels = calloc(d->plugin.kernel_count ? d->plugin.kernel_count : 1, sizeof *d->kernels);
        status = d->kernels ? TN_OK : tn_fail(err, TN_E_MEMORY, file, "out of memory");
    }
    if (status == TN_OK)
        status = read_kernels(d, file, err);
    if (status == TN_OK)
        status = read_impls(d, file, err);
    if (status == TN_OK)
        status = read_device(d, file, err);
    if (status == TN_OK)
        status = read_group(d, file, err);
    if (status != TN_OK) {
        descriptor_free(d);
        return NULL;
    }
    d->plugin.kernels = d->kernels;
    return d;
}

void descriptor_keep(descriptor *d)
{
    d->impls = d->kernel_count > 0 ? NULL : d->impls;
    d->device = NULL;
    d->group = NULL;
    d->pieces = NULL;
}

void descriptor_free(descriptor *d)
{
    if (!d)
        return;
    while (d->pieces) {
        descriptor_piece *piece = d->pieces;
        d->pieces = piece->next;
        free(piece);
    }
    free(d->kernels);
    free(d->impls);
    free(d->device);
    free(d->group);
    free(d);
}
