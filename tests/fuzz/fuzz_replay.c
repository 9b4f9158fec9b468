/* Any bytes as a file that --shadow wrote. What is accepted is performed by eager, and what is told of it can be
 * shown. */
#include "fuzz.h"
#include "fuzz_safetensors.h"
#include "replay_call.h"

#include <stdbool.h>
#include <tenon/check.h>

FUZZ_ENTRY(fuzz_replay)

#ifdef TN_FUZZER
/* The header mostly says what it has to say already: what the tensors hold is the site. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    size_t length = size < 8 ? 0 : fuzz_header_length(data);
    if (size < 8 || length > size - 8 || seed % 4 == 0)
        return fuzz_mutate_header(data, size, max_size, seed);
    size_t rest = size - 8 - length;
    if (rest > 0) /* what is behind a shorter text stays */
        LLVMFuzzerMutate(data + 8 + length, rest, rest);
    return size;
}
#endif

/* No control characters, and nothing that is no UTF-8. */
static void need_shown(const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        fuzz_require(*c >= 0x20 && *c != 0x7f && *c < 0xf5 && *c != 0xc0 && *c != 0xc1,
                     "what is told of a file cannot be shown");
}

static void tell(const char *path)
{
    tn_replay result = {.size = sizeof result};
    tn_error err = TN_ERROR_INIT;
    fuzz_agree(tn_check_replay(NULL, path, &result, &err) == TN_OK, &err);
    need_shown(err.where);
    need_shown(err.message);
    need_shown(result.kernel);
    need_shown(result.site);
    need_shown(result.then);
}

int fuzz_replay(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = fuzz_file(data, size, path);
    tn_error err = TN_ERROR_INIT;
    callfile c;
    tn_status status = callfile_open(&c, path, &err);
    fuzz_agree(status == TN_OK, &err);
    fuzz_require(status == err.code, "the status and the error disagree");
    if (status == TN_OK) {
        status = replay_call_perform(&c, &err);
        fuzz_require(status == err.code, "the status and the error disagree");
    }
    callfile_close(&c);
    tell(path);
    close(fd);
    return 0;
}
