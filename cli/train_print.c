/* What tenon train says while it is at work: a line of a step now and then. */
#include "train.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* Nobody reads more on a terminal, or more than some thousand lines of a night in a file. */
#define TELL_EVERY 1.0
#define TELL_EVERY_IN_FILE 10.0

/* "0:07:31" in buffer, which is returned. */
static const char *duration(double seconds, char buffer[32])
{
    int64_t all = (int64_t)ceil(seconds > 0 ? seconds : 0);
    snprintf(buffer, 32, "%lld:%02d:%02d", (long long)(all / 3600), (int)(all / 60 % 60), (int)(all % 60));
    return buffer;
}

/* Parts of a line, as many as fit into the terminal. */
static void print_parts(const char *const *parts, size_t count)
{
    size_t columns = isatty(STDOUT_FILENO) ? (size_t)progress_columns(STDOUT_FILENO) : SIZE_MAX, used = 0;
    for (size_t i = 0; i < count && (i == 0 || used + strlen(parts[i]) + 2 < columns); i++) {
        used += strlen(parts[i]) + 2;
        printf("%s%s", i ? ", " : "", parts[i]);
    }
    putchar('\n');
    fflush(stdout);
}

void train_print_step(train_run *t, const train_entry *e)
{
    double now = seconds_now(), passed = now - t->told;
    bool edge = e->step == t->begun + 1 || e->step == t->steps;
    if (option_given(t->s.o, OPT_QUIET) || t->s.rank > 0 ||
        (!edge && passed < (isatty(STDOUT_FILENO) ? TELL_EVERY : TELL_EVERY_IN_FILE)))
        return;
    char step[64], loss[40], rate[40], norm[40], speed[40], left[48], time[32];
    double each = t->seconds / (double)(e->step - t->begun);
    snprintf(step, sizeof step, "step %lld/%lld", (long long)e->step, (long long)t->steps);
    snprintf(loss, sizeof loss, "loss %.4f", e->loss);
    snprintf(rate, sizeof rate, "rate %.2e", e->rate);
    snprintf(norm, sizeof norm, "norm %.3f", e->norm);
    snprintf(speed, sizeof speed, "%.0f tokens/s", t->told_seconds > 0 ? (double)t->told_tokens / t->told_seconds : 0);
    snprintf(left, sizeof left, "%s left", duration(each * (double)(t->steps - e->step), time));
    progress_clear(&t->w.progress);
    print_parts((const char *const[]){step, loss, rate, norm, speed, left}, 6);
    t->told = now;
    t->told_tokens = 0;
    t->told_seconds = 0;
}

void train_print_eval(train_run *t, const train_entry *e)
{
    char step[64], loss[48], perplexity[48];
    progress_clear(&t->w.progress);
    if (option_given(t->s.o, OPT_QUIET) || t->s.rank > 0)
        return;
    snprintf(step, sizeof step, "step %lld/%lld", (long long)e->step, (long long)t->steps);
    snprintf(loss, sizeof loss, "eval loss %.4f", e->eval);
    snprintf(perplexity, sizeof perplexity, "perplexity %.3f", exp(e->eval));
    print_parts((const char *const[]){step, loss, perplexity}, 3);
}
