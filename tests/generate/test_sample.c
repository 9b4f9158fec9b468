/* Choosing tokens: what greedy takes, which tokens each filter leaves, and how often each of them comes. Seeds are
 * fixed, so the statistics are the same in every run. */
#include "base/random.h"
#include "generate/sample.h"
#include "generate/weights.h"
#include "broken.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DRAWS 40000

/* Where the next token would lie. */
static int64_t position;

static sampler make(double temperature, int64_t top_k, double top_p, uint64_t seed, int64_t vocab)
{
    tn_generate_options o = {
        .size = sizeof o, .temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = seed};
    sampler s;
    tn_error err = TN_ERROR_INIT;
    position = 0;
    ck_assert_msg(sample_init(&s, &o, vocab, &err) == TN_OK, "%s", err.message);
    return s;
}

/* Called millions of times, and every ck_assert is recorded in a file: so only a failure is reported. */
static int64_t pick(sampler *s, const float *logits)
{
    int64_t id = -1;
    tn_error err = TN_ERROR_INIT;
    if (sample_pick(s, logits, position++, &id, &err) != TN_OK || id < 0 || id >= s->vocab)
        ck_abort_msg("token %lld: %s", (long long)id, err.message);
    return id;
}

/* The distribution that the options mean, by sorting and summing as transformers' warpers are documented. */
static void expect_probabilities(const float *logits, int n, double temperature, int top_k, double top_p, double *p)
{
    int order[64];
    double total = 0, above = 0;
    for (int i = 0; i < n; i++) {
        int k = i;
        for (; k > 0 && logits[order[k - 1]] < logits[i]; k--)
            order[k] = order[k - 1];
        order[k] = i;
        p[i] = 0;
    }
    int kept = n;
    while (kept > 0 && (logits[order[kept - 1]] == -INFINITY ||
                        (top_k && kept > top_k && logits[order[kept - 1]] < logits[order[top_k - 1]])))
        kept--;
    for (int k = 0; k < kept; k++)
        total += p[order[k]] = exp((logits[order[k]] - logits[order[0]]) / temperature);
    double left = 0;
    for (int k = 0; k < kept; k++) {
        if (top_p > 0 && top_p < 1 && above / total >= top_p)
            p[order[k]] = 0;
        above += p[order[k]];
        left += p[order[k]];
    }
    for (int i = 0; i < n; i++)
        p[i] /= left;
}

/* A token of probability 0 never comes; the others as often as they should, by a chi-square test: its statistic has
 * mean d and deviation sqrt(2d), so d + 6 sqrt(2d) + 6 is far out in the tail. */
static void check_distribution(const float *logits, int n, double temperature, int top_k, double top_p, uint64_t seed)
{
    double p[64], chi = 0;
    int count[64] = {0}, freedom = -1;
    expect_probabilities(logits, n, temperature, top_k, top_p, p);
    sampler s = make(temperature, top_k, top_p, seed, n);
    for (int i = 0; i < DRAWS; i++)
        count[pick(&s, logits)]++;
    sample_close(&s);
    for (int i = 0; i < n; i++) {
        if (p[i] == 0) {
            ck_assert_msg(count[i] == 0, "token %d came %d times", i, count[i]);
            continue;
        }
        double expected = p[i] * DRAWS;
        chi += (count[i] - expected) * (count[i] - expected) / expected;
        freedom++;
    }
    ck_assert_msg(chi <= freedom + 6 * sqrt(2.0 * freedom) + 6, "chi-square %g with %d degrees of freedom", chi,
                  freedom);
}

START_TEST(greedy_takes_the_best_and_lowest)
{
    sampler s = make(0, 0, 0, 1, 5);
    ck_assert_ptr_null(s.order);
    ck_assert_int_eq(pick(&s, (float[]){1, 3, 2, 3, -1}), 1);
    ck_assert_int_eq(pick(&s, (float[]){-5, -5, -5, -5, -5}), 0);
    ck_assert_int_eq(pick(&s, (float[]){-INFINITY, -INFINITY, -3, -INFINITY, -4}), 2);
    ck_assert_int_eq(pick(&s, (float[]){0, -0.0f, INFINITY, 0, 0}), 2);
    sample_close(&s);
}
END_TEST

static const float plain[] = {0.3f, 2, -1, 1.25f, 0, 2.5f, -3, 0.75f};
static const float tied[] = {1, 2, 1, 0, 2, 1, -1, 0};
static const float masked[] = {-INFINITY, 1, -INFINITY, 0.5f, 0, -INFINITY, 1, -1};

static const struct {
    const float *logits;
    double temperature;
    int top_k;
    double top_p;
} cases[] = {
    {plain, 1, 0, 0},      {plain, 1, 0, 1},     {plain, 0.5, 0, 0},   {plain, 3, 0, 0},      {plain, 1, 3, 0},
    {plain, 1, 8, 0},      {plain, 1, 100, 0},   {plain, 1, 0, 0.5},   {plain, 1, 0, 0.9},    {plain, 2, 4, 0.7},
    {plain, 0.7, 5, 0.95}, {plain, 1, 0, 1e-9},  {plain, 1, 100, 0.5}, {plain, 1, 0, 0.9999}, {tied, 1, 0, 0},
    {tied, 1, 1, 0},       {tied, 1, 2, 0},      {tied, 1, 3, 0},      {tied, 1, 0, 0.3},     {tied, 1, 0, 0.6},
    {tied, 1.5, 4, 0.8},   {masked, 1, 0, 0},    {masked, 1, 3, 0},    {masked, 1, 7, 0},     {masked, 1, 0, 0.9},
    {masked, 2, 4, 0.5},   {plain, 100, 0, 0.5}, {plain, 0.05, 0, 0},
};

START_TEST(every_filter_leaves_what_it_should)
{
    for (uint64_t seed = 1; seed <= 3; seed++)
        check_distribution(cases[_i].logits, 8, cases[_i].temperature, cases[_i].top_k, cases[_i].top_p, seed);
}
END_TEST

/* The sets, written out by hand: they must not follow from an error that both implementations share. */
START_TEST(known_sets)
{
    static const struct {
        float logits[4];
        int top_k;
        double top_p;
        unsigned allowed; /* bits */
    } sets[] = {
        /* Probabilities 0.5, 0.25, 0.125, 0.125. */
        {{0, -0.69314718f, -1.3862944f, -1.3862944f}, 0, 0.49, 1},
        {{0, -0.69314718f, -1.3862944f, -1.3862944f}, 0, 0.51, 3},
        {{0, -0.69314718f, -1.3862944f, -1.3862944f}, 0, 0.76, 7}, /* of two equals the lower id */
        {{0, -0.69314718f, -1.3862944f, -1.3862944f}, 0, 0.88, 15},
        {{0, -0.69314718f, -1.3862944f, -1.3862944f}, 1, 0, 1},
        {{0, -0.69314718f, -1.3862944f, -1.3862944f}, 2, 0, 3},
        {{0, -0.69314718f, -1.3862944f, -1.3862944f}, 3, 0, 15}, /* all that equal the third */
        /* top_k comes first: of the two left, 2/3 and 1/3, the first holds 0.6. */
        {{0, -0.69314718f, -1.3862944f, -1.3862944f}, 2, 0.6, 1},
        {{0, -0.69314718f, -1.3862944f, -1.3862944f}, 2, 0.7, 3},
    };
    for (size_t c = 0; c < sizeof sets / sizeof sets[0]; c++) {
        sampler s = make(1, sets[c].top_k, sets[c].top_p, 9, 4);
        unsigned seen = 0;
        for (int i = 0; i < 1000; i++)
            seen |= 1u << pick(&s, sets[c].logits);
        ck_assert_msg(seen == sets[c].allowed, "set %zu: %x", c, seen);
        sample_close(&s);
    }
}
END_TEST

/* A vocabulary of real size, against sorting it. */
START_TEST(a_large_vocabulary)
{
    enum { N = 151936, K = 50 };
    float *logits = malloc(N * sizeof *logits), *sorted = malloc(N * sizeof *sorted);
    uint32_t x = 12345;
    for (int i = 0; i < N; i++) {
        x = x * 1664525u + 1013904223u;
        logits[i] = (float)(x >> 8) * 0x1p-20f;
    }
    /* The K-th largest, by removing the largest K - 1 times. */
    memcpy(sorted, logits, N * sizeof *sorted);
    float threshold = 0;
    for (int k = 0; k < K; k++) {
        int best = 0;
        for (int i = 1; i < N; i++)
            if (sorted[i] > sorted[best])
                best = i;
        threshold = sorted[best];
        sorted[best] = -1;
    }
    sampler s = make(10, K, 0, 3, N);
    int distinct = 0;
    memset(sorted, 0, N * sizeof *sorted);
    for (int i = 0; i < 300; i++) {
        int64_t id = pick(&s, logits);
        ck_assert(logits[id] >= threshold);
        distinct += sorted[id]++ == 0;
    }
    ck_assert_int_gt(distinct, 30);
    sample_close(&s);
    free(sorted);
    free(logits);
}
END_TEST

/* The slow twin: every candidate is weighed and sorted. */
static const float *sorting;

static int best_first(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return sorting[x] != sorting[y] ? (sorting[x] < sorting[y] ? 1 : -1) : (x > y) - (x < y);
}

static int64_t slow_pick(const sampler *s, const float *logits, int64_t at)
{
    int32_t *order = malloc((size_t)s->vocab * sizeof *order);
    int64_t n = 0, kept, i = 0;
    double largest = -INFINITY, all = 0, total = 0, sum = 0;
    for (int32_t id = 0; id < s->vocab; id++) {
        if (logits[id] > -INFINITY)
            order[n++] = id;
        largest = logits[id] > largest ? logits[id] : largest;
    }
#define WEIGHT(i) exp((logits[order[i]] - largest) / s->temperature)
    bool few = s->top_k && s->top_k < n;
    kept = n;
    if (!s->top_k)
        for (i = 0; i < n; i++)
            all += WEIGHT(i);
    sorting = logits;
    if (few || s->top_p < 1)
        qsort(order, (size_t)n, sizeof *order, best_first);
    for (kept = few ? s->top_k : n; few && kept < n && logits[order[kept]] == logits[order[kept - 1]];)
        kept++;
    for (i = 0; s->top_k && i < kept; i++)
        all += WEIGHT(i);
    for (i = 0; s->top_p < 1 && i < kept && total < s->top_p * all; i++)
        total += WEIGHT(i);
    kept = s->top_p < 1 ? i : kept;
    for (i = 0, n = 0; i < kept; i++)
        if (s->min_p == 0 || WEIGHT(i) >= s->min_p)
            order[n++] = order[i];
    for (i = 0, total = 0; i < n; i++)
        total += WEIGHT(i);
    double target = random_uniform(&(random_state){s->key + (uint64_t)at * RANDOM_STEP}) * total;
    for (i = 0; i < n - 1 && (sum += WEIGHT(i)) <= target;)
        i++;
#undef WEIGHT
    n = order[i];
    free(order);
    return n;
}

/* Few, many and all kept, of logits that differ, are equal by the dozen, or are mostly excluded. */
START_TEST(fast_ways_choose_as_the_slow_one)
{
    enum { MOST = 20000 };
    static const tn_generate_options ways[] = {
        {.temperature = 1},
        {.temperature = 0.7, .top_k = 20},
        {.temperature = 0.7, .top_k = 20, .top_p = 0.9},
        {.temperature = 1.5, .top_k = 400, .min_p = 0.02},
        {.temperature = 1, .top_k = 15000, .top_p = 0.99},
        {.temperature = 1, .top_k = 19999},
        {.temperature = 0.8, .top_p = 0.3},
        {.temperature = 1, .top_p = 0.95},
        {.temperature = 4, .top_p = 0.999},
        {.temperature = 1, .min_p = 0.05},
        {.temperature = 0.3, .min_p = 0.5},
        {.temperature = 1, .top_p = 0.9, .min_p = 0.01},
    };
    static const int64_t sizes[] = {1, 127, 128, 129, 3000, MOST};
    static const double spreads[] = {0.05, 1, 2.5, 6};
    float *logits = malloc(MOST * sizeof *logits);
    random_state random = {77};
    for (int c = 0; c < 24; c++) {
        int64_t vocab = sizes[c % 6];
        for (int64_t i = 0; i < vocab; i++) {
            double x = spreads[c / 6] * (double)random_nearly_normal(&random) - (c % 2 ? 40 : 0);
            logits[i] = (float)(c % 4 == 1 ? rint(4 * x) / 4 : x);
            if (c % 5 == 2 && i != vocab / 2 && random_uniform(&random) < 0.999)
                logits[i] = -INFINITY;
        }
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            sampler s;
            tn_generate_options o = ways[w];
            o.seed = (uint64_t)c + 1;
            ck_assert_int_eq(sample_init(&s, &o, vocab, NULL), TN_OK);
            for (position = 0; position < 12;) {
                int64_t at = position, slow = slow_pick(&s, logits, at), fast = pick(&s, logits);
                if (slow != fast)
                    ck_abort_msg("case %d, way %zu, position %lld: %lld, slowly %lld", c, w, (long long)at,
                                 (long long)fast, (long long)slow);
            }
            sample_close(&s);
        }
    }
    free(logits);
}
END_TEST

/* Weights are those of the C library, which may be half a unit off, too. */
START_TEST(weights_are_exact)
{
    enum { N = 40001 };
    float *logits = malloc(N * sizeof *logits);
    for (int i = 0; i < N; i++)
        logits[i] = i == 0 ? 3 : i == 1 ? -INFINITY : 3 - 1e-7f * powf(1.00061f, (float)i);
    for (int t = 0; t < 3; t++) {
        double temperature = t == 0 ? 1 : t == 1 ? 0.37 : 1e-3;
        sampler s = make(temperature, 0, 0, 0, N);
        pick(&s, logits);
        for (int i = 0; i < N; i++) {
            double x = ((double)logits[i] - 3) / temperature, right = x < -708 ? 0 : exp(x);
            ck_assert_msg(fabs(s.weight[i] - right) <= 0x1p-52 * right, "e^%.17g: %.17g", x, s.weight[i]);
        }
        ck_assert(s.weight[0] == 1 && s.weight[1] == 0);
        sample_close(&s);
    }
    free(logits);
}
END_TEST

/* In every block, at its edges, at none and at all of the sum, with stretches that have no weight. */
START_TEST(a_place_in_the_sum_is_found)
{
    static const int64_t sizes[] = {1, 3, 127, 128, 129, 500, 1024};
    double weight[1024];
    for (size_t c = 0; c < 3 * sizeof sizes / sizeof *sizes; c++) {
        int64_t n = sizes[c / 3], first = -1, last = 0;
        for (int64_t i = 0; i < n; i++) {
            weight[i] = c % 3 == 0 || n < 3 || (c % 3 == 1 ? i / 100 % 2 == 1 || i == 1 : i == n / 2) ? 1 + i % 3 : 0;
            first = first < 0 && weight[i] > 0 ? i : first;
            last = weight[i] > 0 ? i : last;
        }
        double sum = weights_sum(weight, n), before = 0;
        for (int64_t i = 0; i < n; before += weight[i++])
            for (int k = 0; k < 2 && weight[i] > 0; k++)
                ck_assert_int_eq(weights_find(weight, n, before + k * (weight[i] - 0.25)), i);
        ck_assert_double_eq(before, sum);
        ck_assert_int_eq(weights_find(weight, n, 0), first);
        ck_assert_int_eq(weights_find(weight, n, sum), last);
        ck_assert_int_eq(weights_find(weight, n, sum + 1), last);
    }
}
END_TEST

/* Far from the best and from the end, where a block's sum says where to look. */
START_TEST(what_is_excluded_is_not_drawn)
{
    enum { N = 1000 };
    float logits[N];
    for (int only = 0; only < N; only += 37) {
        for (int i = 0; i < N; i++)
            logits[i] = i == only ? 1 : i == (only + 500) % N ? 1 - 1e-3f : -INFINITY;
        sampler s = make(1, 0, 0, (uint64_t)only, N);
        int seen[2] = {0};
        for (int i = 0; i < 40; i++) {
            int64_t id = pick(&s, logits);
            ck_assert(id == only || id == (only + 500) % N);
            seen[id == only]++;
        }
        ck_assert(seen[0] > 5 && seen[1] > 5);
        sample_close(&s);
    }
}
END_TEST

START_TEST(a_seed_decides_the_tokens)
{
    int64_t first[64];
    bool differs = false;
    for (int round = 0; round < 3; round++) {
        sampler s = make(1, 0, 0.95, round < 2 ? 42 : 43, 8);
        for (int i = 0; i < 64; i++) {
            int64_t id = pick(&s, plain);
            if (round == 0)
                first[i] = id;
            else if (round == 1)
                ck_assert_int_eq(id, first[i]);
            else
                differs |= id != first[i];
        }
        sample_close(&s);
    }
    ck_assert(differs);
}
END_TEST

/* The published sequence of splitmix64 from the state 1234567, seen through 2^20 equally likely tokens; a number
 * belongs to its position, whatever was drawn before. */
START_TEST(the_generator_is_what_it_says)
{
    enum { N = 1 << 20, NUMBERS = 5 };
    static const uint64_t published[NUMBERS] = {UINT64_C(6457827717110365317), UINT64_C(3203168211198807973),
                                                UINT64_C(9817491932198370423), UINT64_C(4593380528125082431),
                                                UINT64_C(16408922859458223821)};
    float *logits = calloc(N, sizeof *logits);
    sampler s = make(1, 0, 0, 0, N);
    s.key = 1234567;
    for (int i = 0; i < 2 * NUMBERS; i++) {
        position = i * 3 % NUMBERS;
        ck_assert_int_eq(pick(&s, logits), (int64_t)(published[i * 3 % NUMBERS] >> 44));
    }
    sample_close(&s);
    free(logits);
}
END_TEST

/* Which tokens come at all, by bits. */
static unsigned drawn(const tn_generate_options *o, const float *logits, int64_t vocab)
{
    sampler s;
    unsigned seen = 0;
    ck_assert_int_eq(sample_init(&s, o, vocab, NULL), TN_OK);
    for (int i = 0; i < 2000; i++)
        seen |= 1u << pick(&s, logits);
    sample_close(&s);
    return seen;
}

/* Probabilities 0.5, 0.25, 0.125, 0.125: against the best they are 1, 0.5, 0.25, 0.25. */
START_TEST(min_p_leaves_the_likely)
{
    static const float logits[] = {-1.3862944f, 0, -0.69314718f, -1.3862944f};
    static const struct {
        double min_p, temperature, top_p;
        int64_t top_k;
        unsigned allowed;
    } sets[] = {{0.24, 1, 0, 0, 15},
                {0.26, 1, 0, 0, 6},
                {0.49, 1, 0, 0, 6},
                {0.51, 1, 0, 0, 2},
                {1, 1, 0, 0, 2},
                {0.26, 1, 0, 3, 6},
                {0.26, 1, 0.99, 0, 6},
                {0.26, 1, 0.4, 0, 2},
                /* The temperature comes first: at 2 they are 1, 0.71, 0.5, 0.5, at 0.5 1, 0.25, 0.06. */
                {0.49, 2, 0, 0, 15},
                {0.26, 0.5, 0, 0, 2},
                {0.24, 0.5, 0, 2, 6}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        tn_generate_options o = {.size = sizeof o,
                                 .min_p = sets[i].min_p,
                                 .temperature = sets[i].temperature,
                                 .top_p = sets[i].top_p,
                                 .top_k = sets[i].top_k,
                                 .seed = 5};
        unsigned seen = drawn(&o, logits, 4);
        ck_assert_msg(seen == sets[i].allowed, "set %zu: %x", i, seen);
    }
}
END_TEST

/* Divided where positive, multiplied where negative, once however often a token came. */
START_TEST(the_penalty_changes_what_came)
{
    tn_generate_options o = {.size = sizeof o, .repetition_penalty = 1.25};
    sampler s;
    float logits[] = {2.5f, -2, 0, 3, -INFINITY, 1};
    static const float after[] = {2, -2.5f, 0, 3, -INFINITY, 1};
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(sample_init(&s, &o, 6, &err), TN_OK);
    ck_assert_int_eq(sample_see(&s, (int64_t[]){0, 1, 0, 2, 4, 1, 0}, 7, &err), TN_OK);
    ck_assert_int_eq(s.seen_count, 4);
    sample_penalise(&s, logits);
    ck_assert_mem_eq(logits, after, sizeof after);
    ck_assert_int_eq(sample_see(&s, (int64_t[]){6}, 1, &err), TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, "history", "token id 6 is outside the vocabulary of 6", NULL);
    sample_close(&s);
}
END_TEST

/* Greedy with a penalty, by hand: 3 / 2 = 1.5 is less than 2, and -1 * 2 = -2 less than -1.5. */
START_TEST(the_penalty_also_holds_for_greedy)
{
    tn_generate_options o = {.size = sizeof o, .repetition_penalty = 2};
    sampler s;
    ck_assert_int_eq(sample_init(&s, &o, 3, NULL), TN_OK);
    sample_see(&s, (int64_t[]){1}, 1, NULL);
    float high[] = {2, 3, 1}, low[] = {-1.5f, -1, -3};
    sample_penalise(&s, high);
    sample_penalise(&s, low);
    ck_assert_int_eq(pick(&s, high), 0);
    ck_assert_int_eq(pick(&s, low), 0);
    sample_close(&s);
}
END_TEST

/* Before the temperature: with it 2.5 / 1.25 = 2 ties with 2, so both tokens come equally often at any temperature. */
START_TEST(the_penalty_comes_first)
{
    tn_generate_options o = {.size = sizeof o, .repetition_penalty = 1.25, .temperature = 0.01, .seed = 7};
    sampler s;
    int first = 0;
    ck_assert_int_eq(sample_init(&s, &o, 2, NULL), TN_OK);
    sample_see(&s, (int64_t[]){0}, 1, NULL);
    for (int i = 0; i < 4000; i++) {
        float logits[] = {2.5f, 2};
        sample_penalise(&s, logits);
        first += pick(&s, logits) == 0;
    }
    ck_assert_int_lt(abs(first - 2000), 200); /* six deviations of 32 */
    sample_close(&s);
}
END_TEST

START_TEST(bad_logits_are_errors)
{
    static const float bad[][3] = {{0, NAN, 1}, {NAN, NAN, NAN}, {-INFINITY, -INFINITY, -INFINITY}, {-NAN, 2, 1}};
    for (int t = 0; t < 2; t++) {
        sampler s = make(t, 0, 0, 1, 3);
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            tn_error err = TN_ERROR_INIT;
            int64_t id = 77;
            ck_assert_int_eq(sample_pick(&s, bad[i], 0, &id, &err), TN_E_INPUT);
            broken_expect(&err, TN_E_INPUT, "logits", i == 2 ? "-inf" : "NaN", NULL);
            ck_assert_int_eq(id, 77);
        }
        if (t) {
            int64_t id;
            ck_assert_int_eq(sample_pick(&s, (float[]){INFINITY, 0, 1}, 0, &id, NULL), TN_E_INPUT);
        }
        sample_close(&s);
    }
}
END_TEST

START_TEST(bad_options_are_errors)
{
    static const struct {
        double temperature;
        int64_t top_k;
        double top_p;
        const char *word;
        double min_p, penalty;
    } bad[] = {{-1, 0, 0, "temperature", 0, 0},
               {NAN, 0, 0, "temperature", 0, 0},
               {INFINITY, 0, 0, "temperature", 0, 0},
               {1, -1, 0, "top_k", 0, 0},
               {1, 0, -0.1, "top_p", 0, 0},
               {1, 0, 1.5, "top_p", 0, 0},
               {1, 0, NAN, "top_p", 0, 0},
               {0, 0, 2, "top_p", 0, 0},
               {1, 0, 0, "min_p", -0.1, 0},
               {1, 0, 0, "min_p", 1.1, 0},
               {1, 0, 0, "repetition_penalty", 0, -1},
               {0, 0, 0, "repetition_penalty", 0, NAN}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tn_generate_options o = {.size = sizeof o,
                                 .temperature = bad[i].temperature,
                                 .top_k = bad[i].top_k,
                                 .top_p = bad[i].top_p,
                                 .min_p = bad[i].min_p,
                                 .repetition_penalty = bad[i].penalty};
        sampler s;
        tn_error err = TN_ERROR_INIT;
        ck_assert_int_eq(sample_init(&s, &o, 3, &err), TN_E_USAGE);
        broken_expect(&err, TN_E_USAGE, bad[i].word, NULL);
        sample_close(&s);
    }
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("sample", 60);
    suite_add(tc, greedy_takes_the_best_and_lowest);
    tcase_add_loop_test(tc, every_filter_leaves_what_it_should, 0, sizeof cases / sizeof cases[0]);
    suite_add(tc, known_sets, a_large_vocabulary, fast_ways_choose_as_the_slow_one, weights_are_exact,
              a_place_in_the_sum_is_found, what_is_excluded_is_not_drawn, a_seed_decides_the_tokens,
              the_generator_is_what_it_says, min_p_leaves_the_likely, the_penalty_changes_what_came,
              the_penalty_also_holds_for_greedy, the_penalty_comes_first, bad_logits_are_errors,
              bad_options_are_errors);
    return suite_run();
}
