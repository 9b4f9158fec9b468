/* A machine that stands still while a kernel is checked is no fault of the kernel's. */
#include "open/model.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

/* In a call, and in the first call of the next child too, for longer than a call may take. */
static struct standing {
    _Atomic pid_t last, now;
} * standing;

static tn_status stands_still(const tn_call *call, tn_error *err)
{
    if (standing->last != getpid()) {
        standing->last = standing->now = getpid();
        raise(SIGSTOP);
    }
    return test_kernel_forward(call, err);
}

static void *go_on_later(void *unused)
{
    for (pid_t who; (who = standing->now) >= 0; usleep(10000))
        if (who > 0) {
            usleep(5500000);
            standing->now = 0;
            kill(who, SIGCONT);
        }
    return unused;
}

START_TEST(a_machine_may_stand_still)
{
    pthread_t thread;
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model_open("qwen3", "f32");
    standing = mmap(NULL, sizeof *standing, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(standing != MAP_FAILED && pthread_create(&thread, NULL, go_on_later, NULL) == 0);
    test_kernel_add(&(test_kernel){.id = "stands", .op = TN_OP_RMS_NORM, .forward = stands_still});
    tn_status status = tn_apply_kernels(m, NULL, "stands", NULL, &err);
    ck_assert_int_gt(standing->last, 0);
    standing->now = -1;
    pthread_join(thread, NULL);
    ck_assert_msg(status == TN_OK, "%s", err.message);
    tn_model_close(m);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("standing still", 120);
    suite_add(tc, a_machine_may_stand_still);
    return suite_run();
}
