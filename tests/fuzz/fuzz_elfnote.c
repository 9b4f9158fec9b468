/* Any bytes as a plugin's file: its note, and which libraries it asks for. */
#include "fuzz.h"
#include "plugin/elfnote.h"
#include "plugin/needs.h"

FUZZ_ENTRY(fuzz_elfnote)

static void check_text(const char *text, size_t size)
{
    fuzz_require(memchr(text, '\0', size) != NULL, "a text of the note does not end");
    for (; *text; text++)
        fuzz_require(*text >= 0x20 && *text <= 0x7e, "a text of the note is not plain");
}

int fuzz_elfnote(const uint8_t *data, size_t size)
{
    elfnote note;
    needs n;
    tn_error err = TN_ERROR_INIT, why = TN_ERROR_INIT;
    uint8_t *content = malloc(size ? size : 1); /* its end is where reading has to end                      */
    if (!content)
        abort();
    memcpy(content, size ? data : (const uint8_t *)"", size);
    tn_status status = elfnote_read(content, size, "/tmp/plugin.so", &note, &err);
    fuzz_agree(status == TN_OK, &err);
    fuzz_require(status == TN_OK || status == TN_DECLINED || status == TN_E_KERNEL, "another status");
    check_text(note.name, sizeof note.name);
    check_text(note.version, sizeof note.version);
    fuzz_require(status != TN_OK || (note.name[0] && note.abi_major == TN_ABI_MAJOR), "an accepted note says nothing");
    status = needs_read(content, size, "/nowhere/plugin.so", true, &n, &why);
    fuzz_agree(status == TN_OK, &why);
    needs_free(&n);
    free(content);
    return 0;
}
