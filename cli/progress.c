/* The progress bar: one line on stderr that is drawn over itself and leaves nothing behind. It uses carriage returns
 * and blanks only, so that any terminal shows it. A Ctrl-C that ends the program takes the bar away first. */
#include "cli.h"

#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* What is over sooner needs no bar, and nobody reads more than ten updates a second. */
#define DRAW_AFTER 0.5
#define DRAW_EVERY 0.1
#define WIDTH_MAX 100

int progress_columns(int fd)
{
    struct winsize size;
    if (ioctl(fd, TIOCGWINSZ, &size) || size.ws_col == 0)
        return 80;
    return size.ws_col < WIDTH_MAX ? size.ws_col : WIDTH_MAX;
}

void progress_start(progress *p, const options *o)
{
    *p = (progress){.enabled = isatty(STDERR_FILENO) && !option_given(o, OPT_QUIET) && !ranks_silent,
                    .started = seconds_now()};
}

/* ---- Ctrl-C ----------------------------------------------------------------------------------- */

static volatile sig_atomic_t drawn_columns; /* of the bar that is there                               */

static void on_interrupt(int signal_number)
{
    char blank[WIDTH_MAX + 2];
    int columns = drawn_columns;
    memset(blank, ' ', sizeof blank);
    blank[0] = blank[columns + 1] = '\r';
    ssize_t n = write(STDERR_FILENO, blank, (size_t)columns + 2);
    (void)n;
    raise(signal_number); /* SA_RESETHAND: ends the program when this returns                        */
}

/* Where nobody else waits for it. */
static void catch_interrupt(bool wanted)
{
    struct sigaction now, own = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    void (*expected)(int) = wanted ? SIG_DFL : on_interrupt;
    if (!wanted)
        own = (struct sigaction){.sa_handler = SIG_DFL};
    if (sigaction(SIGINT, NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) && now.sa_handler == expected)
        sigaction(SIGINT, &own, NULL);
}

/* ---- the bar ---------------------------------------------------------------------------------- */

/* "what [#####.....]  42%", a column less than the terminal has: the last one would wrap on some. */
static void draw(const char *what, double part, int columns)
{
    char line[4 * WIDTH_MAX], bar[WIDTH_MAX + 1];
    int room = columns - 1, label = (int)strlen(what), most = room - 14;
    while (label > 0 && label > most) { /* without its last part or word, never inside one: "1/30" is not "1/3" */
        const char *comma = memrchr(what, ',', (size_t)label), *blank = memrchr(what, ' ', (size_t)label);
        label = comma ? (int)(comma - what) : blank ? (int)(blank - what) : 0;
    }
    int cells = room - label - 8 - (label > 0);
    if (cells > 40)
        cells = 40;
    if (cells < 1)
        cells = 1;
    for (int i = 0; i < cells; i++)
        bar[i] = i < (int)(part * cells + 0.5) ? '#' : '.';
    bar[cells] = '\0';
    snprintf(line, sizeof line, "%.*s%s[%s] %3.0f%%", label, what, label ? " " : "", bar, part * 100);
    fprintf(stderr, "\r%-*.*s", room, room, line);
    fflush(stderr);
}

void progress_update(progress *p, const char *what, int64_t done, int64_t total)
{
    double now = p->enabled && total > 0 ? seconds_now() : 0;
    if (!p->enabled || total <= 0 || now - p->started < DRAW_AFTER || now - p->drawn < DRAW_EVERY)
        return;
    int columns = progress_columns(STDERR_FILENO);
    if (columns < 12) /* not even the figure would fit */
        return;
    double part = (double)done / (double)total;
    p->drawn = now;
    p->shown = true;
    drawn_columns = columns - 1;
    catch_interrupt(true);
    draw(what, part < 0 ? 0 : part > 1 ? 1 : part, columns);
}

void progress_clear(progress *p)
{
    if (p->shown) {
        fprintf(stderr, "\r%*s\r", progress_columns(STDERR_FILENO) - 1, "");
        fflush(stderr);
        catch_interrupt(false);
    }
    p->shown = false;
    p->started = seconds_now();
}
