/* One of its pointers leads nowhere: BAD_PLUGIN names it. With "here" in front only outside of a trial, which opens it
 * on another thread than a process's first. */
#include "honest.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tenon/device.h>
#include <unistd.h>

static tn_dim_rule rules[] = {{TN_DIM_WIDTH, 1, 1 << 20, 1}};
static tn_impl impls[] = {HONEST_IMPL(honest_forward)};
static tn_kernel kernels[] = {HONEST_KERNEL("test_pointers", impls)};
static tn_device device = {.size = sizeof device, .name = "test"};
/* Registered below, since TN_PLUGIN's own would be constant. */
static tn_plugin plugin = {.size = sizeof plugin,
                           .abi_major = TN_ABI_MAJOR,
                           .name = "pointers",
                           .version = "1.0.0",
                           .kernels = kernels,
                           .kernel_count = 1};
static int no_code[4] = {1, 2, 3, 4};

static bool is(const char *name)
{
    const char *fault = getenv("BAD_PLUGIN");
    if (fault && strncmp(fault, "here ", 5) == 0)
        return gettid() == getpid() && !strcmp(fault + 5, name);
    return fault && !strcmp(fault, name);
}

/* 64 bytes in front of a page that nobody may read. */
static char *edge(void)
{
    char *two = mmap(NULL, 131072, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(two + 65536, 65536, PROT_NONE);
    memset(two, 'x', 65536);
    return two + 65536 - 64;
}

static void *nowhere(void)
{
    return (void *)(uintptr_t)8;
}

static void set_texts(void)
{
    if (is("class_glob"))
        impls[0].match.class_glob = nowhere();
    if (is("a text without end"))
        impls[0].match.class_glob = edge();
    if (is("id"))
        kernels[0].id = nowhere();
    if (is("summary"))
        kernels[0].summary = nowhere();
    if (is("version"))
        kernels[0].version = nowhere();
    if (is("device name"))
        kernels[0].device = nowhere();
    if (is("plugin name"))
        plugin.name = nowhere();
}

static void set_lists(void)
{
    if (is("dims")) {
        impls[0].match.dims = nowhere();
        impls[0].match.dim_count = 1;
    } else {
        impls[0].match.dims = rules;
        impls[0].match.dim_count = 1;
    }
    if (is("impls"))
        kernels[0].impls = nowhere();
    if (is("more impls than there are"))
        kernels[0].impl_count = 60;
    if (is("kernels"))
        plugin.kernels = nowhere();
    if (is("half a struct"))
        plugin.kernels = (const void *)edge();
}

static void set_functions(void)
{
    if (is("forward"))
        impls[0].forward = (tn_status(*)(const tn_call *, tn_error *))(uintptr_t)no_code;
    if (is("plan"))
        impls[0].plan = (tn_status(*)(const tn_site *, tn_plan *, tn_error *))(uintptr_t)8;
    if (is("available"))
        kernels[0].available = (tn_status(*)(tn_error *))(uintptr_t)no_code;
    if (is("device operation")) {
        plugin.device = &device;
        memset((char *)&device + offsetof(tn_device, alloc), 8, sizeof device - offsetof(tn_device, alloc));
    }
    if (is("device"))
        plugin.device = nowhere();
}

__attribute__((constructor)) static void set(void)
{
    set_texts();
    set_lists();
    set_functions();
}

__asm__(
    ".pushsection .note.tenon,\"a\",%note\n.balign 4\n.long 6, 2f - 1f, 1\n.asciz \"Tenon\"\n.balign 4\n"
    "1: .long " TN_STRINGIFY(TN_ABI_MAJOR) ", 0\n.asciz \"pointers\"\n.asciz \"1.0.0\"\n.balign 4\n2:\n.popsection\n");

__attribute__((constructor)) static void hand_over(void)
{
    tn_register(is("plugin") ? nowhere() : &plugin);
}
