/* The lock, broken rules, calls that are made to fail, live objects and their report at exit, switches. */
#include "sim.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_MAX 1024
#define GRAVES 65536

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t violations, calls, failing_call, live[SIM_KINDS];
sim_figures sim_counted;
static _Thread_local char message[MESSAGE_MAX], told[MESSAGE_MAX];
static _Thread_local bool pending;
static void *graves[GRAVES];
static size_t buried;

int sim_lock(void)
{
    pthread_mutex_lock(&lock);
    return 1;
}

void sim_unlock(int *held)
{
    (void)held;
    pthread_mutex_unlock(&lock);
}

int64_t sim_switch(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoll(text, NULL, 0) : otherwise;
}

__attribute__((constructor)) static void read_switches(void)
{
    failing_call = sim_switch("ASCEND_SIM_FAIL", 0);
}

/* ---- broken rules ---------------------------------------------------------------------------------------------- */

int sim_violation(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    pending = true;
    violations++;
    fprintf(stderr, "ascend_sim: %s (%d)\n", message, code);
    return code;
}

int sim_error(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    pending = true;
    return code;
}

const char *aclGetRecentErrMsg(void)
{
    SIM_HOLD;
    if (!pending)
        return NULL;
    pending = false;
    memcpy(told, message, sizeof told);
    return told;
}

bool sim_injected(const char *call)
{
    if (++calls != failing_call)
        return false;
    sim_error(0, "%s, call %lld, fails because ASCEND_SIM_FAIL says so", call, (long long)calls);
    return true;
}

int64_t sim_violations(void)
{
    SIM_HOLD;
    return violations;
}

int64_t sim_calls(void)
{
    SIM_HOLD;
    return calls;
}

void sim_fail_after(int64_t number)
{
    SIM_HOLD;
    failing_call = number > 0 ? calls + number : 0;
}

void sim_figures_so_far(sim_figures *figures)
{
    SIM_HOLD;
    *figures = sim_counted;
}

static struct {
    const char *name;
    int64_t count;
} launched[128];

void sim_count_name(const char *name)
{
    size_t i = 0;
    while (launched[i].name && strcmp(launched[i].name, name) != 0)
        i++;
    launched[i].name = name; /* there are fewer operators than places */
    launched[i].count++;
}

void sim_count_launch(const char *name)
{
    sim_count_name(name);
    sim_counted.launches++;
}

const char *sim_launched(int index, int64_t *count)
{
    SIM_HOLD;
    bool there = index >= 0 && (size_t)index < sizeof launched / sizeof *launched;
    *count = there ? launched[index].count : 0;
    return there ? launched[index].name : NULL;
}

/* ---- live objects ---------------------------------------------------------------------------------------------- */

void *sim_allocate(size_t size)
{
    void *memory = calloc(1, size ? size : 1);
    if (!memory)
        abort();
    return memory;
}

void sim_count_live(sim_kind kind, int change)
{
    live[kind] += change;
}

int64_t sim_leaks(void)
{
    SIM_HOLD;
    int64_t sum = 0;
    for (int kind = 0; kind < SIM_KINDS; kind++)
        sum += live[kind];
    return sum;
}

void sim_bury(void *object)
{
    free(graves[buried % GRAVES]);
    graves[buried++ % GRAVES] = object;
}

__attribute__((destructor)) static void report_leaks(void)
{
    static const char *const texts[SIM_KINDS] = {
        [SIM_MEMORY] = "pieces of device memory were not freed",
        [SIM_HOST_MEMORY] = "pieces of page-locked host memory were not freed",
        [SIM_STREAMS] = "streams were not destroyed",
        [SIM_CONTEXTS] = "contexts were not destroyed",
        [SIM_TENSORS] = "tensors were not destroyed",
        [SIM_SCALARS] = "scalars were not destroyed",
        [SIM_ARRAYS] = "arrays were not destroyed",
        [SIM_LISTS] = "lists were not destroyed",
        [SIM_EXECUTORS] = "executors were neither run nor destroyed",
        [SIM_MODELS] = "captured models were not destroyed",
    };
    for (int kind = 0; kind < SIM_KINDS; kind++)
        if (live[kind])
            fprintf(stderr, "ascend_sim: %lld %s\n", (long long)live[kind], texts[kind]);
}

/* ---- the chip -------------------------------------------------------------------------------------------------- */

static const char *soc_name(void)
{
    const char *name = getenv("ASCEND_SIM_SOC");
    return name && *name ? name : "Ascend910B3";
}

sim_soc sim_soc_of(void)
{
    const char *name = soc_name();
    if (strncmp(name, "Ascend310P", 10) == 0)
        return SIM_310P;
    if (strncmp(name, "Ascend910_93", 12) == 0)
        return SIM_A3;
    /* Without a digit it is the chip of the first generation. */
    return strncmp(name, "Ascend910B", 10) == 0 && name[10] >= '1' && name[10] <= '9' ? SIM_A2 : SIM_NO_SOC;
}

const char *aclrtGetSocName(void)
{
    static char name[64];
    SIM_HOLD;
    if (sim_need_context(NULL) == 100001)
        return NULL;
    snprintf(name, sizeof name, "%s", soc_name());
    return name;
}
