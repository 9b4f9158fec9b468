/* What tenon bench prints: medians with their spread, the machine, memory. */
#include "bench.h"

#include "profile.h"

#include <stdlib.h>

/* ---- statistics ------------------------------------------------------------------------------------ */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts every case's times: the best comes first, the median in the middle. */
static void sort_times(bench *b)
{
    for (int s = 0; s < 2; s++)
        for (size_t c = 0; c < b->case_count; c++)
            qsort(bench_times(b, &b->side[s], c), (size_t)bench_samples(b, c), sizeof(double), by_size);
}

static double median(const bench *b, int side, size_t c)
{
    const double *t = bench_times(b, &b->side[side], c);
    int64_t n = bench_samples(b, c);
    return (t[(n - 1) / 2] + t[n / 2]) / 2;
}

static double per_second(const bench *b, size_t c, double seconds)
{
    return seconds > 0 ? (double)b->cases[c].tokens / seconds : 0;
}

static double rate(const bench *b, int side, size_t c)
{
    return per_second(b, c, median(b, side, c));
}

/* The middle half of the measurements: what an odd one out does not move. Of few, all. */
static double quartile(const bench *b, int side, size_t c, bool upper)
{
    int64_t n = bench_samples(b, c), at = (n - 1) / 4;
    return bench_times(b, &b->side[side], c)[upper ? n - 1 - at : at];
}

/* Could the same measurements have come from one and the same side? Fewer than three have no spread to tell by. */
static bool overlaps(const bench *b, size_t c)
{
    return bench_samples(b, c) < 3 ||
           (quartile(b, 0, c, false) <= quartile(b, 1, c, true) && quartile(b, 1, c, false) <= quartile(b, 0, c, true));
}

/* ---- printing -------------------------------------------------------------------------------------- */

static tn_status print_memory(const bench *b, double peak, tn_error *err)
{
    const tn_model_info *info = &b->w.info;
    const char *const names[] = {"peak, resident", "weights, mapped", "weights, converted", "KV cache", "arena"};
    const double values[] = {peak, (double)info->weight_bytes, (double)info->converted_bytes, (double)b->cache_bytes,
                             (double)b->arena_bytes};
    char text[32];
    table t;
    table_start(&t, 2, 2);
    for (size_t i = 0; i < 5; i++) {
        table_cell(&t, "%s", names[i]);
        table_cell(&t, "%s", bytes_text(values[i], text));
    }
    for (int s = 0; s < 2; s++) {
        table_cell(&t, "packed by %s", b->side[s].spec);
        table_cell(&t, "%s", bytes_text((double)b->side[s].packed_bytes, text));
    }
    printf("\nmemory:\n");
    return table_print(&t, err);
}

/* One of the machine's rates on one thread and, where there are more, on all. */
static void machine_cell(table *t, const tn_machine *m, const char *name, const double *per_second, const char *unit)
{
    if (per_second[1] <= 0)
        return;
    table_cell(t, "%s", name);
    table_cell(t, "%.1f", per_second[0] * 1e-9);
    if (m->threads[1] > 1)
        table_cell(t, "%.1f", per_second[1] * 1e-9);
    table_cell(t, "%s", unit);
}

static tn_status print_machine(const tn_machine *m, tn_error *err)
{
    bool several = m->threads[1] > 1;
    char cache[32], memory[32];
    table t;
    printf("machine: %s, %d thread%s, last cache %s\n", m->cpu, (int)m->threads[1], several ? "s" : "",
           bytes_text((double)m->cache_bytes, cache));
    table_start(&t, several ? 4 : 3, several ? 0x6 : 0x2);
    table_cell(&t, "CEILING");
    table_cell(&t, "1 THREAD");
    if (several)
        table_cell(&t, "%d THREADS", (int)m->threads[1]);
    table_cell(&t, "UNIT");
    machine_cell(&t, m, "memory, read", m->read, "GB/s");
    machine_cell(&t, m, "memory, copy", m->copy, "GB/s");
    machine_cell(&t, m, "f32 multiply-add", m->f32, "GFLOP/s");
    machine_cell(&t, m, "bf16 dot products", m->bf16, "GFLOP/s");
    machine_cell(&t, m, "f16 multiply-add, f16 sums", m->f16, "GFLOP/s");
    machine_cell(&t, m, "bf16 tiles (AMX)", m->amx_bf16, "GFLOP/s");
    tn_status status = table_print(&t, err);
    printf("memory is read from %s, outside of every cache\n\n", bytes_text((double)m->memory_bytes, memory));
    return status;
}

/* Says where the figures mean nothing: to whoever reads the object that goes elsewhere, too. */
static void warn_of_overlap(const bench *b)
{
    size_t unclear = 0;
    for (size_t c = 0; c < b->case_count; c++)
        unclear += overlaps(b, c);
    if (unclear)
        note(b->w.options,
             WARNING "bench: the spreads of the two sides overlap in %zu of %zu cases, or there are too few "
                     "measurements: such a difference may be chance; raise --repeat (%lld)",
             unclear, b->case_count, (long long)b->repeat);
}

static tn_status print_table(const bench *b, const tn_machine *m, double peak, tn_error *err)
{
    const tn_model_info *info = &b->w.info;
    char seconds[32];
    tn_status status = print_machine(m, err);
    if (status)
        return status;
    printf("model: %s (%s), computes in %s on %s, loaded in %s\n", info->folder, info->class_name,
           tn_dtype_name(info->dtype), info->device, seconds_text(info->load_seconds, seconds));
    for (int s = 0; s < 2; s++)
        printf("%s: %s\n", b->side[s].spec, b->side[s].summary);
    table t;
    table_start(&t, 8, 0x7E);
    table_cell(&t, "PHASE");
    table_cell(&t, "TOKENS");
    table_cell(&t, "CONTEXT");
    for (int s = 0; s < 2; s++) {
        table_cell(&t, "%s, TOKENS/S", b->side[s].spec);
        table_cell(&t, "SPREAD");
    }
    table_cell(&t, "SPEED-UP");
    for (size_t c = 0; c < b->case_count; c++) {
        table_cell(&t, "%s", b->cases[c].decode ? "decode" : "prompt");
        table_cell(&t, "%lld", (long long)b->cases[c].tokens);
        table_cell(&t, "%lld", (long long)b->cases[c].context);
        for (int s = 0; s < 2; s++) {
            table_cell(&t, "%.1f", rate(b, s, c));
            table_cell(&t, "%.1f-%.1f", per_second(b, c, quartile(b, s, c, true)),
                       per_second(b, c, quartile(b, s, c, false)));
        }
        table_cell(&t, "%.2fx%s", rate(b, 1, c) > 0 ? rate(b, 0, c) / rate(b, 1, c) : 0, overlaps(b, c) ? " ?" : "");
    }
    printf("\n");
    status = table_print(&t, err);
    printf("medians; SPREAD is the middle half of the measurements; ? where those of the two sides overlap\n");
    if (status == TN_OK)
        status = print_memory(b, peak, err);
    return status == TN_OK && option_given(b->w.options, OPT_PROFILE) ? profile_print(b, m, err) : status;
}

static json_t *json_results(const bench *b)
{
    json_t *list = json_array();
    for (size_t c = 0; c < b->case_count; c++)
        for (int s = 0; s < 2; s++) {
            const double *t = bench_times(b, &b->side[s], c);
            json_array_append_new(
                list,
                json_pack("{s:s, s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:I}", "kernels", b->side[s].spec,
                          "phase", b->cases[c].decode ? "decode" : "prompt", "tokens", (json_int_t)b->cases[c].tokens,
                          "context", (json_int_t)b->cases[c].context, "tokens_per_second", json_number(rate(b, s, c)),
                          "median_seconds", json_number(median(b, s, c)), "best_seconds", json_number(t[0]),
                          "worst_seconds", json_number(t[bench_samples(b, c) - 1]), "lower_quartile_seconds",
                          json_number(quartile(b, s, c, false)), "upper_quartile_seconds",
                          json_number(quartile(b, s, c, true)), "overlap", (int)overlaps(b, c), "samples",
                          (json_int_t)bench_samples(b, c)));
        }
    return list;
}

/* GB/s and GFLOP/s, on one thread and on all; 0: not on this machine. */
static json_t *json_machine(const tn_machine *m)
{
    const struct {
        const char *name;
        const double *per_second;
    } rates[] = {{"memory_read_gb_per_second", m->read},
                 {"memory_copy_gb_per_second", m->copy},
                 {"f32_fma_gflops", m->f32},
                 {"bf16_dot_gflops", m->bf16},
                 {"f16_fma_gflops", m->f16},
                 {"bf16_amx_gflops", m->amx_bf16}};
    json_t *root = json_pack("{s:s, s:i, s:I, s:I}", "cpu", m->cpu, "threads", (int)m->threads[1], "cache_bytes",
                             (json_int_t)m->cache_bytes, "memory_bytes", (json_int_t)m->memory_bytes);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s_one_thread", rates[i].name);
        json_object_set_new(root, rates[i].name, json_number(rates[i].per_second[1] * 1e-9));
        json_object_set_new(root, name, json_number(rates[i].per_second[0] * 1e-9));
    }
    return root;
}

static tn_status print_json(const bench *b, const tn_machine *m, double peak, tn_error *err)
{
    const tn_model_info *info = &b->w.info;
    json_t *machine = json_machine(m);
    json_t *model = json_pack("{s:s, s:s, s:s, s:s, s:I, s:o}", "folder", info->folder, "class", info->class_name,
                              "dtype", tn_dtype_name(info->dtype), "device", info->device, "parameters",
                              (json_int_t)info->parameters, "load_seconds", json_number(info->load_seconds));
    json_t *memory =
        json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I}", "peak_bytes", json_real(peak), "weight_bytes",
                  (json_int_t)info->weight_bytes, "converted_bytes", (json_int_t)info->converted_bytes, "cache_bytes",
                  (json_int_t)b->cache_bytes, "arena_bytes", (json_int_t)b->arena_bytes, "packed_bytes",
                  (json_int_t)b->side[0].packed_bytes, "packed_bytes_against", (json_int_t)b->side[1].packed_bytes);
    json_t *kernels = json_pack("[{s:s, s:s}, {s:s, s:s}]", "spec", b->side[0].spec, "summary", b->side[0].summary,
                                "spec", b->side[1].spec, "summary", b->side[1].summary);
    json_t *profile = option_given(b->w.options, OPT_PROFILE) ? profile_json(b, m) : NULL;
    return json_print(json_pack("{s:o, s:o, s:o, s:o, s:o, s:o*}", "machine", machine, "model", model, "kernels",
                                kernels, "results", json_results(b), "memory", memory, "profile", profile),
                      false, err);
}

tn_status bench_print(bench *b, const tn_machine *m, double peak, tn_error *err)
{
    sort_times(b);
    warn_of_overlap(b);
    return option_given(b->w.options, OPT_JSON) ? print_json(b, m, peak, err) : print_table(b, m, peak, err);
}
