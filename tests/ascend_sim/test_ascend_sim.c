/* The simulator of the vendor's libraries: rules of initialisation, devices, contexts and memory, calls that fail and
 * what is left at exit, each against its code. Every test is a process of its own. */
#include "sim_box.h"
#include "suite.h"

#include <sys/wait.h>
#include <unistd.h>

static const int64_t four = 4;
static const float ones[] = {1, 1, 1, 1}, count4[] = {1, 2, 3, 4};

/* ---- initialisation, devices, contexts ------------------------------------------------------------------------- */

START_TEST(calls_want_initialisation_and_a_device)
{
    box_load("ascend_sim");
    void *p = NULL;
    int32_t device = 0;
    uint32_t count = 9;
    BROKEN(CALL(aclrtMalloc)(&p, 32, ACL_MEM_MALLOC_HUGE_FIRST), 100001);
    BROKEN(CALL(aclrtSetDevice)(0), 100001);
    ck_assert_ptr_null(CALL(aclrtGetSocName)());
    ck_assert_int_eq(CALL(aclFinalize)(), 100037);
    ck_assert_int_eq(CALL(aclInit)(NULL), 0);
    ck_assert_int_eq(CALL(aclInit)(NULL), 100002);
    BROKEN(CALL(aclrtMalloc)(&p, 32, ACL_MEM_MALLOC_HUGE_FIRST), 107002);
    BROKEN(CALL(aclrtCreateStream)(&box_stream), 107002);
    BROKEN(FIRST(InplaceZero, NULL), 361001);
    ck_assert_int_eq(CALL(aclrtGetDevice)(&device), 107002);
    ck_assert_int_eq(CALL(aclrtGetDeviceCount)(&count), 0);
    ck_assert_int_eq(count, 1);
    ck_assert_int_eq(CALL(aclrtSetDevice)(1), 107001);
    ck_assert_int_eq(CALL(aclrtSetDevice)(0), 0);
    ck_assert_int_eq(CALL(aclrtGetDevice)(&device), 0);
    ck_assert_str_eq(CALL(aclrtGetSocName)(), "Ascend910B3");
    ck_assert_int_eq(CALL(aclrtResetDevice)(0), 0);
    BROKEN(CALL(aclrtMalloc)(&p, 32, ACL_MEM_MALLOC_HUGE_FIRST), 107002);
    ck_assert_int_eq(CALL(aclFinalize)(), 0);
    ck_assert_int_eq(CALL(aclFinalize)(), 100037);
}
END_TEST

START_TEST(switches_choose_chip_and_devices)
{
    uint32_t count = 9;
    setenv("ASCEND_SIM_SOC", "Ascend310P3", 1);
    setenv("ASCEND_SIM_DEVICES", "0", 1);
    box_load("ascend_sim");
    ck_assert_int_eq(CALL(aclInit)(NULL), 0);
    ck_assert_int_eq(CALL(aclrtGetDeviceCount)(&count), 0);
    ck_assert_int_eq(count, 0);
    ck_assert_int_eq(CALL(aclrtSetDevice)(0), 107001);
    ck_assert_str_eq(CALL(aclrtGetSocName)(), "Ascend310P3");
    setenv("ASCEND_SIM_DEVICES", "-1", 1);
    ck_assert_int_eq(CALL(aclrtGetDeviceCount)(&count), 207004);
    ck_assert_int_eq(broken(), 0);
}
END_TEST

/* Ascend910B without a digit is a chip of the first generation, as are names of no known family. */
START_TEST(other_chips_have_no_operators)
{
    const char *names[] = {"Ascend910B", "Ascend910A", "Ascend310B1", "Ascend910B4-1", "Ascend910_9391"};
    box_open();
    box a = tensor(ACL_FLOAT, 1, &four, NULL);
    for (int i = 0; i < 5; i++) {
        setenv("ASCEND_SIM_SOC", names[i], 1);
        int code = go("aclnnInplaceZero", FIRST(InplaceZero, a.tensor));
        ck_assert_int_eq(code, i < 3 ? 561003 : 0);
    }
    drop(&a);
    box_close(3);
}
END_TEST

START_TEST(children_may_be_refused)
{
    setenv("ASCEND_SIM_FORK", "no", 1);
    box_open();
    pid_t pid = fork();
    if (pid == 0) {
        void *p = NULL;
        _exit(CALL(aclrtMalloc)(&p, 16, ACL_MEM_MALLOC_HUGE_FIRST) == 507899 ? 0 : 1);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    box_close(0);
}
END_TEST

START_TEST(streams_belong_to_contexts)
{
    box_open();
    aclrtContext first, second;
    aclrtStream other;
    ck_assert_int_eq(CALL(aclrtGetCurrentContext)(&first), 0);
    BROKEN(CALL(aclrtDestroyContext)(first), 107000);
    ck_assert_int_eq(CALL(aclrtCreateContext)(&second, 0), 0);
    BROKEN(CALL(aclrtSynchronizeStream)(box_stream), 107003);
    BROKEN(CALL(aclrtDestroyStream)(box_stream), 107003);
    ck_assert_int_eq(CALL(aclrtCreateStream)(&other), 0);
    ck_assert_int_eq(CALL(aclrtDestroyStream)(other), 0);
    BROKEN(CALL(aclrtSynchronizeStream)(other), 107017);
    ck_assert_int_eq(CALL(aclrtDestroyContext)(second), 0);
    BROKEN(CALL(aclrtCreateStream)(&other), 107002);
    ck_assert_int_eq(CALL(aclrtSetCurrentContext)(first), 0);
    BROKEN(CALL(aclrtSynchronizeStream)(NULL), 0);
    box_close(6);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------------------------- */

START_TEST(memory_has_its_codes)
{
    setenv("ASCEND_SIM_MEMORY", "100000", 1);
    box_open();
    void *p = NULL, *q = NULL;
    char host[64] = {0};
    size_t left = 0, total = 0;
    BROKEN(CALL(aclrtMalloc)(&p, 0, ACL_MEM_MALLOC_HUGE_FIRST), 100000);
    BROKEN(CALL(aclrtMalloc)(NULL, 32, ACL_MEM_MALLOC_HUGE_FIRST), 100000);
    BROKEN(CALL(aclrtMalloc)(&p, 32, (aclrtMemMallocPolicy)77), 107018);
    BROKEN(CALL(aclrtFree)(NULL), 100000);
    ck_assert_int_eq(CALL(aclrtMalloc)(&p, 64, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    ck_assert_int_eq((uintptr_t)p % 64, 0);
    ck_assert_int_eq(CALL(aclrtMalloc)(&q, 100000, ACL_MEM_MALLOC_HUGE_FIRST), 207001);
    ck_assert_ptr_nonnull(CALL(aclGetRecentErrMsg)());
    ck_assert_ptr_null(CALL(aclGetRecentErrMsg)());
    ck_assert_int_eq(CALL(aclrtGetMemInfo)(ACL_HBM_MEM, &left, &total), 0);
    ck_assert_int_eq(total, 100000);
    ck_assert_int_eq(left, 100000 - 96);
    ck_assert_int_eq(CALL(aclrtMemcpy)(NULL, 0, NULL, 0, ACL_MEMCPY_HOST_TO_DEVICE), 0);
    BROKEN(CALL(aclrtMemcpy)(p, 64, NULL, 8, ACL_MEMCPY_HOST_TO_DEVICE), 100000);
    BROKEN(CALL(aclrtMemcpy)(p, 8, host, 9, ACL_MEMCPY_HOST_TO_DEVICE), 107000);
    BROKEN(CALL(aclrtMemcpy)(p, 65, host, 65, ACL_MEMCPY_HOST_TO_DEVICE), 107000);
    BROKEN(CALL(aclrtMemcpy)(p, 64, host, 8, ACL_MEMCPY_DEVICE_TO_HOST), 107000);
    BROKEN(CALL(aclrtMemcpyAsync)(host, 8, host + 8, 8, ACL_MEMCPY_HOST_TO_HOST, box_stream), 207000);
    BROKEN(CALL(aclrtFree)((char *)p + 32), 107000);
    BROKEN(CALL(aclrtFree)(host), 107000);
    ck_assert_int_eq(CALL(aclrtFree)(p), 0);
    BROKEN(CALL(aclrtFree)(p), 107000);
    BROKEN(CALL(aclrtMemcpy)(p, 8, host, 8, ACL_MEMCPY_HOST_TO_DEVICE), 107000);
    BROKEN(CALL(aclrtFreeHost)(host), 107000);
    BROKEN(CALL(aclrtFreeHost)(NULL), 100000);
    box_close(15);
}
END_TEST

START_TEST(memory_is_filled_and_undefined_before)
{
    box_open();
    box a = tensor(ACL_FLOAT, 1, &four, NULL), b = tensor(ACL_FLOAT16, 1, &four, NULL);
    ck_assert(isnan(at(&a, 3)) && isnan(at(&b, 0)));
    ck_assert_int_eq(CALL(aclrtMemset)(a.device, 16, 0, 16), 0);
    expect(&a, (float[]){0, 0, 0, 0});
    ck_assert_int_eq(CALL(aclrtMemsetAsync)(a.device, 16, 0x40, 16, box_stream), 0);
    ck_assert_int_eq(CALL(aclrtSynchronizeDevice)(), 0);
    ck_assert_float_gt(at(&a, 0), 3.0f);
    BROKEN(CALL(aclrtMemset)(a.device, 8, 0, 16), 107000);
    DROP(&a, &b);
    box_close(1);
}
END_TEST

/* What a child does to device memory as if it were the host's; true: it did not survive. */
static bool dies(volatile char *address, bool write)
{
    pid_t pid = fork();
    if (pid == 0) {
        freopen("/dev/null", "w", stderr); /* sanitizers would tell of it */
        if (write)
            *address = 1;
        else
            (void)*address;
        _exit(0);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

START_TEST(the_host_faults_at_device_memory)
{
    box_open();
    box a = tensor(ACL_FLOAT, 1, &four, ones);
    ck_assert(dies(a.device, false) && dies(a.device, true));
    drop(&a);
    box_close(0);
}
END_TEST

/* Two devices: memory of one is none of the other, and what was left is told when it is reset. */
START_TEST(devices_have_memory_of_their_own)
{
    setenv("ASCEND_SIM_DEVICES", "2", 1);
    box_open();
    box a = tensor(ACL_FLOAT, 1, &four, ones);
    aclrtStream first = box_stream;
    ck_assert_int_eq(CALL(aclrtSetDevice)(1), 0);
    ck_assert_int_eq(CALL(aclrtCreateStream)(&box_stream), 0);
    box out = tensor(ACL_FLOAT, 1, &four, NULL), left = tensor(ACL_FLOAT, 1, &four, NULL);
    BROKEN(go("aclnnSilu", FIRST(Silu, a.tensor, out.tensor)), 507015);
    ck_assert_int_eq(CALL(aclrtMemcpy)(out.device, 16, a.device, 16, ACL_MEMCPY_DEVICE_TO_DEVICE), 0);
    expect(&out, ones);
    drop(&out);
    ck_assert_int_eq(CALL(aclDestroyTensor)(left.tensor), 0);
    BROKEN(CALL(aclrtResetDevice)(1), 0); /* a stream and memory */
    ck_assert_int_eq(CALL(aclrtSetDevice)(0), 0);
    box_stream = first;
    drop(&a);
    ck_assert_int_eq(CALL(aclrtResetDevice)(0), 0);
    box_close(3);
}
END_TEST

/* ---- failing calls, leaks -------------------------------------------------------------------------------------- */

/* A small program that cleans up after whatever fails. 0, or the code (1: no object). */
static int small_program(void)
{
    void *p = NULL;
    aclTensor *t = NULL;
    float host[4];
    int code = CALL(aclrtMalloc)(&p, 16, ACL_MEM_MALLOC_HUGE_FIRST);
    if (!code)
        code = CALL(aclrtMemcpy)(p, 16, count4, 16, ACL_MEMCPY_HOST_TO_DEVICE);
    if (!code)
        code = !(t = CALL(aclCreateTensor)(&four, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, &four, 1, p));
    if (!code)
        code = FIRST(InplaceZero, t);
    if (!code)
        code = CALL(aclnnInplaceZero)(NULL, 0, executor, box_stream);
    int later = CALL(aclrtSynchronizeStream)(box_stream);
    code = code ? code : later;
    if (!code)
        code = CALL(aclrtMemcpy)(host, 16, p, 16, ACL_MEMCPY_DEVICE_TO_HOST);
    ck_assert(code || host[2] == 0.0f);
    CALL(aclDestroyTensor)(t);
    if (p)
        CALL(aclrtFree)(p);
    return code;
}

START_TEST(every_call_can_fail)
{
    box_open();
    int64_t failures = 0;
    for (int64_t n = 1;; n++) {
        CALL(sim_fail_after)(n);
        int code = small_program();
        CALL(sim_fail_after)(0);
        if (!code)
            break;
        failures++;
        ck_assert_ptr_nonnull(CALL(aclGetRecentErrMsg)());
        ck_assert_int_eq(CALL(sim_leaks)(), 1); /* the stream */
    }
    ck_assert_int_eq(failures, 7);
    box_close(0);
}
END_TEST

START_TEST(a_call_fails_by_its_number)
{
    void *p = NULL;
    setenv("ASCEND_SIM_FAIL", "4", 1);
    box_open();
    ck_assert_int_eq(CALL(sim_calls)(), 3);
    ck_assert_int_eq(CALL(aclrtMalloc)(&p, 16, ACL_MEM_MALLOC_HUGE_FIRST), 207001);
    ck_assert_ptr_nonnull(strstr(CALL(aclGetRecentErrMsg)(), "aclrtMalloc"));
    box_close(0);
}
END_TEST

START_TEST(leaks_are_told_at_exit)
{
    int ends[2];
    char text[4096];
    ck_assert_int_eq(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 2);
        unsetenv("ASCEND_SIM_QUIET");
        setenv("ASCEND_SIM_QUIET", "0", 1);
        box_open();
        tensor(ACL_FLOAT, 1, &four, ones);
        tensor(ACL_FLOAT, 1, &four, ones);
        exit(0);
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t n; (n = read(ends[0], text + length, sizeof text - 1 - length)) > 0;)
        length += (size_t)n;
    text[length] = '\0';
    close(ends[0]);
    waitpid(pid, NULL, 0);
    ck_assert_ptr_nonnull(strstr(text, "ascend_sim: a simulator of CANN's interface on host memory; its speed says "
                                       "nothing about a device\n"));
    ck_assert_ptr_nonnull(strstr(text, "ascend_sim: 2 tensors were not destroyed\n"));
    ck_assert_ptr_nonnull(strstr(text, "ascend_sim: 2 pieces of device memory were not freed\n"));
    ck_assert_ptr_nonnull(strstr(text, "ascend_sim: 1 streams were not destroyed\n"));
}
END_TEST

START_TEST(older_libraries_lack_symbols)
{
    const char *newer[] = {"aclnnRotaryPositionEmbeddingV2", "aclnnGroupedMatmulV5",
                           "aclnnRotaryPositionEmbeddingV2GetWorkspaceSize", "aclnnGroupedMatmulV5GetWorkspaceSize"};
    box_load("ascend_sim");
    for (size_t i = 0; i < sizeof newer / sizeof *newer; i++)
        ck_assert_ptr_nonnull((void *)(uintptr_t)box_find(newer[i]));
    ck_assert(box_find("aclnnFlashAttentionScore") == NULL);
    box_load("ascend_sim_old");
    for (size_t i = 0; i < sizeof newer / sizeof *newer; i++)
        ck_assert(box_find(newer[i]) == NULL);
    ck_assert(box_find("aclnnGroupedMatmulV4") && box_find("aclnnRotaryPositionEmbedding"));
}
END_TEST

START_TEST(numbers_of_16_bits_are_rounded_to_even)
{
    box_load("ascend_sim");
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float f = CALL(sim_from_f16)((uint16_t)bits), b = CALL(sim_from_bf16)((uint16_t)bits);
        ck_assert(isnan(f) ? isnan(CALL(sim_from_f16)(CALL(sim_to_f16)(f))) : CALL(sim_to_f16)(f) == bits);
        ck_assert(isnan(b) ? isnan(CALL(sim_from_bf16)(CALL(sim_to_bf16)(b))) : CALL(sim_to_bf16)(b) == bits);
    }
    for (uint32_t bits = 0; bits < 0x7bff; bits++) { /* halfway between two, and a little to either side */
        float low = CALL(sim_from_f16)((uint16_t)bits), high = CALL(sim_from_f16)((uint16_t)(bits + 1));
        float middle = (low + high) / 2;
        ck_assert_int_eq(CALL(sim_to_f16)(middle), bits % 2 ? bits + 1 : bits);
        ck_assert_int_eq(CALL(sim_to_f16)(nextafterf(middle, high)), bits + 1);
        ck_assert_int_eq(CALL(sim_to_f16)(nextafterf(middle, low)), bits);
    }
    ck_assert_int_eq(CALL(sim_to_f16)(65519.0f), 0x7bff);
    ck_assert_int_eq(CALL(sim_to_f16)(65520.0f), 0x7c00);
    ck_assert_int_eq(CALL(sim_to_bf16)(1.00390625f), 0x3f80);  /* 1 + 2^-8, a tie */
    ck_assert_int_eq(CALL(sim_to_bf16)(1.01171875f), 0x3f82);  /* 1 + 3 * 2^-8, a tie */
    ck_assert_int_eq(CALL(sim_to_bf16)(-1.00390637f), 0xbf81); /* just beyond one */
}
END_TEST

int main(void)
{
    TCase *tests = suite_open("ascend_sim", 0);
    suite_add(tests, calls_want_initialisation_and_a_device, switches_choose_chip_and_devices,
              other_chips_have_no_operators, children_may_be_refused, streams_belong_to_contexts, memory_has_its_codes,
              memory_is_filled_and_undefined_before, the_host_faults_at_device_memory, devices_have_memory_of_their_own,
              every_call_can_fail, a_call_fails_by_its_number, leaks_are_told_at_exit, older_libraries_lack_symbols,
              numbers_of_16_bits_are_rounded_to_even);
    return process_main();
}
