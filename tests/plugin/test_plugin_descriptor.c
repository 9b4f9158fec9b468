/* Descriptors of other versions: shorter and longer structs, and what is refused in them. */
#include "empty_device.h"
#include "plugin/descriptor.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tn_impl impl;
static tn_kernel kernel;
static tn_plugin plugin;

static void setup(void)
{
    impl = (tn_impl){.size = sizeof impl,
                     .op = TN_OP_RMS_NORM,
                     .match = {.size = sizeof(tn_match),
                               .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32), [TN_AXIS_NORM] = TN_TAKES(TN_NORM_W)},
                               .class_glob = "*RMSNorm"},
                     .tolerance = {.ulps_f32 = 4},
                     .forward = empty_forward};
    kernel = (tn_kernel){.size = sizeof kernel,
                         .id = "k",
                         .version = "1",
                         .device = "cpu",
                         .priority = 7,
                         .impls = &impl,
                         .impl_count = 1};
    plugin = (tn_plugin){.size = sizeof plugin,
                         .abi_major = TN_ABI_MAJOR,
                         .name = "p",
                         .version = "1",
                         .kernels = &kernel,
                         .kernel_count = 1};
}

static descriptor *expect_good(void)
{
    tn_error err = TN_ERROR_INIT;
    descriptor *d = descriptor_read(&plugin, NULL, "p.so", &err);
    ck_assert_msg(d != NULL, "%s", err.message);
    return d;
}

static void expect_bad(const char *message)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(descriptor_read(&plugin, NULL, "p.so", &err));
    ck_assert_int_eq(err.code, TN_E_KERNEL);
    ck_assert_str_eq(err.where, "p.so");
    suite_expect_in(err.message, message);
}

/* ---- sizes ------------------------------------------------------------------------------------------------- */

/* An array of n impls as a later version would lay it out: more bytes behind the match, more at the end. The extra
 * bytes hold fill. */
enum { MATCH_MORE = 16, IMPL_MORE = 24, LATER = sizeof(tn_impl) + MATCH_MORE + IMPL_MORE };
static char *later_impls(size_t n, char match_fill, char end_fill)
{
    char *bytes = calloc(n, LATER);
    size_t at = offsetof(tn_impl, match), behind = offsetof(tn_impl, tolerance);
    for (size_t i = 0; i < n; i++) {
        char *to = bytes + i * LATER;
        tn_impl one = impl;
        one.size = LATER;
        one.match.size = sizeof(tn_match) + MATCH_MORE;
        one.tolerance.ulps_f32 = 4 + (double)i;
        memcpy(to, &one, behind);
        memset(to + behind, match_fill, MATCH_MORE);
        memcpy(to + behind + MATCH_MORE, (char *)&one + behind, sizeof one - behind);
        memset(to + sizeof one + MATCH_MORE, end_fill, IMPL_MORE);
    }
    ck_assert_uint_eq(at + sizeof(tn_match), behind);
    return bytes;
}

START_TEST(longer_structs_are_read_while_what_is_unknown_is_zero)
{
    char *bytes = later_impls(3, 0, 0);
    kernel.impls = (const tn_impl *)bytes;
    kernel.impl_count = 3;
    descriptor *d = expect_good();
    for (int i = 0; i < 3; i++) {
        const tn_impl *got = &d->kernels[0].impls[i];
        ck_assert_uint_eq(got->size, sizeof(tn_impl));
        ck_assert_uint_eq(got->match.size, sizeof(tn_match));
        ck_assert_str_eq(got->match.class_glob, "*RMSNorm");
        ck_assert_double_eq(got->tolerance.ulps_f32, 4 + i);
        ck_assert(got->forward == empty_forward);
        ck_assert(got->backward == NULL);
    }
    descriptor_free(d);
    free(bytes);
}
END_TEST

START_TEST(unknown_bytes_in_use_are_refused)
{
    char *bytes = later_impls(1, _i == 0 ? 1 : 0, _i == 1 ? 1 : 0);
    kernel.impls = (const tn_impl *)bytes;
    char want[128];
    snprintf(want, sizeof want, "kernel 'k', impl 0%s: byte %zu is in use and unknown to this host; use a newer tenon",
             _i == 0 ? ": match" : "", _i == 0 ? sizeof(tn_match) : sizeof(tn_impl) + MATCH_MORE);
    expect_bad(want);
    free(bytes);
}
END_TEST

START_TEST(longer_kernels_and_plugins_are_read)
{
    struct {
        tn_kernel kernel;
        uint64_t more;
    } kernels[2] = {{kernel, 0}, {kernel, 0}};
    struct {
        tn_plugin plugin;
        uint64_t more[3];
    } later = {plugin, {0}};
    kernels[0].kernel.size = kernels[1].kernel.size = sizeof kernels[0];
    kernels[1].kernel.id = "second";
    later.plugin.kernels = &kernels[0].kernel;
    later.plugin.kernel_count = 2;
    later.plugin.size = sizeof later;
    tn_error err = TN_ERROR_INIT;
    descriptor *d = descriptor_read(&later.plugin, NULL, "p.so", &err);
    ck_assert_msg(d != NULL, "%s", err.message);
    ck_assert_uint_eq(d->kernel_count, 2);
    ck_assert_str_eq(d->kernels[1].id, "second");
    ck_assert_int_eq(d->kernels[1].priority, 7);
    descriptor_free(d);
    later.more[2] = 1;
    ck_assert_ptr_null(descriptor_read(&later.plugin, NULL, "p.so", &err));
    suite_expect_in(err.message, "plugin: byte ");
    later.more[2] = 0;
    kernels[1].more = 1;
    tn_error_clear(&err);
    ck_assert_ptr_null(descriptor_read(&later.plugin, NULL, "p.so", &err));
    suite_expect_in(err.message, "kernel 1: byte ");
}
END_TEST

START_TEST(missing_fields_are_zero)
{
    /* The bytes behind the size that an impl gives do not count. */
    impl.size = offsetof(tn_impl, backward);
    impl.backward = empty_forward;
    plugin.size = offsetof(tn_plugin, device);
    plugin.device = (const struct tn_device *)&plugin;
    descriptor *d = expect_good();
    ck_assert(d->impls[0].backward == NULL);
    ck_assert(d->impls[0].forward == empty_forward);
    ck_assert_ptr_null(d->plugin.device);
    descriptor_free(d);
    kernel.size = offsetof(tn_kernel, impls);
    expect_bad("kernel 'k' has no impl");
}
END_TEST

START_TEST(sizes_that_no_version_has_are_refused)
{
    uint32_t *const sizes[] = {&plugin.size, &kernel.size, &impl.size, &impl.match.size};
    static const char *const names[] = {"plugin: its size is ", "kernel 0: its size is ",
                                        "kernel 'k', impl 0: its size is ", "kernel 'k', impl 0: match: its size is "};
    static const uint32_t wrong[] = {0, 4, 7, 1001, 1 << 20, UINT32_MAX};
    for (size_t i = 0; i < 4; i++)
        for (size_t j = 0; j < sizeof wrong / sizeof wrong[0]; j++) {
            setup();
            *sizes[i] = wrong[j];
            expect_bad(names[i]);
        }
    setup();
    impl.match.size = sizeof impl;
    expect_bad("match: it does not fit into its impl");
}
END_TEST

START_TEST(elements_of_an_array_have_one_size)
{
    tn_kernel kernels[2] = {kernel, kernel};
    kernels[1].size = sizeof(tn_kernel) - 8;
    plugin.kernels = kernels;
    plugin.kernel_count = 2;
    expect_bad("kernel 1: its size is ");
}
END_TEST

/* ---- content ---------------------------------------------------------------------------------------------------- */

START_TEST(texts_are_checked)
{
    kernel.id = NULL;
    expect_bad("kernel 0 has an empty id; give it one");
    static const char *const ids[] = {
        "a,b", "auto", "none", "true", "false",
        "-a",  "a b",  "a\n",  "a*",   "0123456789012345678901234567890123456789012345678901234567890123"};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        kernel.id = ids[i];
        expect_bad("kernel 0: its id must be ");
    }
    setup();
    kernel.summary = "two\nlines";
    expect_bad("kernel 'k': its summary must be one line");
    setup();
    plugin.name = NULL;
    expect_bad("plugin: its name must be one line");
    plugin.name = "";
    expect_bad("plugin: its name is empty");
    setup();
    plugin.version = "\033[2J";
    expect_bad("plugin: its version must be one line");
    setup();
    kernel.version = NULL; /* may be left out */
    descriptor *d = expect_good();
    ck_assert_str_eq(d->kernels[0].version, "");
    ck_assert_str_eq(d->kernels[0].summary, "");
    descriptor_free(d);
}
END_TEST

START_TEST(counts_and_kinds_are_checked)
{
    kernel.device = NULL;
    expect_bad("kernel 'k': the name of its device must be one line");
    kernel.device = "The NPU";
    expect_bad("kernel 'k': 'The NPU' names no device; a device's name is 1 to 31 lower case letters");
    setup();
    kernel.impls = NULL;
    expect_bad("kernel 'k' has no impl");
    setup();
    kernel.impl_count = 1000000;
    expect_bad("kernel 'k' has 1000000 impls");
    setup();
    plugin.kernel_count = 0;
    expect_bad("plugin: it registers neither a kernel nor a device");
    plugin.kernel_count = UINT32_MAX;
    expect_bad("plugin: 4294967295 kernels");
    plugin.kernel_count = 1;
    plugin.kernels = NULL;
    expect_bad("plugin: 1 kernels, and no such list");
    setup();
    plugin.abi_major = 1;
    expect_bad("plugin ABI: expected major 2, got 1");
    setup();
    plugin.abi_minor_needed = TN_ABI_MINOR + 1;
    expect_bad("plugin ABI: it needs 2.6, this host has 2.5");
    ck_assert_ptr_null(descriptor_read(NULL, NULL, "p.so", NULL));
}
END_TEST

START_TEST(note_and_descriptor_agree)
{
    elfnote note = {.abi_major = TN_ABI_MAJOR, .name = "p", .version = "1"};
    tn_error err = TN_ERROR_INIT;
    descriptor *d = descriptor_read(&plugin, &note, "p.so", &err);
    ck_assert_msg(d != NULL, "%s", err.message);
    descriptor_free(d);
    note.version[0] = '2';
    ck_assert_ptr_null(descriptor_read(&plugin, &note, "p.so", &err));
    ck_assert_str_eq(err.message, "plugin: its note says p 2, it registers as p 1; register with TN_PLUGIN only");
}
END_TEST

/* ---- devices ---------------------------------------------------------------------------------------------------- */

static void dev_close(tn_queue *queue)
{
    (void)queue;
}

START_TEST(a_device_is_complete)
{
    tn_device device = {.size = sizeof device,
                        .name = "npu",
                        .alloc = empty_alloc,
                        .free = empty_free,
                        .upload = empty_copy,
                        .download = empty_copy,
                        .eager = empty_forward};
    plugin.kernel_count = 0;
    plugin.device = &device;
    descriptor *d = expect_good();
    ck_assert(d->device->download == empty_copy);
    ck_assert(d->plugin.device == d->device);
    ck_assert_str_eq(d->device->name, "npu");
    ck_assert(d->device->name != device.name);
    ck_assert_str_eq(d->device->summary, "");
    descriptor_free(d);
    device.upload = NULL;
    expect_bad("device 'npu' lacks alloc, free, upload, download or eager");
    device.upload = empty_copy;
    device.close = dev_close;
    expect_bad("device 'npu' has a close and no open");
    device.close = NULL;
    device.name = NULL;
    expect_bad("device: its name must be one line");
    static const char *const names[] = {"", "auto", "none", "Npu", "npu:1", "a b", "0123456789012345678901234567890x"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        device.name = names[i];
        expect_bad("a device's name is 1 to 31 lower case letters");
    }
    device.name = "npu";
    device.size = 12;
    expect_bad("device: its size is 12");
}
END_TEST

static tn_status open_nothing(tn_group *group, double patience, tn_error *err)
{
    (void)group, (void)patience;
    return tn_fail(err, TN_E_KERNEL, "group", "there is none");
}

START_TEST(a_group_is_complete)
{
    tn_group_kind group = {.size = sizeof group, .name = "wires", .open = open_nothing};
    plugin.kernel_count = 0;
    plugin.group = &group;
    descriptor *d = expect_good();
    ck_assert(d->group->open == open_nothing);
    ck_assert(d->plugin.group == d->group);
    ck_assert(d->group->name != group.name);
    ck_assert_str_eq(d->group->name, "wires");
    ck_assert_str_eq(d->group->summary, "");
    descriptor_free(d);
    group.open = NULL;
    expect_bad("group: it needs a name such as 'mpi', and open");
    group.open = open_nothing;
    group.name = "Wires";
    expect_bad("group: it needs a name such as 'mpi', and open");
    group.name = NULL;
    expect_bad("group: its name must be one line");
    group.name = "wires";
    group.size = 12;
    expect_bad("group: its size is 12");
}
END_TEST

/* What the plugin changes afterwards changes nothing here. */
START_TEST(strings_and_lists_are_copied)
{
    char id[] = "k", glob[] = "*RMSNorm", device[] = "npu", name[] = "p";
    tn_dim_rule rules[] = {{TN_DIM_WIDTH, 2, 8, 2}};
    kernel.id = id;
    kernel.device = device;
    plugin.name = name;
    impl.match.class_glob = glob;
    impl.match.dims = rules;
    impl.match.dim_count = 1;
    descriptor *d = expect_good();
    id[0] = glob[0] = device[0] = name[0] = '!';
    rules[0].multiple = 7;
    ck_assert_str_eq(d->plugin.name, "p");
    ck_assert_str_eq(d->kernels[0].id, "k");
    ck_assert_str_eq(d->kernels[0].device, "npu");
    ck_assert_str_eq(d->impls[0].match.class_glob, "*RMSNorm");
    ck_assert_int_eq(d->impls[0].match.dims[0].multiple, 2);
    descriptor_free(d);
    char endless[300];
    memset(endless, 'x', sizeof endless);
    setup();
    impl.match.class_glob = endless;
    expect_bad("kernel 'k', impl 0: the pattern of class names must be one line of at most 255 bytes");
    setup();
    kernel.summary = endless;
    expect_bad("kernel 'k': its summary must be one line of at most 255 bytes");
}
END_TEST

START_TEST(tolerances_have_a_ceiling)
{
    static const double wrong[] = {-1, 1e30, (double)INFINITY, (double)NAN};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        for (int which = 0; which < 6; which++) {
            setup();
            tn_tolerance *t = which < 3 ? &impl.tolerance : &impl.gradient_tolerance;
            *(which % 3 == 0 ? &t->ulps_f32 : which % 3 == 1 ? &t->ulps_bf16 : &t->ulps_f16) = wrong[i];
            expect_bad(which < 3 ? "impl 0: tolerance" : "impl 0: gradient_tolerance");
        }
    setup();
    impl.gradient_tolerance.ulps_f16 = 1e30;
    expect_bad("gradient_tolerance of 1e+30 ulps in f16 checks nothing; at most 512");
    setup();
    impl.tolerance = impl.gradient_tolerance =
        (tn_tolerance){TN_TOLERANCE_MAX_F32, TN_TOLERANCE_MAX_BF16, TN_TOLERANCE_MAX_F16};
    descriptor_free(expect_good());
}
END_TEST

START_TEST(optional_outputs_are_those_of_the_operation)
{
    impl.optional_outputs = 1u << 2;
    expect_bad("optional_outputs: RMS_NORM has no optional outputs with the bits 0x4");
    impl.op = TN_OP_MOE_ROUTE;
    impl.match.takes[TN_AXIS_NORM] = 0;
    impl.match.takes[TN_AXIS_SCORE] = TN_TAKES(TN_SCORE_SOFTMAX);
    descriptor_free(expect_good());
    impl.optional_outputs |= 1;
    expect_bad("optional_outputs: MOE_ROUTE has no optional outputs with the bits 0x1");
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("plugin descriptors", 0);
    tcase_add_checked_fixture(tc, setup, NULL);
    suite_add(tc, longer_structs_are_read_while_what_is_unknown_is_zero);
    tcase_add_loop_test(tc, unknown_bytes_in_use_are_refused, 0, 2);
    suite_add(tc, longer_kernels_and_plugins_are_read, missing_fields_are_zero, sizes_that_no_version_has_are_refused,
              elements_of_an_array_have_one_size, texts_are_checked, counts_and_kinds_are_checked,
              note_and_descriptor_agree, a_device_is_complete, a_group_is_complete, strings_and_lists_are_copied,
              tolerances_have_a_ceiling, optional_outputs_are_those_of_the_operation);
    return suite_run();
}
