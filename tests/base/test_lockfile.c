/* Locks as files from anybody: what is not exactly a lock is refused in one line that names file and key. */
#include "base/lockfile.h"
#include "suite.h"
#include "tempdir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define FIRST "{\"name\": \"config.json\", \"bytes\": 12, \"sha256\": [\"" A "\"]}"
#define SECOND                                                                                                         \
    "{\"name\": \"additional_chat_templates/tool_use.jinja\", \"bytes\": 16777217, \"sha256\": [\"" A "\", \"" B "\"]" \
    "}"
#define PLUGIN "{\"file\": \"x.so\", \"sha256\": \"" A "\"}"

/* Members in the order of good[]; one of them may be another text. */
static const char *const good[] = {"\"tenon_lock\": 1",
                                   "\"version\": \"0.1.0\"",
                                   "\"library\": \"" B "\"",
                                   "\"plugins\": [" PLUGIN "]",
                                   "\"libraries\": []",
                                   "\"piece_bytes\": 16777216",
                                   "\"files\": [" FIRST ", " SECOND "]"};
enum { MEMBERS = sizeof good / sizeof *good };

static char *folder;

static void compose(int which, const char *other, char *out, size_t size)
{
    size_t at = 0;
    bool any = false;
    for (int i = 0; i < MEMBERS; i++) {
        const char *member = i == which ? other : good[i];
        if (member[0])
            at += (size_t)snprintf(out + at, size - at, "%s%s", any ? ", " : "{", member);
        any = any || member[0];
    }
    snprintf(out + at, size - at, "}");
}

static lockfile *read_text(const char *text, tn_error *err)
{
    tempdir_put(folder, "x.lock", text);
    return lockfile_read(tempdir_at(folder, "x.lock"), err);
}

START_TEST(what_is_one)
{
    char text[4096];
    tn_error err = TN_ERROR_INIT;
    compose(-1, NULL, text, sizeof text);
    lockfile *lock = read_text(text, &err);
    ck_assert_msg(lock != NULL, "%s", err.message);
    ck_assert_str_eq(lock->version, "0.1.0");
    ck_assert_str_eq(lock->library, B);
    ck_assert_str_eq(lockfile_digest(&lock->plugins, "x.so"), A);
    ck_assert_ptr_null(lockfile_digest(&lock->plugins, "y.so"));
    ck_assert_ptr_null(lockfile_digest(&lock->libraries, "x.so"));
    ck_assert_ptr_null(lockfile_find(lock, "tokenizer.json"));
    const lockfile_entry *entry = lockfile_find(lock, "additional_chat_templates/tool_use.jinja");
    ck_assert_ptr_nonnull(entry);
    ck_assert_int_eq(entry->bytes, 16777217);
    ck_assert_str_eq(lockfile_piece(entry, 1), B);
    lockfile_close(lock);
    lockfile_close(NULL);
}
END_TEST

START_TEST(pieces)
{
    ck_assert_uint_eq(lockfile_pieces(0), 0);
    ck_assert_uint_eq(lockfile_pieces(1), 1);
    ck_assert_uint_eq(lockfile_pieces(LOCKFILE_PIECE), 1);
    ck_assert_uint_eq(lockfile_pieces(LOCKFILE_PIECE + 1), 2);
}
END_TEST

#define FILE_OF(name, bytes, sha) "\"files\": [{\"name\": " name ", \"bytes\": " bytes ", \"sha256\": " sha "}]"

static const struct {
    int which;
    const char *other, *words;
} wrong[] = {
    {0, "", "key 'tenon_lock': is missing; is this a lock?"},
    {0, "\"tenon_lock\": 2", "key 'tenon_lock': is 2, this version reads 1"},
    {0, "\"tenon_lock\": \"1\"", "key 'tenon_lock'"},
    {1, "", "has no 'version'"},
    {1, "\"version\": 1", "key 'version'"},
    {1, "\"version\": \"0.1.0\", \"extra\": 1", "has 'extra', which is not known"},
    {1, "\"version\": \"0.1.0\", \"version\": \"0.1.0\"", "is not valid JSON"},
    {2, "\"library\": \"" A "a\"", "key 'library': is no SHA-256"},
    {2, "\"library\": \"AAaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"", "key 'library'"},
    {2, "\"library\": null", "key 'library'"},
    {3, "\"plugins\": {}", "key 'plugins': is no list"},
    {3, "\"plugins\": [1]", "key 'plugins[0]': is no object"},
    {3, "\"plugins\": [" PLUGIN ", " PLUGIN "]", "key 'plugins[1]': 'x.so' is there twice"},
    {3, "\"plugins\": [{\"file\": \"a/x.so\", \"sha256\": \"" A "\"}]", "'file' is no name of a file without a folder"},
    {3, "\"plugins\": [{\"file\": \"..\", \"sha256\": \"" A "\"}]", "'file' is no name"},
    {3, "\"plugins\": [{\"file\": \"x.so\", \"sha256\": \"\"}]", "key 'plugins[0]': is no SHA-256"},
    {4, "\"libraries\": [{\"file\": \"\", \"sha256\": \"" A "\"}]", "key 'libraries[0]': 'file'"},
    {5, "\"piece_bytes\": 1", "key 'piece_bytes': is not 16777216"},
    {6, "\"files\": 3", "key 'files': is no list"},
    {6, "\"files\": [" FIRST ", " FIRST "]", "key 'files[1]': 'config.json' is there twice"},
    {6, FILE_OF("\"/etc/passwd\"", "0", "[]"), "key 'files[0]': 'name' is no name of a file in the model's folder"},
    {6, FILE_OF("\"../x.json\"", "0", "[]"), "'name' is no name"},
    {6, FILE_OF("\"a/../x.json\"", "0", "[]"), "'name' is no name"},
    {6, FILE_OF("\"a/..\"", "0", "[]"), "'name' is no name"},
    {6, FILE_OF("\"a//b\"", "0", "[]"), "'name' is no name"},
    {6, FILE_OF("\"a/\"", "0", "[]"), "'name' is no name"},
    {6, FILE_OF("\"\"", "0", "[]"), "'name' is no name"},
    {6, FILE_OF("\"a\\nb\"", "0", "[]"), "'name' is no name"},
    {6, FILE_OF("\"a\\u0000b\"", "0", "[]"), "is not valid JSON"},
    {6, FILE_OF("7", "0", "[]"), "'name' is no name"},
    {6, FILE_OF("\"x\"", "-1", "[]"), "key 'files[0]': 'bytes' is no size of a file"},
    {6, FILE_OF("\"x\"", "9223372036854775807", "[]"), "'bytes' is no size"},
    {6, FILE_OF("\"x\"", "1.5", "[]"), "'bytes' is no size"},
    {6, FILE_OF("\"x\"", "9007199254740992", "[]"), "'sha256' is no list of 536870912 digests"},
    {6, FILE_OF("\"x\"", "1", "[]"), "'sha256' is no list of 1 digests"},
    {6, FILE_OF("\"x\"", "0", "[\"" A "\"]"), "'sha256' is no list of 0 digests"},
    {6, FILE_OF("\"x\"", "16777217", "[\"" A "\", \"zz\"]"), "'sha256', digest 1, is no SHA-256"},
    {6, FILE_OF("\"x\"", "1", "\"" A "\""), "'sha256' is no list"},
    {6, "\"files\": [{\"name\": \"x\", \"bytes\": 0}]", "key 'files[0]': has no 'sha256'"},
};

START_TEST(what_is_none)
{
    char text[4096];
    tn_error err = TN_ERROR_INIT;
    compose(wrong[_i].which, wrong[_i].other, text, sizeof text);
    ck_assert_ptr_null(read_text(text, &err));
    ck_assert_int_eq(err.code, TN_E_INPUT);
    ck_assert_ptr_nonnull(strstr(err.where, "x.lock"));
    suite_expect_in(err.message, wrong[_i].words);
}
END_TEST

START_TEST(no_json)
{
    static const char *const texts[] = {"", "[]", "nothing", "{", "3", "{}", "\"\""};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tn_error err = TN_ERROR_INIT;
        ck_assert_ptr_null(read_text(texts[i], &err));
        ck_assert_int_eq(err.code, TN_E_INPUT);
        ck_assert_ptr_nonnull(strstr(err.where, "x.lock"));
    }
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(lockfile_read(tempdir_at(folder, "gone.lock"), &err));
    suite_expect_in(err.message, "cannot open");
}
END_TEST

static void open_folder(void)
{
    folder = tempdir_new();
}

int main(void)
{
    TCase *tc = suite_open("lockfile", 0);
    tcase_add_checked_fixture(tc, open_folder, NULL);
    suite_add(tc, what_is_one, pieces, no_json);
    tcase_add_loop_test(tc, what_is_none, 0, sizeof wrong / sizeof *wrong);
    return suite_run();
}
