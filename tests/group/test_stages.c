/* Stages of a group: what their ranks gather, of passes that wait until they are taken. */
#include "group/group.h"
#include "local_group.h"
#include "suite.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STAGES = 2, MOST = 7, LONG = 300000 }; /* more than the local group keeps of a pass               */

static char sign_of(int32_t rank)
{
    return (char)('a' + rank);
}

/* In a rank's process: parts of one length, of several, and of nothing on some ranks. */
static int gather_all(local_group *local, int32_t rank, int32_t each)
{
    const tn_group end = local_group_end(local, rank);
    group *g = group_new(&end, NULL);
    if (!g || group_divide(g, each, NULL) != TN_OK || group_stages(g) != STAGES || group_stage_ranks(g) != each)
        return 1;
    group *stage = g->stage;
    int32_t first = rank / each * each, wrong = stage->end.rank != rank - first || stage->end.ranks != each;
    char *own = malloc(LONG), *all = malloc((size_t)LONG * MOST);
    for (size_t size = 1; size <= LONG && !wrong; size += LONG - 1) {
        memset(own, sign_of(rank), size);
        wrong += group_exchange(stage, own, size, all, NULL) != TN_OK;
        for (size_t i = 0; i < size * (size_t)each && !wrong; i++)
            wrong += all[i] != sign_of(first + (int32_t)(i / size));
    }
    for (int64_t total = 1; total < 3 * MOST && !wrong; total++) { /* rows of one column each                 */
        int64_t rows[MOST] = {0}, begin = 0, at;
        for (int32_t r = 0; r < each; r++) {
            rows[r] = group_share(stage, r, total, 1, &at);
            begin = r == stage->end.rank ? at : begin;
        }
        memset(own, '.', (size_t)total);
        memset(own + begin, sign_of(rank), (size_t)rows[stage->end.rank]);
        const tn_tensor whole = tn_tensor_dense(own, TN_I8, 2, (int64_t[]){total, 1});
        wrong += group_join_rows(stage, &whole, rows, NULL) != TN_OK;
        for (int64_t i = 0, r = 0; i < total; i++) {
            group_share(stage, (int32_t)r, total, 1, &at);
            while (i >= at + rows[r])
                group_share(stage, (int32_t)++r, total, 1, &at);
            wrong += own[i] != sign_of(first + (int32_t)r);
        }
    }
    wrong += g->messages != stage->messages || g->given != stage->given; /* they are the group's            */
    free(own);
    free(all);
    group_close(g);
    return wrong != 0;
}

START_TEST(ranks_of_a_stage_gather)
{
    int32_t each = _i, wrong = 0;
    local_group *local = local_group_new(STAGES * each);
    pid_t child[STAGES * MOST];
    ck_assert_ptr_nonnull(local);
    for (int32_t r = 0; r < STAGES * each; r++)
        if ((child[r] = fork()) == 0)
            _exit(gather_all(local, r, each));
    for (int32_t r = 0; r < STAGES * each; r++) {
        int status = 1;
        waitpid(child[r], &status, 0);
        wrong += status != 0;
    }
    ck_assert_int_eq(wrong, 0);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("stages of a group", 60);
    tcase_add_loop_test(tc, ranks_of_a_stage_gather, 1, MOST + 1);
    return suite_run();
}
