/* The device npu, on the simulator of the vendor's libraries, beside the CPU. */
#include "npu_pair.h"

#include "base/tensor.h"
#include "check/compare.h"
#include "plugin/registry.h"
#include "process.h"
#include "suite.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- devices ---------------------------------------------------------------------------------------------- */

device npu_pair_npu, npu_pair_cpu;

device npu_pair_device(const char *name)
{
    device d;
    int32_t ordinal;
    tn_error err = TN_ERROR_INIT;
    const tn_device *ops = registry_device(name, &ordinal, &err);
    ck_assert_msg(ops != NULL, "%s", err.message);
    ck_assert_msg(device_open(&d, ops, ordinal, name != NULL, &err) == TN_OK, "%s", err.message);
    return d;
}

void npu_pair_scan(void)
{
    char folder[4200], absolute[PATH_MAX];
    tn_error err = TN_ERROR_INIT;
    tn_config *config = tn_config_new();
    snprintf(folder, sizeof folder, "%s/plugins", process_build());
    ck_assert_int_eq(tn_config_set_plugins(config, realpath(folder, absolute), &err), TN_OK);
    ck_assert_msg(tn_scan(config, &err) == TN_OK, "%s", err.message);
    tn_config_free(config);
}

void npu_pair_open(void)
{
    npu_pair_scan();
    npu_pair_npu = npu_pair_device("npu");
    npu_pair_cpu = npu_pair_device(NULL);
}

/* A function of the simulator's. */
static void *of_simulator(const char *function)
{
    void *library = dlopen("libascendcl.so", RTLD_LAZY | RTLD_NOLOAD);
    ck_assert_msg(library != NULL, "the simulator is not loaded");
    void *found = dlsym(library, function);
    ck_assert_msg(found != NULL, "%s", function);
    return found;
}

int64_t npu_pair_ask(const char *function)
{
    int64_t (*ask)(void);
    *(void **)&ask = of_simulator(function);
    return ask();
}

sim_figures npu_pair_figures(void)
{
    void (*look)(sim_figures *);
    sim_figures now;
    *(void **)&look = of_simulator("sim_figures_so_far");
    look(&now);
    return now;
}

void npu_pair_let_fail(int64_t number)
{
    void (*set)(int64_t);
    *(void **)&set = of_simulator("sim_fail_after");
    set(number);
}

void npu_pair_expect_clean(void)
{
    ck_assert_int_eq(npu_pair_ask("sim_violations"), 0);
    ck_assert_int_eq(npu_pair_ask("sim_leaks"), 0);
}

void npu_pair_close(void)
{
    device_close(&npu_pair_npu);
    device_close(&npu_pair_cpu);
    npu_pair_expect_clean();
}

/* ---- sites -------------------------------------------------------------------------------------------------- */

void npu_pair_upload(const tn_tensor *host, tn_tensor *there)
{
    *there = *host;
    size_t bytes = tn_dtype_bytes(host->dtype, tn_tensor_count(host));
    ck_assert_int_eq(device_alloc(&npu_pair_npu, bytes, &there->data, NULL), TN_OK);
    ck_assert_int_eq(device_upload(&npu_pair_npu, there->data, host->data, bytes, NULL), TN_OK);
}

npu_pair_sites *npu_pair_draw(const tn_site *like)
{
    static npu_pair_sites s;
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(draw_site_open(&s.drawn, like, 7, &err) == TN_OK, "%s", err.message);
    s.there = s.drawn.site;
    tn_tensor *next = s.tensors;
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        tn_param *p = &s.there.param[role];
        for (int64_t i = 0; i < p->count; i++)
            npu_pair_upload(&s.drawn.site.param[role].tensors[i], &next[i]);
        p->tensors = next;
        next += p->count;
    }
    return &s;
}

void npu_pair_drop(npu_pair_sites *s)
{
    ck_assert_int_eq(device_sync(&npu_pair_npu, NULL), TN_OK);
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < s->there.param[role].count; i++) {
            const tn_tensor *t = &s->there.param[role].tensors[i];
            device_free(&npu_pair_npu, t->data, tn_dtype_bytes(t->dtype, tn_tensor_count(t)));
        }
    draw_site_close(&s->drawn);
}

/* Performs the call, whose tensors are the host's, on the device. */
void npu_pair_perform(const tn_site *there, tn_call *call)
{
    tn_error err = TN_ERROR_INIT;
    tn_call far = *call;
    tn_tensor *tensors[2 * TN_CALL_TENSORS];
    const tn_tensor *hosts[2 * TN_CALL_TENSORS];
    int count = 0;
    for (int i = 0; i < call->in_count; i++, count++) {
        tensors[count] = &far.in[i];
        hosts[count] = &call->in[i];
    }
    for (int i = 0; i < call->out_count; i++, count++) {
        tensors[count] = &far.out[i];
        hosts[count] = &call->out[i];
    }
    for (int i = 0; i < count; i++)
        npu_pair_upload(hosts[i], tensors[i]);
    far.site = there;
    tn_status status = run_alone(&npu_pair_npu, NULL, NULL, &far, &err);
    ck_assert_msg(status == TN_OK, "%s: %s", err.where, err.message);
    for (int i = 0; i < count; i++) {
        size_t bytes = tn_dtype_bytes(hosts[i]->dtype, tn_tensor_count(hosts[i]));
        if (i >= call->in_count)
            ck_assert_int_eq(device_download(&npu_pair_npu, hosts[i]->data, tensors[i]->data, bytes, &err), TN_OK);
        device_free(&npu_pair_npu, tensors[i]->data, bytes);
    }
}

void npu_pair_give_results(tn_call *call)
{
    for (int i = 0; i < call->out_count; i++) {
        size_t bytes = tensor_padded_bytes(&call->out[i]) + 64;
        call->out[i].data = aligned_alloc(64, bytes);
        memset(call->out[i].data, 0x7b, bytes);
    }
}

void npu_pair_free_results(const tn_call *call)
{
    for (int i = 0; i < call->out_count; i++)
        free(call->out[i].data);
}

/* Both results of a call that was drawn for the site on the host. */
void npu_pair_compare(const npu_pair_sites *s, inputs *in, double ulps)
{
    tn_error err = TN_ERROR_INIT;
    compare_figures figures = {0};
    tn_call here = in->call, there = in->call;
    npu_pair_give_results(&here);
    npu_pair_give_results(&there);
    here.site = &s->drawn.site;
    ck_assert_msg(run_alone(&npu_pair_cpu, NULL, NULL, &here, &err) == TN_OK, "%s", err.message);
    npu_pair_perform(&s->there, &there);
    compare_call(&here, &there, ulps, in->skip, &figures);
    ck_assert_msg(figures.worst <= 1, "%s", figures.detail);
    npu_pair_free_results(&here);
    npu_pair_free_results(&there);
}

/* The loader reads its path once: the program starts again with the simulator's folder, which lies beside it, in it. */
void npu_pair_on_older(const char *test_case)
{
    char folder[4200];
    snprintf(folder, sizeof folder, "%s_old", getenv("LD_LIBRARY_PATH"));
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        setenv("LD_LIBRARY_PATH", folder, 1);
        setenv("CK_RUN_CASE", test_case, 1);
        if (!freopen("/dev/null", "w", stdout)) /* its sums are not this program's                  */
            _exit(126);
        execl("/proc/self/exe", "older", (char *)NULL);
        _exit(127);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}

int npu_pair_main(char **argv)
{
    char folder[4200];
    const char *path = getenv("LD_LIBRARY_PATH");
    ssize_t length = readlink("/proc/self/exe", folder, 4096);
    while (length > 0 && folder[length - 1] != '/')
        length--;
    if (length <= 0)
        return 1;
    strcpy(folder + length, "ascend_sim");
    if (!path || strncmp(path, folder, strlen(folder)) != 0) { /* or the older one                  */
        setenv("LD_LIBRARY_PATH", folder, 1);
        execv("/proc/self/exe", argv);
        return 1;
    }
    unsetenv("ASCEND_HOME_PATH");
    unsetenv("ASCEND_TOOLKIT_HOME");
    return process_main();
}

/* ---- faults ------------------------------------------------------------------------------------------------- */

static void expect_no_other_rule_broken(FILE *said, int64_t number)
{
    char line[1024];
    rewind(said);
    while (fgets(line, sizeof line, said))
        ck_assert_msg(strstr(line, " is NULL (161001)") || strstr(line, "workspace is NULL and"), "call %lld fails: %s",
                      (long long)number, line);
    fclose(said);
}

void npu_pair_in_child(void (*body)(void *ctx), void *ctx, int64_t number)
{
    FILE *said = tmpfile();
    ck_assert_ptr_nonnull(said);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        suite_limit_child();
        dup2(fileno(said), 2);
        body(ctx);
        _exit(0);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "call %lld fails: status %x", (long long)number,
                  (unsigned)status);
    expect_no_other_rule_broken(said, number);
}
