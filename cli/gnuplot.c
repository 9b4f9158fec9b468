/* Pictures by gnuplot, a program that may be there. */
#include "gnuplot.h"

#include <errno.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static bool in_path(const char *program)
{
    const char *path = getenv("PATH");
    char file[4096];
    for (const char *at = path ? path : ""; *at;) {
        size_t length = strcspn(at, ":");
        snprintf(file, sizeof file, "%.*s/%s", (int)length, at, program);
        if (length > 0 && access(file, X_OK) == 0)
            return true;
        at += length + (at[length] == ':');
    }
    return false;
}

tn_status gnuplot_check(tn_error *err)
{
    if (in_path("gnuplot"))
        return TN_OK;
    return tn_fail(err, TN_E_USAGE, "--plot", "there is no gnuplot in PATH; install the package gnuplot-nox");
}

/* The first line of what the program complained of. */
static void first_line(FILE *said, char *line, size_t size)
{
    line[0] = '\0';
    rewind(said);
    while (fgets(line, (int)size, said) && strspn(line, " \n\t^") == strlen(line))
        continue;
    line[strcspn(line, "\n")] = '\0';
}

tn_status gnuplot_run(FILE *script, FILE *to, tn_error *err)
{
    static char name[] = "gnuplot", plain[] = "-d";
    char *const arguments[] = {name, plain, NULL};
    extern char **environ;
    posix_spawn_file_actions_t files;
    int status = 0;
    pid_t pid;
    FILE *said = tmpfile();
    if (!said || fflush(script) != 0)
        return tn_fail(err, TN_E_INTERNAL, "--plot", "no temporary file: %s; free space in /tmp", strerror(errno));
    lseek(fileno(script), 0, SEEK_SET);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, fileno(script), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, fileno(to), STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, fileno(said), STDERR_FILENO);
    int failed = posix_spawnp(&pid, name, &files, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&files);
    while (!failed && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    char line[160];
    first_line(said, line, sizeof line);
    fclose(said);
    if (failed)
        return tn_fail(err, TN_E_INTERNAL, "gnuplot", "cannot be started: %s; install the package gnuplot-nox again",
                       strerror(failed));
    if (status != 0)
        return tn_fail(err, TN_E_INTERNAL, "gnuplot", "ended with status %d%s%s; try gnuplot by itself",
                       WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), *line ? ": " : "", line);
    return TN_OK;
}

/* In single quotes it takes everything as it is but the quote itself. */
void gnuplot_text(FILE *f, const char *text)
{
    fputc('\'', f);
    for (; *text; text++)
        fprintf(f, *text == '\'' ? "''" : "%c", (unsigned char)*text < ' ' ? '?' : *text);
    fputc('\'', f);
}
