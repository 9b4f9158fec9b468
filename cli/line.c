/* Reading lines: through libedit on a terminal, plainly otherwise. */
#include "line.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

/* As long as a prompt may be. */
#define LINE_MAX_BYTES ((size_t)64 << 20)
#define REMEMBERED 500
#define REMEMBERED_BYTES 4096 /* of a line                                                         */
/* What terminals put around a pasted text once they are asked to, and how they are asked. */
#define PASTE_BEGINS "\\e[200~" /* as libedit writes keys                                            */
#define PASTE_ENDS L"\x1b[201~"
#define PASTE_ON "\x1b[?2004h"
#define PASTE_OFF "\x1b[?2004l"

struct line_reader {
    EditLine *editor; /* NULL: a pipe                                                           */
    History *history;
    FILE *screen;             /* where it writes                                                */
    bool marks;               /* the terminal is asked to mark what is pasted                   */
    const char *const *words; /* that Tab completes behind a slash; NULL ends them              */
    bool continued;           /* the line before ended in a backslash                                    */
    volatile int *interrupted;
    mbstate_t shift;
    char *text;
    size_t length, capacity;
};

/* ---- on a terminal -------------------------------------------------------------------------- */

static const char *prompt(EditLine *editor)
{
    line_reader *l = NULL;
    el_get(editor, EL_CLIENTDATA, &l);
    return l->continued ? ". " : "> ";
}

/* Waits for standard input; false when Ctrl-C was pressed. The signal is let in by the wait alone: between a look at
 * the flag and a read it would be noticed only at the next key. */
static bool wait_for_input(const line_reader *l)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    sigset_t interrupt, before;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt, &before);
    int ready = -1;
    do
        ready = *l->interrupted ? 0 : ppoll(&input, 1, NULL, &before);
    while (ready < 0 && errno == EINTR);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !*l->interrupted;
}

/* One character of standard input; 0 at its end, and when Ctrl-C was pressed. */
static int read_character(EditLine *editor, wchar_t *out)
{
    line_reader *l = NULL;
    el_get(editor, EL_CLIENTDATA, &l);
    for (;;) {
        char byte;
        ssize_t got = wait_for_input(l) ? read(STDIN_FILENO, &byte, 1) : 0;
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return (int)got;
        /* Ctrl-D that was pressed before the editor had the terminal, while an answer came, arrives as this. */
        if (byte == '\0')
            byte = '\4';
        size_t used = mbrtowc(out, &byte, 1, &l->shift);
        if (used == (size_t)-2)
            continue;
        if (used == (size_t)-1) {
            l->shift = (mbstate_t){0};
            *out = L'?';
        }
        /* The second set of controls are commands to the editor (U+0088 deletes a word), and some terminals' too. */
        if (*out >= 0x80 && *out < 0xa0)
            *out = 0xfffd;
        return 1;
    }
}

/* A pasted text is inserted as it is, with its lines: Enter behind it sends them as one message. */
static unsigned char paste(EditLine *editor, int key)
{
    static const wchar_t end[] = PASTE_ENDS;
    const size_t marked = sizeof end / sizeof *end - 1;
    wchar_t *text = NULL, c;
    size_t length = 0, capacity = 0;
    bool ended = false;
    (void)key;
    while (!ended && read_character(editor, &c) == 1) {
        if (length + 1 >= capacity) {
            wchar_t *larger = capacity < LINE_MAX_BYTES ? realloc(text, (capacity + 1024) * 2 * sizeof *text) : NULL;
            if (!larger)
                break;
            text = larger;
            capacity = (capacity + 1024) * 2;
        }
        text[length++] = c == L'\r' ? L'\n' : c;
        ended = length >= marked && wmemcmp(text + length - marked, end, marked) == 0;
    }
    length -= ended ? marked : 0;
    while (length > 0 && text[length - 1] == L'\n')
        length--;
    if (length > 0)
        text[length] = L'\0';
    bool inserted = ended && (length == 0 || el_winsertstr(editor, text) == 0);
    free(text);
    return inserted ? CC_REFRESH : CC_REFRESH_BEEP;
}

/* Tab: as much as is certain of a word behind a slash at the beginning, elsewhere a tab. */
static unsigned char complete(EditLine *editor, int key)
{
    line_reader *l = NULL;
    el_get(editor, EL_CLIENTDATA, &l);
    const LineInfo *line = el_line(editor);
    size_t typed = (size_t)(line->cursor - line->buffer), same = 0, found = 0;
    char more[64];
    const char *first = NULL;
    (void)key;
    if (typed == 0 || line->buffer[0] != '/' || memchr(line->buffer, ' ', typed))
        return el_insertstr(editor, "\t") == 0 ? CC_REFRESH : CC_ERROR;
    for (const char *const *word = l->words; *word; word++) {
        size_t i = 0;
        if (strncmp(*word, line->buffer + 1, typed - 1) != 0)
            continue;
        first = found++ ? first : *word;
        while (first[i] && first[i] == (*word)[i])
            i++;
        same = found == 1 || i < same ? i : same;
    }
    if (!first || (found > 1 && same == typed - 1))
        return CC_REFRESH_BEEP;
    snprintf(more, sizeof more, "%.*s%s", (int)(same - (typed - 1)), first + typed - 1, found == 1 ? " " : "");
    return el_insertstr(editor, more) == 0 ? CC_REFRESH : CC_ERROR;
}

static void bind_keys(EditLine *editor)
{
    el_set(editor, EL_ADDFN, "tenon-paste", "Insert a pasted text", paste);
    el_set(editor, EL_BIND, PASTE_BEGINS, "tenon-paste", NULL);
    el_set(editor, EL_ADDFN, "tenon-complete", "Complete a command", complete);
    el_set(editor, EL_BIND, "\t", "tenon-complete", NULL);
}

static bool open_editor(line_reader *l)
{
    HistEvent event;
    /* What is typed is UTF-8, as everything is. */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX < 4)
        setlocale(LC_CTYPE, "C.UTF-8");
    setenv("TERM", "dumb", 0); /* where nobody says what the terminal is                          */
    l->marks = strcmp(getenv("TERM"), "dumb") != 0;
    l->screen = isatty(STDOUT_FILENO) ? stdout : stderr;
    l->history = history_init();
    l->editor = el_init("tenon", stdin, l->screen, stderr);
    if (!l->history || !l->editor)
        return false;
    history(l->history, &event, H_SETSIZE, REMEMBERED);
    history(l->history, &event, H_SETUNIQUE, 1);
    el_set(l->editor, EL_CLIENTDATA, l);
    el_set(l->editor, EL_PROMPT, prompt);
    el_set(l->editor, EL_EDITOR, "emacs");
    el_set(l->editor, EL_HIST, history, l->history);
    el_set(l->editor, EL_GETCFN, read_character);
    bind_keys(l->editor);
    return true;
}

line_reader *line_open(const char *const *words, tn_error *err)
{
    line_reader *l = calloc(1, sizeof *l);
    bool terminal = isatty(STDIN_FILENO) && (isatty(STDOUT_FILENO) || isatty(STDERR_FILENO));
    if (l)
        l->words = words;
    if (l && (!terminal || open_editor(l)))
        return l;
    line_close(l);
    tn_fail(err, TN_E_MEMORY, "terminal", "its editor cannot be set up; give the messages through a pipe");
    return NULL;
}

void line_close(line_reader *l)
{
    if (!l)
        return;
    if (l->editor)
        el_end(l->editor);
    if (l->history)
        history_end(l->history);
    free(l->text);
    free(l);
}

void line_recall(line_reader *l, const char *path)
{
    HistEvent event;
    history(l->history, &event, H_LOAD, path);
}

/* By way of a file without a name: libedit sets the mode of what it writes to, which a stream in memory has not. */
tn_status line_keep(const line_reader *l, const char *path, tn_error *err)
{
    HistEvent event;
    FILE *to = tmpfile();
    bool whole = to && history(l->history, &event, H_SAVE_FP, to) >= 0;
    long length = whole ? ftell(to) : -1;
    char *text = length >= 0 ? malloc((size_t)length + 1) : NULL;
    whole = text && fseek(to, 0, SEEK_SET) == 0 && fread(text, 1, (size_t)length, to) == (size_t)length;
    tn_status status = whole ? replace_file(path, text, (size_t)length, err)
                             : tn_fail(err, TN_E_INPUT, path, "cannot be prepared in a temporary file; free space");
    free(text);
    if (to)
        fclose(to);
    return status;
}

bool line_interactive(const line_reader *l)
{
    return l->editor != NULL;
}

/* ---- lines ---------------------------------------------------------------------------------- */

static bool append(line_reader *l, const char *text, size_t length)
{
    if (l->length + length + 1 > l->capacity) {
        size_t capacity = (l->length + length + 1) * 2;
        char *larger = capacity <= 4 * LINE_MAX_BYTES ? realloc(l->text, capacity) : NULL;
        if (!larger)
            return false;
        l->text = larger;
        l->capacity = capacity;
    }
    memcpy(l->text + l->length, text, length);
    l->length += length;
    l->text[l->length] = '\0';
    return true;
}

/* Appends what comes up to the end of a line, which is left out. */
static line_end read_pipe(line_reader *l)
{
    char piece[4096];
    size_t used = 0;
    bool any = false;
    int c = 0;
    while ((c = getc(stdin)) != EOF && c != '\n') {
        any = true;
        piece[used++] = (char)c;
        if (used == sizeof piece) {
            if (l->length > LINE_MAX_BYTES || !append(l, piece, used))
                return LINE_FAILED;
            used = 0;
        }
    }
    if (!append(l, piece, used))
        return LINE_FAILED;
    if (l->length && l->text[l->length - 1] == '\r')
        l->text[--l->length] = '\0';
    return c == EOF && !any ? LINE_CLOSED : LINE_READ;
}

/* Asks the terminal to mark what is pasted, while there is somebody who understands it. */
static void mark_pastes(const line_reader *l, bool on)
{
    if (!l->marks)
        return;
    fputs(on ? PASTE_ON : PASTE_OFF, l->screen);
    fflush(l->screen);
}

static line_end read_terminal(line_reader *l)
{
    int count = 0;
    el_resize(l->editor);
    mark_pastes(l, true);
    const char *line = el_gets(l->editor, &count);
    mark_pastes(l, false);
    if (*l->interrupted)
        return LINE_INTERRUPTED;
    if (!line || count <= 0)
        return LINE_CLOSED;
    size_t length = strlen(line);
    length -= length > 0 && line[length - 1] == '\n';
    if (!append(l, line, length))
        return LINE_FAILED;
    HistEvent event;
    if (length > 0 && length <= REMEMBERED_BYTES)
        history(l->history, &event, H_ENTER, line);
    return LINE_READ;
}

line_end line_read(line_reader *l, volatile int *interrupted, char **text, size_t *length, tn_error *err)
{
    l->interrupted = interrupted;
    l->continued = false;
    l->length = 0;
    *interrupted = 0;
    line_end end = append(l, "", 0) ? LINE_READ : LINE_FAILED;
    while (end == LINE_READ) {
        end = l->editor ? read_terminal(l) : read_pipe(l);
        if (end != LINE_READ || l->length == 0 || l->text[l->length - 1] != '\\')
            break;
        l->text[l->length - 1] = '\n';
        l->continued = true;
    }
    if (end == LINE_CLOSED && l->continued) /* the end comes behind a backslash: what was there is a message */
        end = LINE_READ;
    if (end == LINE_INTERRUPTED)
        *interrupted = 0;
    *text = end == LINE_READ ? malloc(l->length + 1) : NULL;
    if (*text)
        memcpy(*text, l->text, l->length + 1);
    *length = l->length;
    if (end == LINE_FAILED || (end == LINE_READ && !*text)) {
        tn_fail(err, TN_E_MEMORY, "standard input", "no memory for a line, or it has more than %zu MiB; split it",
                LINE_MAX_BYTES >> 20);
        return LINE_FAILED;
    }
    return end;
}
