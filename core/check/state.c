/* What a library's variables hold, before and after a call. A variable that changes in two calls carries something from
 * one to the next: a counter, a buffer that threads share, the weights or sizes of the call before. One that changes
 * once is made ready, which is what a table does that is computed when it is first needed.
 *
 * Only loaded libraries are looked at, word by word. A word that is the address of memory which the library took
 * stands for that memory, too (state_memory.h). */
#include "check/state.h"

#include "base/text.h"
#include "check/state_memory.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gelf.h>
#include <inttypes.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Larger areas are not looked at: where sanitizers keep millions of words of their own among a library's (Makefile). */
#ifndef TN_MOST_WORDS
#define TN_MOST_WORDS SIZE_MAX
#endif

enum { MOST_OBJECTS = 32, MOST_AREAS = 3 * MOST_OBJECTS, MOST_NOTES = 8, WORD = sizeof(uint64_t) };

typedef struct state_area {
    const unsigned char *begin;
    size_t words;
    size_t from, to;               /* its bytes in these words                                       */
    const struct link_map *object; /* for names; NULL: what a plan notes                             */
    bool of_thread;                /* thread-local                                                   */
    uint64_t *copy, *now;          /* before the call, and after it                                */
    uint64_t *block;               /* hash of the memory that a word points to; 0: none            */
    unsigned char *changed;        /* of each byte: did it change in a call that counts?           */
    bool *nowhere;                 /* of each word of copy: does it lead nowhere, ever?            */
} state_area;

struct state_watch {
    state_area areas[MOST_AREAS];
    size_t count;
    uint64_t notes[MOST_NOTES];
    const struct link_map *objects[MOST_OBJECTS];
    size_t object_count;
    int late_threads; /* objects whose thread-local variables are not made yet                        */
    state_memory *memory;
};

static void *take(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* ---- which variables -------------------------------------------------------------------------------------------- */

static bool is_system(const char *path)
{
    static const char *const folders[] = {"/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/lib32/", "/usr/libexec/"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (!strncmp(path, folders[i], strlen(folders[i])))
            return true;
    return !strchr(path, '/'); /* the program itself, and the kernel's own object */
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static const void *dynamic(const struct link_map *object, ElfW(Sxword) tag)
{
    for (const ElfW(Dyn) *d = object->l_ld; d && d->d_tag != DT_NULL; d++)
        if (d->d_tag == tag)
            return (const void *)d->d_un.d_ptr;
    return NULL;
}

static void add_object(state_watch *w, const struct link_map *object);

/* The libraries that an object names, where the dynamic linker has them. */
static void add_needed(state_watch *w, const struct link_map *object)
{
    const char *texts = dynamic(object, DT_STRTAB);
    const struct link_map *all = object;
    while (all->l_prev)
        all = all->l_prev;
    for (const ElfW(Dyn) *d = object->l_ld; texts && d && d->d_tag != DT_NULL; d++)
        for (const struct link_map *m = d->d_tag == DT_NEEDED ? all : NULL; m; m = m->l_next) {
            if (is_system(m->l_name)) /* and that of the kernel lies as the file has it                          */
                continue;
            const char *own = dynamic(m, DT_SONAME), *names = dynamic(m, DT_STRTAB);
            const char *needed = last_part(texts + d->d_un.d_val);
            if (!strcmp(last_part(m->l_name), needed) || (own && names && !strcmp(names + (size_t)own, needed)))
                add_object(w, m);
        }
}

/* libtenon, whose variables are none of the library's. */
static bool is_host(const struct link_map *object)
{
    static const char name[] = "libtenon.so";
    return !strncmp(last_part(object->l_name), name, sizeof name - 1);
}

/* What core is linked into is the host, too. */
static void add_object(state_watch *w, const struct link_map *object)
{
    Dl_info own;
    void *map = NULL;
    for (size_t i = 0; i < w->object_count; i++)
        if (w->objects[i] == object)
            return;
    if (w->object_count == MOST_OBJECTS || is_system(object->l_name) || is_host(object) ||
        (dladdr1(__extension__(const void *) state_open, &own, &map, RTLD_DL_LINKMAP) && map == object))
        return;
    w->objects[w->object_count++] = object;
    add_needed(w, object);
}

/* In whole words: what lies in the first and the last of them beside the area is not looked at. */
static void add_area(state_watch *w, const struct link_map *object, const void *begin, size_t bytes)
{
    uintptr_t first = (uintptr_t)begin / WORD * WORD, end = ((uintptr_t)begin + bytes + WORD - 1) / WORD * WORD;
    size_t words = (end - first) / WORD;
    if (bytes == 0 || words > TN_MOST_WORDS || w->count == MOST_AREAS)
        return;
    uint64_t *memory = take(words * (4 * WORD + sizeof(bool)));
    if (memory)
        w->areas[w->count++] = (state_area){.begin = (const unsigned char *)first,
                                            .words = words,
                                            .from = (uintptr_t)begin - first,
                                            .to = (uintptr_t)begin - first + bytes,
                                            .object = object,
                                            .copy = memory,
                                            .now = memory + words,
                                            .block = memory + 2 * words,
                                            .changed = (unsigned char *)(memory + 3 * words),
                                            .nowhere = (bool *)(memory + 4 * words)};
}

/* Slots that the dynamic linker fills when a function is called for the first time are no variables. */
static void add_without_slots(state_watch *w, const struct link_map *object, const unsigned char *begin, size_t bytes)
{
    const ElfW(Rela) *slots = dynamic(object, DT_JMPREL);
    size_t size = (size_t)dynamic(object, DT_PLTRELSZ);
    uintptr_t first = UINTPTR_MAX, last = 0;
    for (size_t i = 0; slots && dynamic(object, DT_PLTREL) == (const void *)DT_RELA && i < size / sizeof *slots; i++) {
        uintptr_t at = object->l_addr + slots[i].r_offset;
        first = at < first ? at : first;
        last = at > last ? at : last;
    }
    if (first < (uintptr_t)begin || last >= (uintptr_t)begin + bytes) {
        add_area(w, object, begin, bytes);
        return;
    }
    add_area(w, object, begin, first - (uintptr_t)begin);
    add_area(w, object, (const void *)(last + WORD), (uintptr_t)begin + bytes - last - WORD);
}

static const struct link_map *find_object(const state_watch *w, const struct dl_phdr_info *info)
{
    for (size_t i = 0; i < w->object_count; i++)
        if (w->objects[i]->l_addr == info->dlpi_addr && !strcmp(w->objects[i]->l_name, info->dlpi_name))
            return w->objects[i];
    return NULL;
}

static int add_segments(struct dl_phdr_info *info, size_t size, void *ctx)
{
    state_watch *w = ctx;
    const struct link_map *object = find_object(w, info);
    (void)size;
    for (int i = 0; object && i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type == PT_LOAD && p->p_flags & PF_W)
            add_without_slots(w, object, (const unsigned char *)info->dlpi_addr + p->p_vaddr, p->p_memsz);
        w->late_threads += p->p_type == PT_TLS;
    }
    return 0;
}

/* Thread-local variables are made when the thread first touches one. */
static int add_threads(struct dl_phdr_info *info, size_t size, void *ctx)
{
    state_watch *w = ctx;
    const struct link_map *object = find_object(w, info);
    bool known = false;
    for (size_t i = 0; i < w->count; i++)
        known |= w->areas[i].of_thread && w->areas[i].object == object;
    for (int i = 0; object && !known && i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        size_t before = w->count;
        if (p->p_type == PT_TLS && size > offsetof(struct dl_phdr_info, dlpi_tls_data) && info->dlpi_tls_data)
            add_area(w, object, info->dlpi_tls_data, p->p_memsz);
        if (w->count > before) {
            w->areas[before].of_thread = true;
            w->late_threads--;
        }
    }
    return 0;
}

state_watch *state_open(const void *code)
{
    Dl_info info;
    void *map = NULL;
    state_watch *w = take(sizeof *w);
    if (!w || !dladdr1(code, &info, &map, RTLD_DL_LINKMAP) || !map)
        return NULL;
    add_object(w, map);
    if (w->object_count == 0)
        return NULL;
    add_area(w, NULL, w->notes, sizeof w->notes);
    dl_iterate_phdr(add_segments, w);
    w->memory = state_memory_open();
    return w->memory ? w : NULL;
}

/* ---- before and after ------------------------------------------------------------------------------------------- */

void state_before(state_watch *w, const uint64_t *notes, size_t note_count)
{
    if (!w)
        return;
    state_memory_look(w->memory);
    if (w->late_threads > 0)
        dl_iterate_phdr(add_threads, w);
    memset(w->notes, 0, sizeof w->notes);
    if (notes)
        memcpy(w->notes, notes, (note_count < MOST_NOTES ? note_count : MOST_NOTES) * sizeof *notes);
    for (size_t i = 0; i < w->count; i++) {
        state_area *a = &w->areas[i];
        state_memory_read(w->memory, a->begin, a->now, a->words * WORD);
        for (size_t j = 0; j < a->words; j++) {
            if (a->nowhere[j] && a->now[j] == a->copy[j])
                continue;
            a->copy[j] = a->now[j];
            a->nowhere[j] = state_memory_leads_nowhere(w->memory, a->copy[j]);
            a->block[j] = a->nowhere[j] ? 0 : state_memory_hash(w->memory, a->copy[j]);
        }
    }
}

/* A variable inside of a function has a number behind its name in gcc's symbols (.0, .lto_priv.0); in clang's the
 * function's name before it, and the number where there are several. */
static void cut_name(char *name)
{
    for (char *dot; (dot = strrchr(name, '.')) != NULL; *dot = '\0')
        if (dot[1 + strspn(dot + 1, "0123456789")] && strcmp(dot + 1, "lto_priv") != 0) {
            memmove(name, dot + 1, strlen(dot + 1) + 1);
            return;
        }
}

/* The variable at an address of an object, by the table of symbols of its file, which a stripped one lacks. */
static bool name_of(const struct link_map *object, const void *address, char *name, size_t size)
{
    uint64_t at = (uint64_t)((uintptr_t)address - object->l_addr);
    bool found = false;
    int file = open(object->l_name, O_RDONLY | O_CLOEXEC);
    Elf *elf = file >= 0 && elf_version(EV_CURRENT) != EV_NONE ? elf_begin(file, ELF_C_READ, NULL) : NULL;
    GElf_Shdr header;
    for (Elf_Scn *s = NULL; elf && !found && (s = elf_nextscn(elf, s));) {
        Elf_Data *data = gelf_getshdr(s, &header) && header.sh_type == SHT_SYMTAB ? elf_getdata(s, NULL) : NULL;
        GElf_Sym symbol;
        for (int i = 0; data && !found && gelf_getsym(data, i, &symbol); i++) {
            const char *text = elf_strptr(elf, header.sh_link, symbol.st_name);
            found = GELF_ST_TYPE(symbol.st_info) == STT_OBJECT && text && at >= symbol.st_value &&
                    at - symbol.st_value < symbol.st_size;
            if (found)
                text_escape(name, size, text);
            if (found)
                cut_name(name);
        }
    }
    if (elf)
        elf_end(elf);
    if (file >= 0)
        close(file);
    return found;
}

/* of: the byte of its variables that changed, or whose word points to what did. */
static void describe(const state_area *a, size_t of, bool in_block, char *what, size_t size)
{
    char name[96];
    if (!a->object)
        text_cut(what, size, "memory that its plan points to");
    else if (a->of_thread)
        text_cut(what, size, "a thread-local variable of it");
    else if (name_of(a->object, a->begin + of, name, sizeof name))
        text_cut(what, size, "%s'%s'", in_block ? "what its variable points to, " : "its variable ", name);
    else
        text_cut(what, size, "%s %#zx of %s", in_block ? "what it points to at" : "its variables at",
                 (size_t)((uintptr_t)a->begin + of - a->object->l_addr), last_part(a->object->l_name));
}

state_change state_after(state_watch *w, bool first, char *what, size_t size)
{
    state_change change = STATE_SAME;
    for (size_t i = 0; w && !first && i < w->count; i++) {
        state_area *a = &w->areas[i];
        const unsigned char *before = (const unsigned char *)a->copy, *now = (const unsigned char *)a->now;
        state_memory_read(w->memory, a->begin, a->now, a->words * WORD);
        for (size_t j = 0; j < a->words; j++) {
            size_t at = j * WORD;
            bool same = a->now[j] == a->copy[j], in_block = same && a->block[j];
            if (in_block ? state_memory_hash(w->memory, a->copy[j]) == a->block[j] : same)
                continue;
            for (size_t b = at; b < at + WORD; b++) {
                if (b < a->from || b >= a->to || (!in_block && now[b] == before[b]))
                    continue;
                if (a->changed[b] && change != STATE_KEPT)
                    describe(a, b, in_block, what, size);
                change = a->changed[b] || change == STATE_KEPT ? STATE_KEPT : STATE_FRESH;
                a->changed[b] = 1;
            }
        }
    }
    return change;
}
