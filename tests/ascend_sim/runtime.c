/* Initialisation, devices and contexts. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEVICES_MAX 8
#define CONTEXT_MAGIC 0xac1c0de7u

struct sim_context {
    uint32_t magic;
    int device;
    bool is_default;
    aclrtStream stream;
};

static bool acl_ready;
static pid_t home; /* the process that initialised */
static sim_context *defaults[DEVICES_MAX];
static int references[DEVICES_MAX];
static _Thread_local sim_context *current;

static int device_count(void)
{
    int64_t count = sim_switch("ASCEND_SIM_DEVICES", 1);
    return count > DEVICES_MAX ? DEVICES_MAX : (int)count;
}

static void say_what_this_is(void)
{
    static bool said;
    if (!said && !sim_switch("ASCEND_SIM_QUIET", 0))
        fprintf(stderr, "ascend_sim: a simulator of CANN's interface on host memory; its speed says nothing about a "
                        "device\n");
    said = true;
}

aclError aclInit(const char *configPath)
{
    SIM_HOLD;
    (void)configPath; /* a file of settings: none of them changes what is simulated */
    if (sim_injected("aclInit"))
        return 500000;
    if (acl_ready)
        return sim_error(100002, "aclInit: it was called before");
    say_what_this_is();
    acl_ready = true;
    home = getpid();
    return 0;
}

aclError aclFinalize(void)
{
    SIM_HOLD;
    if (!acl_ready)
        return sim_error(100037, "aclFinalize: not initialised");
    acl_ready = false;
    return 0;
}

aclError aclrtGetVersion(int32_t *majorVersion, int32_t *minorVersion, int32_t *patchVersion)
{
    SIM_HOLD;
    if (!majorVersion || !minorVersion || !patchVersion)
        return sim_violation(100000, "aclrtGetVersion: a pointer is NULL");
    *majorVersion = 1;
    *minorVersion = 13;
    *patchVersion = 0;
    return 0;
}

/* ---- what every call asks -------------------------------------------------------------------------------------- */

static int need_ready(const char *call)
{
    const char *forks = getenv("ASCEND_SIM_FORK");
    if (acl_ready && home != getpid() && forks && strcmp(forks, "no") == 0)
        return sim_violation(507899, "%s: in a child of the process that initialised", call ? call : "a call");
    if (acl_ready)
        return 0;
    return call ? sim_violation(100001, "%s: aclInit was not called", call) : 100001;
}

sim_context *sim_current(void)
{
    if (current && current->magic != CONTEXT_MAGIC)
        current = NULL; /* destroyed, perhaps by another thread */
    return current;
}

int sim_current_device(void)
{
    return sim_current() ? current->device : -1;
}

int sim_context_device(const sim_context *c)
{
    return c->device;
}

aclrtStream *sim_default_stream(sim_context *c)
{
    return &c->stream;
}

int sim_need_context(const char *call)
{
    int code = need_ready(call);
    if (code || sim_current())
        return code;
    return call ? sim_violation(107002, "%s: the thread has no device and no context", call) : 107002;
}

/* ---- devices --------------------------------------------------------------------------------------------------- */

static sim_context *new_context(int device, bool is_default)
{
    sim_context *c = sim_allocate(sizeof *c);
    *c = (sim_context){.magic = CONTEXT_MAGIC, .device = device, .is_default = is_default};
    return c;
}

static void end_context(sim_context *c, bool perform)
{
    sim_streams_reset(c, perform);
    c->magic = 0;
    sim_bury(c);
}

aclError aclrtGetDeviceCount(uint32_t *count)
{
    SIM_HOLD;
    int code = need_ready("aclrtGetDeviceCount");
    if (code)
        return code;
    if (!count)
        return sim_violation(100000, "aclrtGetDeviceCount: count is NULL");
    if (sim_injected("aclrtGetDeviceCount"))
        return 507899;
    if (device_count() < 0)
        return sim_error(207004, "aclrtGetDeviceCount: no device");
    *count = (uint32_t)device_count();
    return 0;
}

aclError aclrtSetDevice(int32_t deviceId)
{
    SIM_HOLD;
    int code = need_ready("aclrtSetDevice");
    if (code)
        return code;
    if (sim_injected("aclrtSetDevice"))
        return 507899;
    if (deviceId < 0 || deviceId >= device_count())
        return sim_error(107001, "aclrtSetDevice: there is no device %d", (int)deviceId);
    if (!defaults[deviceId])
        defaults[deviceId] = new_context(deviceId, true);
    references[deviceId]++;
    current = defaults[deviceId];
    return 0;
}

/* The default context goes, and with it its streams and the memory of the device. */
static int release_device(int device)
{
    int code = sim_perform_device(device);
    int streams = sim_streams_of(defaults[device]);
    if (streams)
        sim_violation(0, "aclrtResetDevice: %d streams of the default context were not destroyed before", streams);
    end_context(defaults[device], true);
    defaults[device] = NULL;
    references[device] = 0;
    sim_memory_reset(device);
    return code;
}

aclError aclrtResetDevice(int32_t deviceId)
{
    SIM_HOLD;
    int code = need_ready("aclrtResetDevice");
    if (code)
        return code;
    if (deviceId < 0 || deviceId >= device_count())
        return sim_error(107001, "aclrtResetDevice: there is no device %d", (int)deviceId);
    if (!references[deviceId])
        return sim_violation(107002, "aclrtResetDevice: device %d was not set", (int)deviceId);
    return --references[deviceId] == 0 ? release_device(deviceId) : 0;
}

/* A question, no broken rule. Which code the vendor gives without a device is not certain. */
aclError aclrtGetDevice(int32_t *deviceId)
{
    SIM_HOLD;
    if (!deviceId)
        return sim_violation(100000, "aclrtGetDevice: deviceId is NULL");
    if (!sim_current())
        return sim_error(107002, "aclrtGetDevice: the thread has no device");
    *deviceId = current->device;
    return 0;
}

aclError aclrtSynchronizeDevice(void)
{
    SIM_HOLD;
    int code = sim_need_context("aclrtSynchronizeDevice");
    if (code)
        return code;
    if ((code = sim_not_captured(NULL, "aclrtSynchronizeDevice")))
        return code;
    if (sim_injected("aclrtSynchronizeDevice"))
        return 507899;
    return sim_perform_device(current->device);
}

/* ---- contexts -------------------------------------------------------------------------------------------------- */

aclError aclrtCreateContext(aclrtContext *context, int32_t deviceId)
{
    SIM_HOLD;
    int code = need_ready("aclrtCreateContext");
    if (code)
        return code;
    if (!context)
        return sim_violation(100000, "aclrtCreateContext: context is NULL");
    if (sim_injected("aclrtCreateContext"))
        return 507899;
    if (deviceId < 0 || deviceId >= device_count())
        return sim_error(107001, "aclrtCreateContext: there is no device %d", (int)deviceId);
    *context = current = new_context(deviceId, false);
    sim_count_live(SIM_CONTEXTS, 1);
    return 0;
}

aclError aclrtDestroyContext(aclrtContext context)
{
    SIM_HOLD;
    sim_context *c = context;
    if (!c || c->magic != CONTEXT_MAGIC)
        return sim_violation(107000, "aclrtDestroyContext: no live context");
    if (c->is_default)
        return sim_violation(107000, "aclrtDestroyContext: the default context cannot be destroyed");
    if (sim_streams_of(c))
        sim_violation(0, "aclrtDestroyContext: %d of its streams were not destroyed before", sim_streams_of(c));
    end_context(c, false);
    sim_count_live(SIM_CONTEXTS, -1);
    return 0;
}

aclError aclrtSetCurrentContext(aclrtContext context)
{
    SIM_HOLD;
    int code = need_ready("aclrtSetCurrentContext");
    if (code)
        return code;
    sim_context *c = context;
    if (!c || c->magic != CONTEXT_MAGIC)
        return sim_violation(107000, "aclrtSetCurrentContext: no live context");
    if (sim_injected("aclrtSetCurrentContext"))
        return 507899;
    current = c;
    return 0;
}

aclError aclrtGetCurrentContext(aclrtContext *context)
{
    SIM_HOLD;
    if (!context)
        return sim_violation(100000, "aclrtGetCurrentContext: context is NULL");
    if (!sim_current())
        return sim_error(107002, "aclrtGetCurrentContext: the thread has none");
    *context = current;
    return 0;
}
