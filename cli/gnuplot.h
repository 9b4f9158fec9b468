/* Pictures by gnuplot, a program that may be there. */
#ifndef TENON_CLI_GNUPLOT_H
#define TENON_CLI_GNUPLOT_H

#include <stdio.h>
#include <tenon/error.h>

/* Is there one? TN_E_USAGE with the name of its package if not. */
tn_status gnuplot_check(tn_error *err);

/* Runs it on a script, with `to` as its output. */
tn_status gnuplot_run(FILE *script, FILE *to, tn_error *err);

/* Writes text as the script has it. */
void gnuplot_text(FILE *script, const char *text);

#endif
