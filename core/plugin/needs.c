/* Which libraries a file asks for. The dynamic linker would run their constructors, so where they come from is settled
 * before it sees the file. This follows the linker's rules as far as they lead to folders that somebody named; the
 * linker's own places are the system's. */
#include "plugin/needs.h"

#include "base/mapped.h"
#include "plugin/writers.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gelf.h>
#include <libelf.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LIBRARIES_MAX = 64, ENTRIES_MAX = 4096 };

/* A file's dynamic section. */
typedef struct section {
    const char *file; /* whose it is                                                              */
    const char *strings;
    size_t string_bytes;
    const char *run_path; /* NULL: none                                                           */
    Elf_Data *data;
    size_t count;
    bool named;
} section;

/* ---- reading it ------------------------------------------------------------------------------------------------- */

/* The text at that offset, or NULL when it does not end inside the table. */
static const char *string_at(const section *s, uint64_t offset)
{
    if (offset >= s->string_bytes || !memchr(s->strings + offset, '\0', s->string_bytes - offset))
        return NULL;
    return s->strings + offset;
}

/* Where in the file the address lies; SIZE_MAX: in none of its segments. */
static size_t offset_of(Elf *elf, size_t segments, uint64_t address)
{
    GElf_Phdr p;
    for (size_t i = 0; i < segments; i++)
        if (gelf_getphdr(elf, (int)i, &p) && p.p_type == PT_LOAD && address - p.p_vaddr < p.p_filesz)
            return (size_t)(p.p_offset + (address - p.p_vaddr));
    return SIZE_MAX;
}

/* false: it has none, or a damaged one. */
static bool open_section(Elf *elf, const char *content, size_t size, section *s)
{
    size_t segments = 0, strings = SIZE_MAX;
    uint64_t bytes = 0;
    GElf_Phdr p;
    GElf_Dyn d;
    if (!elf || elf_getphdrnum(elf, &segments) != 0 || segments > INT_MAX)
        return false;
    for (size_t i = 0; i < segments && !s->data; i++)
        if (gelf_getphdr(elf, (int)i, &p) && p.p_type == PT_DYNAMIC)
            s->data = elf_getdata_rawchunk(elf, (int64_t)p.p_offset, p.p_filesz, ELF_T_DYN);
    for (; s->data && s->count < ENTRIES_MAX && gelf_getdyn(s->data, (int)s->count, &d) && d.d_tag != DT_NULL;
         s->count++) {
        if (d.d_tag == DT_STRTAB)
            strings = offset_of(elf, segments, d.d_un.d_ptr);
        if (d.d_tag == DT_STRSZ)
            bytes = d.d_un.d_val;
    }
    if (!s->data || strings >= size || bytes > size - strings)
        return false;
    s->strings = content + strings;
    s->string_bytes = (size_t)bytes;
    return true;
}

/* ---- rights ----------------------------------------------------------------------------------------------------- */

/* What a file without the header for stacks means, where the C library follows the machine's own rule. */
#if defined(__aarch64__) || defined(__riscv)
enum { SILENCE_RUNS = false };
#else
enum { SILENCE_RUNS = true };
#endif

/* Memory that can be written and run: the stacks of the whole process become so when such a file is opened, and stay
 * it. Text relocations are let pass: pages of code are written while the file is opened, and never after. */
static tn_status check_rights(Elf *elf, const char *file, tn_error *err)
{
    size_t segments = 0;
    GElf_Phdr p;
    bool runs = SILENCE_RUNS, both = false;
    if (!elf || elf_getphdrnum(elf, &segments) != 0 || segments == 0 || segments > INT_MAX)
        return TN_OK; /* which the dynamic linker does not open                                       */
    for (size_t i = 0; i < segments; i++) {
        if (!gelf_getphdr(elf, (int)i, &p))
            continue;
        if (p.p_type == PT_GNU_STACK)
            runs = p.p_flags & PF_X;
        both = both || (p.p_type == PT_LOAD && (p.p_flags & PF_W) && (p.p_flags & PF_X));
    }
    if (runs)
        return tn_fail(
            err, TN_E_KERNEL, file,
            "it asks for an executable stack, which the whole program would get; end its assembly files with "
            ".section .note.GNU-stack,\"\",@progbits, or link it with -Wl,-z,noexecstack");
    if (both)
        return tn_fail(err, TN_E_KERNEL, file,
                       "it has a segment that can be written and executed; link it without -N and -z rwx");
    return TN_OK;
}

/* ---- run paths -------------------------------------------------------------------------------------------------- */

/* Bytes of a leading $ORIGIN or ${ORIGIN}; 0: there is none. */
static size_t origin_length(const char *entry, size_t length)
{
    static const char *const forms[] = {"$ORIGIN", "${ORIGIN}"};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        size_t n = strlen(forms[i]);
        if (length >= n && strncmp(entry, forms[i], n) == 0 && (length == n || entry[n] == '/'))
            return n;
    }
    return 0;
}

static tn_status check_run_path(const section *s, tn_error *err)
{
    for (const char *at = s->run_path; at; at = *at ? at + 1 : NULL) {
        size_t n = strcspn(at, ":"), origin = origin_length(at, n);
        if (n == 0)
            return tn_fail(err, TN_E_KERNEL, s->file,
                           "its run path '%s' has an empty entry, which is the current folder; link it without",
                           s->run_path);
        if (memchr(at + origin, '$', n - origin))
            return tn_fail(err, TN_E_KERNEL, s->file,
                           "its run path has '%.*s'; of names with '$' only $ORIGIN at the beginning is taken", (int)n,
                           at);
        if (origin == 0 && at[0] != '/')
            return tn_fail(err, TN_E_KERNEL, s->file,
                           "its run path has '%.*s', which counts from the current folder; write it from the root or "
                           "from $ORIGIN",
                           (int)n, at);
        at += n;
    }
    return TN_OK;
}

static tn_status check_name(const section *s, const char *name, tn_error *err)
{
    if (!name || !name[0])
        return tn_fail(err, TN_E_KERNEL, s->file, "its list of libraries is damaged; build it again");
    if (strchr(name, '$'))
        return tn_fail(err, TN_E_KERNEL, s->file, "it needs '%s'; names of libraries with '$' are not taken", name);
    if (strchr(name, '/') && name[0] != '/')
        return tn_fail(
            err, TN_E_KERNEL, s->file,
            "it needs '%s', which counts from the current folder; give that library a soname without '/' and "
            "link again",
            name);
    return TN_OK;
}

/* ---- finding ---------------------------------------------------------------------------------------------------- */

/* Looks for name in the entries of a list; origin: of a run path's file, or NULL. path receives where it is. */
static bool find_in(const char *list, const char *separators, const char *origin, const char *name, char path[PATH_MAX])
{
    for (const char *at = list; at && *at;) {
        size_t n = strcspn(at, separators), skip = origin ? origin_length(at, n) : 0;
        const char *slash = skip ? strrchr(origin, '/') : NULL;
        int length = snprintf(path, PATH_MAX, "%.*s%.*s/%s", slash ? (int)(slash - origin) : 0, slash ? origin : "",
                              (int)(n - skip), at + skip, name);
        if (n > 0 && length > 0 && length < PATH_MAX && access(path, F_OK) == 0)
            return true;
        at += n;
        at += *at != '\0';
    }
    return false;
}

/* An entry of LD_LIBRARY_PATH that is not absolute, or NULL. */
static const char *relative_entry(const char *list, size_t *length)
{
    for (const char *at = list; at && list[0]; at = *at ? at + 1 : NULL) {
        *length = strcspn(at, ":;");
        if (at[0] != '/')
            return at;
        at += *length;
    }
    return NULL;
}

static bool is_here(const char *name)
{
    void *handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    if (handle)
        dlclose(handle);
    return handle != NULL;
}

static tn_status take_need(const section *s, const char *name, needs *n, tn_error *err)
{
    char path[PATH_MAX];
    size_t length;
    const char *environment = getenv("LD_LIBRARY_PATH"), *relative = relative_entry(environment, &length);
    if (is_here(name))
        return TN_OK;
    if (name[0] == '/')
        snprintf(path, sizeof path, "%s", name);
    else if (relative)
        return tn_fail(
            err, TN_E_KERNEL, s->file,
            "it needs %s, and LD_LIBRARY_PATH has the entry '%.*s', which %s the current folder; take it out", name,
            (int)length, relative, length ? "counts from" : "is");
    else if (!find_in(environment, ":;", NULL, name, path) && !find_in(s->run_path, ":", s->file, name, path)) {
        n->more = true;
        return TN_OK;
    }
    tn_error why = TN_ERROR_INIT;
    tn_status status = objects_add(&n->found, path, &why);
    if (status == TN_OK && !s->named)
        status = writers_check_library(path, &why);
    if (status != TN_OK)
        tn_fail(err, TN_E_KERNEL, s->file, "it needs %s, which cannot be taken: %s: %s", name, why.where, why.message);
    return status;
}

static tn_status read_section(const void *content, size_t size, const char *file, bool named, needs *n, tn_error *err)
{
    section s = {.file = file, .named = named};
    GElf_Dyn d;
    tn_status status = TN_OK;
    elf_version(EV_CURRENT);
    Elf *elf = elf_memory((char *)(uintptr_t)content, size);
    size_t entries = open_section(elf, content, size, &s) ? s.count : 0;
    for (size_t i = 0; i < entries; i++)
        if (gelf_getdyn(s.data, (int)i, &d) && (d.d_tag == DT_RUNPATH || (d.d_tag == DT_RPATH && !s.run_path)))
            s.run_path = string_at(&s, d.d_un.d_val);
    status = check_rights(elf, file, err);
    if (status == TN_OK)
        status = check_run_path(&s, err);
    for (size_t i = 0; i < entries && status == TN_OK; i++) {
        if (!gelf_getdyn(s.data, (int)i, &d) ||
            (d.d_tag != DT_NEEDED && d.d_tag != DT_AUXILIARY && d.d_tag != DT_FILTER))
            continue;
        const char *name = string_at(&s, d.d_un.d_val);
        status = check_name(&s, name, err);
        if (status == TN_OK)
            status = take_need(&s, name, n, err);
    }
    elf_end(elf);
    return status;
}

/* One of those found: it may need others. */
static tn_status read_found(const char *path, bool named, needs *n, tn_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    mapped *content = NULL;
    tn_status status = TN_E_KERNEL;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0)
        content = mapped_open(fd, path, (size_t)st.st_size, NULL);
    if (content)
        status = read_section(mapped_data(content), (size_t)st.st_size, path, named, n, err);
    else
        tn_fail(err, TN_E_KERNEL, path, "cannot be read");
    mapped_close(content);
    if (fd >= 0)
        close(fd);
    return status;
}

tn_status needs_read(const void *content, size_t size, const char *path, bool named, needs *n, tn_error *err)
{
    *n = (needs){0};
    tn_status status = read_section(content, size, path, named, n, err);
    for (size_t i = 0; status == TN_OK && i < n->found.count; i++) {
        tn_error why = TN_ERROR_INIT;
        char file[PATH_MAX];
        snprintf(file, sizeof file, "%s", n->found.files[i].path);
        status = i < LIBRARIES_MAX ? read_found(file, named, n, &why)
                                   : tn_fail(&why, TN_E_KERNEL, path, "more than %d libraries", LIBRARIES_MAX);
        if (status != TN_OK)
            tn_fail(err, TN_E_KERNEL, path, "it needs %s: %s", why.where, why.message);
    }
    return status;
}

void needs_free(needs *n)
{
    objects_free(&n->found);
}
