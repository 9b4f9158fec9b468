/* A model to talk to, for the tests of tenon chat: a copy of the embedded one, beside which a chat template is written,
 * since that has none. */
#ifndef TENON_TESTS_TALK_H
#define TENON_TESTS_TALK_H

#include "process.h"
#include "tempdir.h"

#include <stdlib.h>
#include <string.h>

#define MODEL "models/demo"

/* Each message as it is, one behind the other, so that what was generated comes again as it was. */
#define PLAIN                                                                                                          \
    "{%- for m in messages -%}{%- if m.role == 'system' -%}[{{ m.content }}]{%- else -%}{{ m.content }}{%- endif -%}"  \
    "{%- endfor -%}"

static char *folder; /* the copy                                                                 */

static inline void setup(void)
{
    folder = tempdir_new();
    tempdir_copy(MODEL, folder);
    tempdir_put(folder, "chat_template.jinja", PLAIN);
}

#define GREEDY "--temperature=0", "--dtype=f32", "--kernels=none"
#define CHAT(input, ...) TENON(input, "chat", folder, GREEDY, __VA_ARGS__)

/* What tenon run makes of a prompt. */
static inline char *continued(const char *prompt, const char *n)
{
    process_result r = TENON(NULL, "run", folder, prompt, GREEDY, "-q", "-n", n);
    ck_assert_msg(r.status == 0, "%s", r.err);
    return r.out;
}

static inline void expect_said(const process_result *r, const char *words)
{
    ck_assert_msg(r->status == 0, "status %d: %s", r->status, r->err);
    ck_assert_msg(strstr(r->err, words) != NULL, "'%s' is not in: %s", words, r->err);
}

#endif
