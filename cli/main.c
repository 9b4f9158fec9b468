/* The program `tenon`: finds the sub-command, runs it, reports its error in one line and turns it into an exit status.
 */
#include "cli.h"
#include "ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A closed standard stream would lend its number to the next file that is opened, and what the program prints would
 * end up in that file. It gets a place holder instead, open in the wrong direction so that using it fails. */
static void reserve_standard_streams(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            return;
}

static const command *find_command(const char *name)
{
    for (const command *const *c = commands; *c; c++)
        if (strcmp((*c)->name, name) == 0)
            return *c;
    return NULL;
}

/* The first argument that is no option, knowing which options of `run` take a value; argc when there is none. */
static int first_word(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *argument = argv[i];
        if (argument[0] != '-' || !argument[1])
            return i;
        if (strcmp(argument, "--") == 0)
            return i + 1 < argc ? i + 1 : argc;
        for (size_t k = 0; k < command_run.option_count + common_option_count; k++) {
            const option_spec *s =
                k < command_run.option_count ? &command_run.options[k] : &common_options[k - command_run.option_count];
            bool named =
                argument[1] == '-' ? strcmp(argument + 2, s->name) == 0 : argument[1] == s->letter && !argument[2];
            i += named && s->kind != OPTION_FLAG;
        }
    }
    return argc;
}

static bool is_model(const char *path)
{
    struct stat st;
    return strchr(path, '/') || is_gguf(path) || (stat(path, &st) == 0 && S_ISDIR(st.st_mode));
}

static tn_status unknown_command(const char *word, tn_error *err)
{
    const char *names[24] = {"help", "version"};
    size_t count = 2;
    for (const command *const *c = commands; *c && count < 24; c++)
        names[count++] = (*c)->name;
    const char *nearest = tn_nearest_name(word, names, count);
    if (nearest)
        return tn_fail(err, TN_E_USAGE, NULL, "unknown command '%s'; did you mean 'tenon %s'?", word, nearest);
    return tn_fail(err, TN_E_USAGE, NULL, "unknown command '%s'; see tenon --help", word);
}

static tn_status print_version(tn_error *err)
{
    printf("tenon %s\n", TN_VERSION);
    if (strcmp(tn_version(), TN_VERSION) != 0)
        printf("libtenon %s\n", tn_version());
    const char *why = tn_trial_unfiltered();
    if (why)
        printf(UNFILTERED "\n", why);
    return write_flush(err);
}

/* Help comes whatever else is wrong with the line. */
static bool wants_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

/* The program beside this one takes this one's place, with the same arguments. */
static tn_status run_program(const command *c, int argc, char **argv, tn_error *err)
{
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 64);
    char **own = calloc((size_t)argc + 2, sizeof *own), *slash = NULL;
    if (!own)
        return tn_fail(err, TN_E_MEMORY, c->name, "out of memory");
    path[length > 0 ? length : 0] = '\0';
    if ((slash = strrchr(path, '/')))
        strcpy(slash + 1, c->program);
    own[0] = path;
    for (int i = 0; i < argc; i++)
        own[i + 1] = argv[i];
    execv(path, own);
    tn_status status = tn_fail(err, TN_E_KERNEL, c->program,
                               "%s: %s; it is built where libmicrohttpd is, and belongs beside "
                               "tenon",
                               path, strerror(errno));
    free(own);
    return status;
}

static tn_status run_command(const command *c, int argc, char **argv, tn_error *err)
{
    options o = {.command = c, .all = commands};
    ranks_silent = ranks_own() > 0 && ranks_can(c);
    if (wants_help(argc, argv)) {
        help_command(stdout, c);
        return write_flush(err);
    }
    tn_status status = options_parse(&o, argc, argv, err);
    if (status == TN_OK && option_given(&o, OPT_VERSION)) {
        status = print_version(err);
    } else if (status == TN_OK && c->program) {
        status = run_program(c, argc, argv, err);
    } else if (status == TN_OK) {
        status = ranks_check(&o, err);
        ranks_watch(&o);
        if (status == TN_OK)
            status = option_given(&o, OPT_PARALLEL) && ranks_own() > 0 && !c->of_ranks ? ranks_follow(&o, err)
                                                                                       : c->run(&o, err);
        if (status == TN_OK)
            status = write_flush(err);
    }
    options_free(&o);
    return status;
}

static tn_status no_command(int argc, char **argv, tn_error *err)
{
    if (wants_help(argc - 1, argv + 1)) {
        help_program(stdout);
        return write_flush(err);
    }
    /* Only options: they are those of `run`, and a wrong one, or no model, is what there is to say. */
    command c = command_run;
    c.name = "";
    c.min_arguments = 0;
    options o = {.command = &c, .all = commands};
    tn_status status = options_parse(&o, argc - 1, argv + 1, err);
    bool version = option_given(&o, OPT_VERSION), model = option_given(&o, OPT_MODEL);
    options_free(&o);
    if (status)
        return status;
    if (version)
        return print_version(err);
    if (model)
        return run_command(&command_run, argc - 1, argv + 1, err);
    help_program(stderr);
    return tn_fail(err, TN_E_USAGE, NULL, "no command and no model given; see the usage above");
}

static tn_status help(int argc, char **argv, tn_error *err)
{
    char *arguments[] = {"--help"};
    const command *c = argc ? find_command(argv[0]) : NULL;
    if (c)
        return run_command(c, 1, arguments, err);
    if (argc)
        return unknown_command(argv[0], err);
    help_program(stdout);
    return write_flush(err);
}

static tn_status dispatch(int argc, char **argv, tn_error *err)
{
    int word = first_word(argc, argv);
    if (word == argc)
        return no_command(argc, argv, err);
    if (strcmp(argv[word], "help") == 0)
        return help(argc - word - 1, argv + word + 1, err);
    if (strcmp(argv[word], "version") == 0)
        return print_version(err);
    const command *c = find_command(argv[word]);
    if (c) {
        for (int i = word; i > 1; i--) /* options may stand before the sub-command, too */
            argv[i] = argv[i - 1];
        return run_command(c, argc - 2, argv + 2, err);
    }
    if (word == 1 && !is_model(argv[1]))
        return unknown_command(argv[1], err);
    return run_command(&command_run, argc - 1, argv + 1, err);
}

int main(int argc, char **argv)
{
    tn_error err = TN_ERROR_INIT;
    reserve_standard_streams();
    ending_watch();
    json_watch();
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of writing, with words               */
    tn_status status = dispatch(argc, argv, &err);
    if (status == TN_OK)
        return ending_status(0);
    if (status == TN_E_CANCELLED)
        return ending_status(130); /* what a shell reports of a program that Ctrl-C ended */
    fflush(stdout);
    if (ranks_silent) { /* a launcher ends all when one ends like this; rank 0 is to say why first          */
        sleep(1);
        return ending_status(status < 0 && status > TN_E_CANCELLED ? -status : 1);
    }
    fputs("tenon: ", stderr);
    print_clean(stderr, err.where, true);
    fputs(err.where[0] ? ": " : "", stderr);
    print_clean(stderr, err.message, true);
    fputc('\n', stderr);
    return ending_status(status == TN_DECLINED ? -TN_E_KERNEL : status < 0 && status > TN_E_CANCELLED ? -status : 1);
}
