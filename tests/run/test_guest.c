/* What plugins do to this process: kernels and devices that change something of it, fail, or would write weights. */
#include "device/hoststate.h"
#include "eager/eager.h"
#include "open/model.h"
#include "plugin/plugins.h"
#include "run/guest.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <fcntl.h>
#include <fenv.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

enum { TOKENS = 5 };

static tn_status run_model(tn_model *m, tn_error *err)
{
    static const int64_t ids[TOKENS] = {1, 5, 9, 2, 11};
    tn_session_options o = {.size = sizeof o, .context = 32};
    tn_session *s = tn_session_new(m, &o, err);
    if (!s)
        return err->code;
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = TOKENS, .ids = ids};
    tn_status status = tn_session_run(s, &batch, NULL, err);
    tn_session_free(s);
    return status;
}

/* ---- what is looked at ------------------------------------------------------------------------------------ */

static void other_handler(int number)
{
    (void)number;
}

static void change_control(void)
{
    fesetround(FE_UPWARD);
}

static void change_mask(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void change_handler(void)
{
    signal(SIGTERM, other_handler);
}

static void change_folder(void)
{
    ck_assert_int_eq(chdir("/"), 0);
}

static void change_umask(void)
{
    umask(0);
}

static void close_output(void)
{
    close(STDOUT_FILENO);
}

static void replace_input(void)
{
    int fd = open("/proc/self/exe", O_RDONLY);
    dup2(fd, STDIN_FILENO);
    close(fd);
}

static void change_input(void)
{
    fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) ^ O_NONBLOCK);
}

static void set_alarm(void)
{
    alarm(1000);
}

static void set_profiler(void)
{
    setitimer(ITIMER_PROF, &(struct itimerval){{1000, 0}, {1000, 0}}, NULL);
}

static const struct {
    void (*change)(void);
    const char *says;
} changes[] = {
    {change_control, "floating-point control"},
    {change_mask, "signal mask"},
    {change_handler, "handler of SIGTERM"},
    {change_folder, "working directory"},
    {change_umask, "umask"},
    {close_output, "standard output"},
    {replace_input, "standard input"},
    {change_input, "standard input"},
    {set_alarm, "alarm"},
    {set_profiler, "profiling timer"},
};

/* Standard input is a file that nobody else has open. */
static void own_input(void)
{
    close(STDIN_FILENO);
    ck_assert_int_eq(open("/dev/null", O_RDONLY), STDIN_FILENO);
}
enum { CHANGES = sizeof changes / sizeof *changes };

/* Each is found, told, and put back, by a whole look and by a quick one. */
START_TEST(every_change_is_found)
{
    char changed[256];
    hoststate *before = hoststate_save();
    for (int quick = 0; quick < 2; quick++) {
        if (quick)
            hoststate_again(before);
        ck_assert(!hoststate_differs(before, false, changed, sizeof changed));
        ck_assert_str_eq(changed, "");
        changes[_i].change();
        ck_assert(hoststate_differs(before, false, changed, sizeof changed));
        ck_assert_str_eq(changed, changes[_i].says);
        ck_assert(hoststate_differs(before, true, changed, sizeof changed));
        ck_assert_msg(!hoststate_differs(before, false, changed, sizeof changed), "%s", changed);
    }
    changes[_i].change();
    hoststate_restore(before, changed, sizeof changed);
    ck_assert_str_eq(changed, changes[_i].says);
    hoststate_restore(hoststate_save(), changed, sizeof changed);
    ck_assert_str_eq(changed, "");
}
END_TEST

/* What happens by itself is no change: a signal whose handler was for once, a timer that runs down. */
START_TEST(what_happens_by_itself_is_no_change)
{
    char changed[256];
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = other_handler, .sa_flags = (int)SA_RESETHAND}, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {1000, 0}}, NULL);
    hoststate *before = hoststate_save();
    raise(SIGUSR1);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {999, 0}}, NULL);
    ck_assert_msg(!hoststate_differs(before, false, changed, sizeof changed), "%s", changed);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL); /* it rang                  */
    ck_assert_msg(!hoststate_differs(before, false, changed, sizeof changed), "%s", changed);
    hoststate_free(before);
}
END_TEST

static int open_descriptors(void)
{
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* Between looks nothing holds what the program may close. */
START_TEST(nothing_is_held_between_looks)
{
    tn_error err = TN_ERROR_INIT;
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM});
    tn_model *m = test_model("qwen3", .dtype = "f32");
    test_model_apply(m, NULL, "norm");
    int before = open_descriptors();
    tn_session *s = tn_session_new(m, NULL, &err);
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = 1, .ids = (const int64_t[]){1}};
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(tn_session_run(s, &batch, NULL, &err), TN_OK);
    ck_assert_int_eq(open_descriptors(), before);
    tn_session_free(s);
}
END_TEST

/* ---- kernels ---------------------------------------------------------------------------------------------- */

static void (*change)(void);
static int64_t skips; /* calls that are good before the change                                      */
static tn_status returned;

static tn_status forward(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    if (change && skips-- == 0)
        change();
    return returned ? returned : status;
}

/* Whether the call that does it is looked at on its own or not. */
START_TEST(the_host_puts_it_back)
{
    static const int64_t goods[] = {0, 2, 30};
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("qwen3", .dtype = "f32");
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .forward = forward});
    test_kernel_add(&(test_kernel){.id = "rope", .op = TN_OP_ROPE});
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "norm,rope", NULL, &err), TN_OK);
    char changed[256];
    hoststate *before = hoststate_save();
    for (size_t i = 0; i < sizeof goods / sizeof *goods; i++) {
        change = changes[_i].change;
        skips = goods[i];
        for (int j = 0; j < 6; j++)
            ck_assert_msg(run_model(m, &err) == TN_OK, "%s: %s", err.where, err.message);
        ck_assert_msg(!hoststate_differs(before, false, changed, sizeof changed), "%s", changed);
    }
    hoststate_free(before);
    ck_assert_uint_ge(tn_notice_count(), 1);
    for (size_t i = 0; i < tn_notice_count(); i++) {
        suite_expect_in(tn_notice_get(i), "norm");
        suite_expect_in(tn_notice_get(i), changes[_i].says);
        suite_expect_in(tn_notice_get(i), "; it was put back");
    }
}
END_TEST

static const tn_status statuses[] = {TN_DECLINED, TN_E_CANCELLED, TN_E_MEMORY,
                                     TN_E_USAGE,  (tn_status)77,  (tn_status)-99};

START_TEST(every_failure_is_the_kernels)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("qwen3", .dtype = "f32");
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .forward = forward});
    test_model_apply(m, NULL, "norm");
    returned = statuses[_i];
    ck_assert_int_eq(run_model(m, &err), TN_E_KERNEL);
    ck_assert_str_eq(err.where, "norm");
    suite_expect_in(err.message, "forward failed at model.layers.0.");
    suite_expect_in(err.message, " with 5 tokens: it returned ");
}
END_TEST

static tn_status failing_plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)plan;
    return returned ? tn_fail(err, returned, "elsewhere", "no room") : TN_OK;
}

/* The binding's name is in the error, and declining remains what it is. */
START_TEST(plan_fails_with_its_name)
{
    tn_impl impl = {.size = sizeof impl, .plan = failing_plan};
    graph_binding bound = {.impl = &impl, .id = "k", .file = "/x/k.so"};
    tn_site site = {.size = sizeof site, .path = "model.norm"};
    tn_plan plan = {.size = sizeof plan};
    tn_error err = TN_ERROR_INIT;
    returned = statuses[_i];
    tn_status status = guest_plan(&bound, &site, &plan, &err);
    ck_assert_int_eq(status, returned == TN_DECLINED ? TN_DECLINED : TN_E_KERNEL);
    ck_assert_str_eq(err.where, returned == TN_DECLINED ? "model.norm" : "k");
    suite_expect_in(err.message, "no room");
}
END_TEST

/* ---- a device --------------------------------------------------------------------------------------------- */

static tn_status guest_eager(const tn_call *call, tn_error *err)
{
    if (change && skips-- == 0)
        change();
    if (returned)
        return returned;
    return eager_cpu.eager(call, err);
}

static tn_status guest_alloc(tn_queue *queue, size_t bytes, void **out, tn_error *err)
{
    if (change)
        change();
    return eager_cpu.alloc(queue, bytes, out, err);
}

static void add_device(void)
{
    static tn_device device;
    tn_error err = TN_ERROR_INIT;
    device = eager_cpu;
    device.name = "guest";
    device.eager = guest_eager;
    device.alloc = guest_alloc;
    tn_plugin plugin = {
        .size = sizeof plugin, .abi_major = TN_ABI_MAJOR, .name = "guest", .version = "1.0.0", .device = &device};
    descriptor *d = descriptor_read(&plugin, NULL, "guest", &err);
    ck_assert_msg(d && registry_add(d, "guest", &err) == TN_OK, "%s", err.message);
}

START_TEST(devices_are_guests_too)
{
    char changed[256];
    tn_error err = TN_ERROR_INIT;
    add_device();
    /* The first model brings the handler of SIGBUS for mapped files, which stays. */
    tn_model_close(test_model_open("llama", "f32"));
    hoststate *before = hoststate_save();
    change = changes[_i].change;
    skips = 7;
    tn_model *m = test_model_open_with("llama", .dtype = "f32", .device = "guest");
    ck_assert_msg(run_model(m, &err) == TN_OK, "%s", err.message);
    ck_assert_msg(!hoststate_differs(before, false, changed, sizeof changed), "%s", changed);
    suite_expect_in(tn_notice_get(0), "device guest changed the ");
    suite_expect_in(tn_notice_get(0), changes[_i].says);
    change = NULL;
    returned = (tn_status)77;
    ck_assert_int_eq(run_model(m, &err), TN_E_KERNEL);
    ck_assert_str_eq(err.where, "device guest");
    suite_expect_in(err.message, "EMBEDDING failed at ");
    tn_model_close(m);
    hoststate_free(before);
}
END_TEST

/* ---- weights ---------------------------------------------------------------------------------------------- */

static bool is_writable(const void *address)
{
    unsigned long first, last;
    char line[512], mode[8];
    bool writable = true;
    FILE *maps = fopen("/proc/self/maps", "r");
    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %7s", &first, &last, mode) == 3 && (uintptr_t)address >= first &&
            (uintptr_t)address < last)
            writable = mode[1] == 'w';
    fclose(maps);
    return writable;
}

static tn_status packing_plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->packed_bytes = 100;
    return TN_OK;
}

/* First and last byte of every parameter, whether it is mapped, converted or packed. */
START_TEST(no_weight_can_be_written)
{
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    tn_model *m = test_model("qwen3_moe", .dtype = dtypes[_i]);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM, .plan = packing_plan});
    test_model_apply(m, NULL, "norm");
    for (size_t i = 0; i < m->target.graph->site_count; i++) {
        const graph_site *site = m->target.graph->sites[i];
        if (site->bound.packed)
            ck_assert(!is_writable(site->bound.packed) && !is_writable((const char *)site->bound.packed + 99));
        for (int role = 0; role < TN_ROLE_MAX; role++)
            for (int64_t t = 0; t < site->site.param[role].count; t++) {
                const tn_tensor *w = &site->site.param[role].tensors[t];
                size_t bytes = tn_dtype_bytes(w->dtype, tn_tensor_count(w));
                ck_assert_msg(!is_writable(w->data) && !is_writable((const char *)w->data + bytes - 1), "%s",
                              site->site.path);
            }
    }
}
END_TEST

/* The process is looked at when the first guest of a step is called, and not where none is. */
START_TEST(a_step_without_guests_is_not_looked_at)
{
    tn_model *m = test_model("qwen3", .dtype = NULL);
    test_kernel_add(&(test_kernel){.id = "norm", .op = TN_OP_RMS_NORM});
    test_model_apply(m, NULL, "norm");
    guest_watch w;
    guest_watch_open(&w, m->target.device, m->target.graph);
    mode_t before = umask(0);
    guest_watch_begin(&w);
    umask(027);
    guest_watch_end(&w);
    ck_assert_uint_eq(umask(0), 027);
    guest_watch_begin(&w);
    guest_watch_look(&w);
    umask(027);
    guest_watch_end(&w);
    ck_assert_uint_eq(umask(before), 0);
    guest_watch_close(&w);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("what plugins do to the process", 300);
    tcase_add_checked_fixture(tc, own_input, NULL);
    suite_add(tc, a_step_without_guests_is_not_looked_at);
    tcase_add_loop_test(tc, every_change_is_found, 0, CHANGES);
    suite_add(tc, what_happens_by_itself_is_no_change, nothing_is_held_between_looks);
    tcase_add_loop_test(tc, the_host_puts_it_back, 0, CHANGES);
    tcase_add_loop_test(tc, every_failure_is_the_kernels, 0, sizeof statuses / sizeof *statuses);
    tcase_add_loop_test(tc, plan_fails_with_its_name, 0, sizeof statuses / sizeof *statuses);
    tcase_add_loop_test(tc, devices_are_guests_too, 0, CHANGES);
    tcase_add_loop_test(tc, no_weight_can_be_written, 0, 3);
    return suite_run();
}
