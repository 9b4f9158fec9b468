/* tenon train --plot: the loss of the steps, of the data of --eval, and the rate below them. gnuplot draws. */
#include "gnuplot.h"
#include "train.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* Inline data: step, loss or eval or rate; what is no number is left out. */
static void put_points(FILE *f, const train_log *log, double (*of)(const train_entry *e))
{
    for (size_t i = 0; i < log->count; i++)
        if (isfinite(of(&log->entries[i])))
            fprintf(f, "%lld %.9g\n", (long long)log->entries[i].step, of(&log->entries[i]));
    fputs("e\n", f);
}

static double loss_of(const train_entry *e)
{
    return isnan(e->eval) ? e->loss : NAN;
}

/* At each step the mean loss of about the last thirtieth of all, which fade. */
static void put_means(FILE *f, const train_log *log)
{
    double kept = 0, weight = 0, fades = 1 - 1 / ((double)log->steps / 30 + 1);
    for (size_t i = 0; i < log->count; i++)
        if (isfinite(loss_of(&log->entries[i]))) {
            kept = kept * fades + loss_of(&log->entries[i]);
            weight = weight * fades + 1;
            fprintf(f, "%lld %.9g\n", (long long)log->entries[i].step, kept / weight);
        }
    fputs("e\n", f);
}

static double eval_of(const train_entry *e)
{
    return e->eval;
}

static double rate_of(const train_entry *e)
{
    return isnan(e->eval) ? e->rate : NAN;
}

static bool is_evaluated(const train_log *log)
{
    bool any = false;
    for (size_t i = 0; i < log->count; i++)
        any = any || isfinite(log->entries[i].eval);
    return any;
}

/* Each loss as a point, and a curve that follows them. */
static void put_script(FILE *f, const char *title, const train_log *log)
{
    bool eval = is_evaluated(log);
    fputs("set terminal svg noenhanced size 1200, 800 font 'sans-serif,13' background '#ffffff'\n"
          "set encoding utf8\nset grid lc rgb '#e4e4e4' lw 1\nset tics nomirror\nset lmargin 12\nset title ",
          f);
    gnuplot_text(f, title);
    fprintf(f,
            "\nset multiplot\nset size 1, 0.72\nset origin 0, 0.28\nset ylabel 'loss'\nset key top right\n"
            "set xrange [0:%lld]\n"
            "plot '-' with points pt 7 ps 0.5 lc rgb '#9ec5e3' title 'a step', "
            "'-' with lines lw 2 lc rgb '#1f77b4' title 'mean of the last ones'%s\n",
            (long long)log->steps, eval ? ", '-' with linespoints pt 7 ps 0.7 lw 2 lc rgb '#d62728' title 'eval'" : "");
    put_points(f, log, loss_of);
    put_means(f, log);
    if (eval)
        put_points(f, log, eval_of);
    fputs("unset title\nset size 1, 0.3\nset origin 0, 0\nset ylabel 'rate'\nset xlabel 'step'\nunset key\n"
          "set yrange [0:*]\nset format y '%.1e'\n"
          "plot '-' with lines lw 2 lc rgb '#2ca02c'\n",
          f);
    put_points(f, log, rate_of);
    fputs("unset multiplot\n", f);
}

tn_status train_plot(FILE *to, const char *title, const train_log *log, tn_error *err)
{
    FILE *script = tmpfile();
    if (!script)
        return tn_fail(err, TN_E_INTERNAL, "--plot", "no temporary file: %s; free space in /tmp", strerror(errno));
    put_script(script, title, log);
    tn_status status = log->count > 0 ? gnuplot_run(script, to, err) : TN_OK;
    fclose(script);
    return status;
}
