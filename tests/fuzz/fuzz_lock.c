/* Any bytes as a lock. What is accepted has names that lead nowhere else, and as many digests as pieces. */
#include "base/lockfile.h"
#include "fuzz.h"
#include "fuzz_json.h"

FUZZ_ENTRY(fuzz_lock)

static void look_at_digest(const char *digest)
{
    fuzz_require(digest && strlen(digest) == 64 && strspn(digest, "0123456789abcdef") == 64, "a digest is none");
}

static void look_at_code(const lockfile_codes *codes)
{
    for (size_t i = 0; i < codes->count; i++) {
        fuzz_require(codes->list[i].file[0] && !strchr(codes->list[i].file, '/'), "code in a folder");
        look_at_digest(codes->list[i].sha256);
        fuzz_require(lockfile_digest(codes, codes->list[i].file) == codes->list[i].sha256, "code is not found");
    }
}

static void look_at_file(const lockfile *lock, const lockfile_entry *entry)
{
    const char *slash = strchr(entry->name, '/'), *last = slash ? slash + 1 : entry->name;
    fuzz_require(entry->name[0] && entry->name[0] != '/' && last[0] && !strchr(last, '/'), "a name leads astray");
    fuzz_require(strcmp(last, "..") != 0 && strncmp(entry->name, "../", 3) != 0, "a name leads up");
    fuzz_require(lockfile_find(lock, entry->name) == entry, "a file is not found");
    fuzz_require(entry->bytes >= 0, "a file is smaller than nothing");
    for (size_t i = 0; i < lockfile_pieces(entry->bytes); i++)
        look_at_digest(lockfile_piece(entry, i));
}

int fuzz_lock(const uint8_t *data, size_t size)
{
    char path[64];
    tn_error err = TN_ERROR_INIT;
    int fd = fuzz_file(data, size, path);
    lockfile *lock = lockfile_read(path, &err);
    fuzz_agree(lock != NULL, &err);
    if (lock) {
        look_at_digest(lock->library);
        look_at_code(&lock->plugins);
        look_at_code(&lock->libraries);
        for (size_t i = 0; i < lock->file_count; i++)
            look_at_file(lock, &lock->files[i]);
    }
    lockfile_close(lock);
    close(fd);
    return 0;
}
