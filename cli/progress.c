/* The progress bar: one line on stderr that is drawn over itself and leaves nothing behind. It uses carriage returns
 * and blanks only, so that any terminal shows it. */
#include "cli.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* What is over sooner needs no bar, and nobody reads more than ten updates a second. */
#define DRAW_AFTER 0.2
#define DRAW_EVERY 0.1
#define WIDTH_MAX 100

static int terminal_width(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || size.ws_col == 0)
        return 80;
    return size.ws_col < WIDTH_MAX ? size.ws_col : WIDTH_MAX;
}

void progress_start(progress *p, const options *o)
{
    *p = (progress){.enabled = isatty(STDERR_FILENO) && !option_given(o, OPT_QUIET), .started = seconds_now()};
}

/* "what [#####.....]  42%", a column less than the terminal has: the last one would wrap on some. */
static void draw(const char *what, double part, int columns)
{
    char line[4 * WIDTH_MAX], bar[WIDTH_MAX + 1];
    int room = columns - 1, label = (int)strlen(what), most = room - 19;
    if (label > most) /* cut before a character, never inside one */
        for (label = most > 0 ? most : 0; label > 0 && ((unsigned char)what[label] & 0xC0) == 0x80;)
            label--;
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
    int columns = terminal_width();
    if (columns < 12) /* not even the figure would fit */
        return;
    double part = (double)done / (double)total;
    p->drawn = now;
    p->shown = true;
    draw(what, part < 0 ? 0 : part > 1 ? 1 : part, columns);
}

void progress_clear(progress *p)
{
    if (p->shown) {
        fprintf(stderr, "\r%*s\r", terminal_width() - 1, "");
        fflush(stderr);
    }
    p->shown = false;
    p->started = seconds_now();
}
