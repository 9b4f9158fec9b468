/* Reading the plugin note with libelf, which checks every offset against the file. Notes are found through the program
 * headers, which stripping leaves in place. */
#include "plugin/elfnote.h"

#include <errno.h>
#include <gelf.h>
#include <libelf.h>
#include <stdio.h>
#include <string.h>

enum { NOTE_TYPE = 1, NOTES_MAX = 1 << 16 /* bytes of a segment worth looking through */ };
static const char note_owner[] = "Tenon"; /* its size counts the NUL, as in the note */

#if defined(__x86_64__)
enum { HOST_MACHINE = EM_X86_64 };
#elif defined(__aarch64__)
enum { HOST_MACHINE = EM_AARCH64 };
#elif defined(__riscv)
enum { HOST_MACHINE = EM_RISCV };
#elif defined(__powerpc64__)
enum { HOST_MACHINE = EM_PPC64 };
#elif defined(__s390x__)
enum { HOST_MACHINE = EM_S390 };
#elif defined(__arm__)
enum { HOST_MACHINE = EM_ARM };
#else
enum { HOST_MACHINE = EM_386 };
#endif
enum {
    HOST_CLASS = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32,
    HOST_DATA = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB
};

static void machine_name(unsigned machine, int class, int data, char *text, size_t size)
{
    static const struct {
        unsigned machine;
        const char *name;
    } known[] = {{EM_X86_64, "x86-64"}, {EM_AARCH64, "aarch64"}, {EM_386, "x86"},  {EM_ARM, "arm"},
                 {EM_RISCV, "riscv"},   {EM_PPC64, "ppc64"},     {EM_S390, "s390"}};
    const char *name = NULL;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].machine == machine)
            name = known[i].name;
    char number[32];
    snprintf(number, sizeof number, "machine %u", machine);
    snprintf(text, size, "%s, %d bit, %s-endian", name ? name : number, class == ELFCLASS64 ? 64 : 32,
             data == ELFDATA2LSB ? "little" : "big");
}

static tn_status check_machine(Elf *elf, const char *file, tn_error *err)
{
    GElf_Ehdr head;
    if (elf_kind(elf) != ELF_K_ELF || !gelf_getehdr(elf, &head))
        return tn_fail(err, TN_DECLINED, file, "not an ELF file; not a plugin");
    int class = head.e_ident[EI_CLASS], data = head.e_ident[EI_DATA];
    if (head.e_machine != HOST_MACHINE || class != HOST_CLASS || data != HOST_DATA) {
        char got[64], want[64];
        machine_name(head.e_machine, class, data, got, sizeof got);
        machine_name(HOST_MACHINE, HOST_CLASS, HOST_DATA, want, sizeof want);
        return tn_fail(err, TN_DECLINED, file, "built for another machine: expected %s, got %s; rebuild it here", want,
                       got);
    }
    if (head.e_type != ET_DYN)
        return tn_fail(err, TN_DECLINED, file, "not a shared object; not a plugin");
    return TN_OK;
}

/* A string of the note: ends inside it, is not longer than out, holds printable ASCII only. */
static bool take_string(const char **at, const char *end, char *out, size_t out_size)
{
    size_t left = (size_t)(end - *at), n = strnlen(*at, left);
    if (n == left || n >= out_size)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((*at)[i] < 0x20 || (*at)[i] > 0x7e)
            return false;
    memcpy(out, *at, n + 1);
    *at += n + 1;
    return true;
}

static tn_status parse_note(const char *desc, size_t size, const char *file, elfnote *note, tn_error *err)
{
    uint32_t words[2];
    if (size < sizeof words)
        return tn_fail(err, TN_E_KERNEL, file, "its plugin note is damaged: %zu bytes; rebuild it", size);
    memcpy(words, desc, sizeof words);
    note->abi_major = words[0];
    note->abi_minor_needed = words[1];
    /* Another major may have other fields: nothing more is read of it. */
    if (note->abi_major != TN_ABI_MAJOR)
        return tn_fail(err, TN_E_KERNEL, file,
                       "plugin ABI: expected major %d, got %u; rebuild it with this version's headers", TN_ABI_MAJOR,
                       note->abi_major);
    const char *at = desc + sizeof words, *end = desc + size;
    if (!take_string(&at, end, note->name, sizeof note->name) ||
        !take_string(&at, end, note->version, sizeof note->version) || !note->name[0])
        return tn_fail(err, TN_E_KERNEL, file,
                       "its plugin note is damaged: name and version must be text of at most 63 bytes; rebuild it");
    if (note->abi_minor_needed > TN_ABI_MINOR)
        return tn_fail(err, TN_E_KERNEL, file,
                       "plugin ABI: it needs %u.%u, this host has %d.%d; use a newer tenon or an older plugin",
                       note->abi_major, note->abi_minor_needed, TN_ABI_MAJOR, TN_ABI_MINOR);
    return TN_OK;
}

/* Looks through one segment. found counts the plugin notes seen so far. */
static tn_status scan_segment(Elf *elf, const GElf_Phdr *segment, const char *file, int *found, elfnote *note,
                              tn_error *err)
{
    Elf_Type type = segment->p_align == 8 ? ELF_T_NHDR8 : ELF_T_NHDR;
    Elf_Data *data = elf_getdata_rawchunk(elf, (int64_t)segment->p_offset, segment->p_filesz, type);
    if (!data || !data->d_buf)
        return TN_OK; /* reaches outside the file */
    GElf_Nhdr head;
    size_t offset = 0, next, name, desc;
    while ((next = gelf_getnote(data, offset, &head, &name, &desc)) > 0) {
        offset = next;
        const char *base = data->d_buf;
        if (head.n_type != NOTE_TYPE || head.n_namesz != sizeof note_owner ||
            memcmp(base + name, note_owner, sizeof note_owner) != 0)
            continue;
        if ((*found)++ > 0)
            return tn_fail(err, TN_E_KERNEL, file, "it has two plugin notes; use TN_PLUGIN once per file");
        tn_status status = parse_note(base + desc, head.n_descsz, file, note, err);
        if (status != TN_OK)
            return status;
    }
    return TN_OK;
}

/* The loader maps segments without asking whether the file is long enough for them. */
static tn_status check_whole(const GElf_Phdr *segment, size_t size, const char *file, tn_error *err)
{
    if (segment->p_type != PT_LOAD || (segment->p_offset <= size && segment->p_filesz <= size - segment->p_offset))
        return TN_OK;
    return tn_fail(err, TN_E_KERNEL, file, "it is cut off after %zu bytes; copy or build it again", size);
}

static tn_status scan_segments(Elf *elf, size_t size, const char *file, int *found, elfnote *note, tn_error *err)
{
    size_t segments = 0;
    tn_status status = TN_OK;
    if (elf_getphdrnum(elf, &segments) != 0)
        segments = 0;
    for (size_t i = 0; status == TN_OK && i < segments && i < INT32_MAX; i++) {
        GElf_Phdr segment;
        if (!gelf_getphdr(elf, (int)i, &segment))
            continue;
        status = check_whole(&segment, size, file, err);
        if (status == TN_OK && segment.p_type == PT_NOTE && segment.p_filesz <= NOTES_MAX)
            status = scan_segment(elf, &segment, file, found, note, err);
    }
    return status;
}

static tn_status read_note(const void *content, size_t size, const char *file, elfnote *note, tn_error *err)
{
    *note = (elfnote){0};
    if (elf_version(EV_CURRENT) == EV_NONE)
        return tn_fail(err, TN_E_INTERNAL, file, "libelf is too old: %s", elf_errmsg(-1));
    /* libelf takes a pointer to memory that it may write to in other modes than the one used here. */
    Elf *elf = elf_memory((char *)(uintptr_t)content, size);
    if (!elf)
        return tn_fail(err, TN_DECLINED, file, "not an ELF file; not a plugin");
    int found = 0;
    tn_status status = check_machine(elf, file, err);
    if (status == TN_OK)
        status = scan_segments(elf, size, file, &found, note, err);
    if (status == TN_OK && found == 0)
        status = tn_fail(err, TN_DECLINED, file, "no plugin note; not a plugin");
    elf_end(elf);
    return status;
}

/* libelf says that there is no such thing where memory for it ran out; errno knows. */
tn_status elfnote_read(const void *content, size_t size, const char *file, elfnote *note, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    errno = 0;
    tn_status status = read_note(content, size, file, note, &why);
    if (status == TN_DECLINED && errno == ENOMEM)
        return tn_fail(err, TN_E_KERNEL, file, "out of memory while its plugin note was read");
    return status == TN_OK ? TN_OK : tn_fail(err, status, why.where, "%s", why.message);
}
