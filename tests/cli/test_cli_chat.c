/* Conversations: tenon run --messages, and tenon chat through a pipe and on a terminal. The embedded model has no chat
 * template, so one is written beside a copy of it. */
#include "process.h"
#include "sanitizer.h"
#include "tempdir.h"

#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define MODEL "models/demo"

/* Each message as it is, one behind the other, so that what was generated comes again as it was. */
#define PLAIN                                                                                                          \
    "{%- for m in messages -%}{%- if m.role == 'system' -%}[{{ m.content }}]{%- else -%}{{ m.content }}{%- endif -%}"  \
    "{%- endfor -%}"

static char *folder; /* the copy                                                                 */

static void write_file(const char *name, const char *text)
{
    char *path = tempdir_path(folder, name);
    tempdir_write(path, text, strlen(text));
    free(path);
}

static void setup(void)
{
    folder = tempdir_new();
    tempdir_copy(MODEL, folder);
    write_file("chat_template.jinja", PLAIN);
}

static void teardown(void)
{
    tempdir_remove(folder);
}

#define GREEDY "--temperature=0", "--dtype=f32", "--kernels=none"
#define CHAT(input, ...) TENON(input, "chat", folder, GREEDY, __VA_ARGS__)

/* What tenon run makes of a prompt. Owned. */
static char *continued(const char *prompt, const char *n)
{
    process_result r = TENON(NULL, "run", folder, prompt, GREEDY, "-q", "-n", n);
    ck_assert_msg(r.status == 0, "%s", r.err);
    free(r.err);
    return r.out;
}

static void expect_said(const process_result *r, const char *words)
{
    ck_assert_msg(r->status == 0, "status %d: %s", r->status, r->err);
    ck_assert_msg(strstr(r->err, words) != NULL, "'%s' is not in: %s", words, r->err);
}

/* ---- files of messages ---------------------------------------------------------------------------- */

START_TEST(run_answers_messages)
{
    static const char *const files[] = {
        "[{\"role\": \"user\", \"content\": \"And it came to pass\"}]",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"And it came to pass\"}]}",
        "[{\"role\": \"user\", \"content\": \"And it \"}, {\"role\": \"assistant\", \"content\": \"came to pass\"}]",
    };
    char *path = tempdir_path(folder, "messages.json"), *want = continued("And it came to pass", "9");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        write_file("messages.json", files[i]);
        process_expect_output(TENON(NULL, "run", folder, "--messages", path, GREEDY, "-n9"), want);
        process_expect_output(TENON(files[i], "run", folder, "--messages", "-", GREEDY, "-n9"), want);
    }
    free(want);
    /* Texts in parts are joined, since this template loops over none. */
    want = continued("And it\ncame", "5");
    process_expect_output(
        TENON("[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"And it\"}, {\"type\": "
              "\"text\", \"text\": \"came\"}]}]",
              "run", folder, "--messages", "-", GREEDY, "-n5"),
        want);
    free(want);
    /* Other keys are variables of the template, and tools are tools. */
    write_file("chat_template.jinja", "{{ greeting }}{{ tools[0].name }}");
    write_file("messages.json", "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"greeting\": \"And it \", "
                                "\"tools\": [{\"name\": \"came\"}]}");
    want = continued("And it came", "5");
    process_expect_output(TENON(NULL, "run", folder, "--messages", path, GREEDY, "-n5"), want);
    free(want);
    free(path);
}
END_TEST

static const struct {
    const char *text, *word;
} wrong[] = {{"", "is not valid JSON"},
             {"{", "is not valid JSON: line 1"},
             {"3", "is not valid JSON"},
             {"[]", "holds no messages"},
             {"{\"tools\": []}", "holds no messages"},
             {"[{\"content\": \"x\"}]", "message 1 has no role"},
             {"[{\"role\": \"user\", \"content\": \"x\"}, 5]", "message 2 has no role"},
             {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": 1}", "'tools' must be a list"},
             {"[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"x\"}, {\"type\": \"image_url\"}]}]",
              "message 1 has a part of type 'image_url', and run and chat take texts only; leave it out, or give"}};

START_TEST(wrong_messages_are_errors)
{
    char *path = tempdir_path(folder, "messages.json");
    write_file("messages.json", wrong[_i].text);
    process_expect_error(TENON(NULL, "run", folder, "--messages", path, "-q"), 4, "messages.json", wrong[_i].word,
                         NULL);
    process_expect_error(TENON(wrong[_i].text, "run", folder, "--messages", "-", "-q"), 4, "standard input",
                         wrong[_i].word, NULL);
    process_expect_error(TENON("", "chat", folder, "--messages", path, "-q"), 4, wrong[_i].word, NULL);
    free(path);
}
END_TEST

START_TEST(other_mistakes_are_told)
{
    process_expect_error(TENON("Hello\n", "chat", MODEL, "--system=x"), 4, "has no chat template",
                         "chat_template.jinja", "tokenizer_config.json", "chat_template.json", NULL);
    process_expect_error(TENON("[]", "run", MODEL, "--messages", "-"), 4, MODEL ": has no chat template",
                         "chat_template.jinja", "tokenizer_config.json", "chat_template.json", NULL);
    process_expect_error(TENON(NULL, "run", folder, "x", "--messages", "y"), 2, "leave out all but one", NULL);
    process_expect_error(TENON(NULL, "run", folder, "--messages", "/nonexistent/m.json"), 4, "/nonexistent/m.json",
                         NULL);
    process_expect_error(TENON("x\n", "chat", folder, "--messages", "-"), 2, "give a file", NULL);
    process_expect_error(CHAT("/nope\n", "-q"), 2, "unknown command '/nope'", NULL);
    process_expect_error(CHAT("/save\n", "-q"), 2, "no file named", NULL);
    process_expect_error(CHAT("/save /nonexistent/x\n", "-q"), 4, "/nonexistent/x", "cannot be written", NULL);
    process_expect_error(CHAT("\xff\n", "-q"), 4, "is not UTF-8", NULL);
    process_expect_error(CHAT("And it came to pass in those days\n", "-q", "--context=4"), 4, "the context holds 4",
                         "/reset", "--context N", NULL);
    write_file("chat_template.jinja", "{{ raise_exception('only\\x1b[31m users') }}");
    process_expect_error(CHAT("Hello\n", "-q"), 4, "only", NULL);
}
END_TEST

/* ---- one message of the command line -------------------------------------------------------------- */

START_TEST(a_question_is_answered_once)
{
    char *answer = continued("And it came to pass", "9");
    process_expect_output(CHAT("And\n", "And it came to pass", "-n9", "-q"), answer);
    process_expect_output(CHAT("And it came to pass\n", "-", "-n9", "-q"), answer);
    process_expect_output(TENON(NULL, "chat", "-m", folder, "-p", "And it came to pass", GREEDY, "-n9", "-q"), answer);
    process_expect_output(TENON(NULL, "run", folder, "--chat", "And it came to pass", GREEDY, "-n9", "-q"), answer);
    process_expect_output(TENON("And it came to pass\n", "run", folder, "--chat", GREEDY, "-n9", "-q"), answer);
    free(answer);
    answer = continued("/And", "5"); /* which is no command here                                    */
    process_expect_output(CHAT(NULL, "/And", "-n5", "-q"), answer);
    free(answer);
    answer = continued("[And it]came to pass", "5");
    process_expect_output(CHAT(NULL, "came to pass", "--system=And it", "-n5", "-q"), answer);
    process_expect_output(TENON(NULL, "run", folder, "--chat", "came to pass", "--system=And it", GREEDY, "-n5", "-q"),
                          answer);
    free(answer);
    process_expect_error(CHAT(NULL, "", "-q"), 4, "the question is empty", NULL);
    process_expect_error(TENON(NULL, "run", folder, "--chat", "", "-q"), 4, "the prompt is empty", NULL);
    process_expect_error(TENON(NULL, "run", MODEL, "--chat", "x", "-q"), 4, "has no chat template", NULL);
    process_expect_error(TENON(NULL, "run", folder, "--chat", "--tokens=1"), 2, "leave out --chat or --tokens", NULL);
    process_expect_error(TENON(NULL, "run", folder, "x", "--system=y"), 2,
                         "--system is for the chat template; add --chat", NULL);
}
END_TEST

START_TEST(the_template_gets_variables_and_tools)
{
    char *tools = tempdir_path(folder, "tools.json"), *messages = tempdir_path(folder, "messages.json");
    write_file("chat_template.jinja", "{{ greeting }}{% if flag is false %}{{ n + 1 }}{% endif %}{{ tools[0].name }}");
    write_file("tools.json", "[{\"name\": \" came\"}]");
    write_file("messages.json", "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"greeting\": \"Not\"}");
    char *want = continued("And it5 came", "5");
#define VARIABLES                                                                                                      \
    "--template-var=greeting=And it", "--template-var", "flag=false", "--template-var=n=4", "--tools", tools
    process_expect_output(TENON(NULL, "run", folder, "--chat", "x", GREEDY, "-n5", VARIABLES), want);
    process_expect_output(TENON(NULL, "run", folder, "--messages", messages, GREEDY, "-n5", VARIABLES), want);
    process_expect_output(CHAT(NULL, "x", "-n5", VARIABLES), want);
#undef VARIABLES
    free(want);
    process_expect_error(CHAT(NULL, "x", "--template-var=flag"), 2, "'flag' is no NAME=VALUE", NULL);
    process_expect_error(CHAT(NULL, "x", "--template-var==1"), 2, "'=1' is no NAME=VALUE", NULL);
    process_expect_error(CHAT(NULL, "x", "--template-var=tools=1"), 2, "tools is set by the conversation", NULL);
    process_expect_error(CHAT(NULL, "x", "--template-var=a=\xff"), 2, "is not UTF-8", NULL);
    process_expect_error(CHAT(NULL, "x", "--tools=/nonexistent/t"), 4, "/nonexistent/t", "cannot open", NULL);
    write_file("tools.json", "{}");
    process_expect_error(CHAT(NULL, "x", "--tools", tools), 4, "tools.json", "holds no list of tools", NULL);
    free(messages);
    free(tools);
}
END_TEST

/* The text is the messages, a line each, with the answers behind them. */
START_TEST(a_model_without_a_template_continues_plain_text)
{
    char *first = continued("And it came to pass", "9"), prompt[512], both[1024];
    snprintf(prompt, sizeof prompt, "And it came to pass%.*s\nAnd", (int)strlen(first) - 1, first);
    char *second = continued(prompt, "9");
    snprintf(both, sizeof both, "%s%s", first, second);
    process_result r = TENON("And it came to pass\nAnd\n", "chat", MODEL, "--temperature=0", "--kernels=none", "-n9");
    ck_assert_int_eq(r.status, 0);
    ck_assert_str_eq(r.out, both);
    expect_said(&r, "the model has no chat template; it continues plain text\n");
    process_free(&r);
    process_expect_error(TENON("/system x\n", "chat", MODEL, "-q"), 2, "the model has no chat template, and so", NULL);
    write_file("messages.json", "[{\"role\": \"tool\", \"content\": \"x\"}]");
    char *path = tempdir_path(folder, "messages.json");
    process_expect_error(TENON("x\n", "chat", MODEL, "-q", "--messages", path), 4, "only texts of user and", NULL);
    free(path);
    free(first);
    free(second);
}
END_TEST

/* ---- a pipe --------------------------------------------------------------------------------------- */

START_TEST(a_line_is_a_message)
{
    char *first = continued("And it came to pass", "9"), both[512], prompt[512];
    snprintf(prompt, sizeof prompt, "And it came to pass%.*s And", (int)strlen(first) - 1, first);
    char *second = continued(prompt, "9");
    snprintf(both, sizeof both, "%s%s", first, second);
    /* Empty lines are none, and the last line needs no end. */
    process_result r = CHAT("And it came to pass\n\n  \n And", "-n9", "-v");
    ck_assert_str_eq(r.out, both);
    /* Of the second message only what the session does not hold is computed: the last token, and it. */
    expect_said(&r, "prompt: 5 tokens, 5 of them new; generated: 9");
    expect_said(&r, "prompt: 15 tokens, 2 of them new; generated: 9");
    process_free(&r);
    /* After a reset the same message has the same answer; // is a slash. */
    snprintf(both, sizeof both, "%s%s", first, first);
    process_expect_output(CHAT("And it came to pass\n/reset\nAnd it came to pass\n", "-n9", "-q"), both);
    free(first);
    free(second);
    first = continued("/And\nit", "5");
    process_expect_output(CHAT("//And\\\nit\n", "-n5", "-q"), first);
    free(first);
}
END_TEST

START_TEST(a_conversation_is_saved_and_goes_on)
{
    char *path = tempdir_path(folder, "saved.json"), input[512];
    snprintf(input, sizeof input, "/system Be brief\nAnd it came\n/save %s\n and\n", path);
    process_result whole = CHAT(input, "-n6", "-q");
    ck_assert_int_eq(whole.status, 0);
    json_t *saved = json_load_file(path, 0, NULL);
    ck_assert_uint_eq(json_array_size(saved), 3);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(saved, 0), "content")), "Be brief");
    json_decref(saved);
    process_result rest = CHAT(" and\n", "-n6", "-q", "--messages", path);
    ck_assert_int_eq(rest.status, 0);
    const char *second = strchr(whole.out, '\n') + 1;
    ck_assert_str_eq(rest.out, second);
    process_free(&rest);
    /* The system's message is given, changed, and taken away. */
    rest = CHAT("And it came\n", "-n6", "-q", "--system", "Be brief");
    ck_assert_int_eq(strncmp(rest.out, whole.out, (size_t)(second - whole.out)), 0);
    process_free(&rest);
    char *plain = continued("And it came", "6");
    process_expect_output(CHAT("/system\nAnd it came\n/quit\nAnd\n", "-n6", "-q", "--system", "Be brief"), plain);
    free(plain);
    process_free(&whole);
    free(path);
}
END_TEST

/* A conversation that the template writes otherwise than it was generated goes back as far as it differs. */
/* What was there stays, whole, and nothing lies beside it. A quote takes two bytes in the file, so that it grows beyond
 * a limit that the input does not reach. */
START_TEST(a_conversation_that_cannot_be_saved)
{
    char *talks = tempdir_path(folder, "talks"), *path = tempdir_path(talks, "saved.json"), input[4000], quotes[3001];
    struct rlimit before, small;
    size_t size;
    ck_assert_int_eq(mkdir(talks, 0755), 0);
    tempdir_write(path, "[]", 2);
    memset(quotes, '"', 3000);
    quotes[3000] = '\0';
    snprintf(input, sizeof input, "/system %s\n/save %s\n", quotes, path);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 4096;
    setrlimit(RLIMIT_FSIZE, &small);
    process_result r = CHAT(input, "-q");
    setrlimit(RLIMIT_FSIZE, &before);
    process_expect_error(r, 4, "saved.json", "cannot be written: File too large", NULL);
    char *left = tempdir_read(path, &size);
    ck_assert_str_eq(left, "[]");
    free(left);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(rmdir(talks), 0);
    process_expect_error(CHAT("/save /dev/null\n", "-q"), 4, "/dev/null", "is not a regular file", NULL);
    free(path);
    free(talks);
}
END_TEST

START_TEST(what_changed_is_computed_again)
{
    write_file("chat_template.jinja", "{%- for m in messages -%}<{{ m.content.upper() }}>{%- endfor -%}");
    process_result grown = CHAT("and it came\nto pass\n", "-n5", "-v"), last;
    expect_said(&grown, "of them new; generated: 5");
    char *path = tempdir_path(folder, "messages.json"), *end = strrchr(grown.out, '\n'),
         *first = strndup(grown.out, strcspn(grown.out, "\n"));
    *end = '\0';
    json_t *messages = json_pack("[{s:s,s:s},{s:s,s:s},{s:s,s:s}]", "role", "user", "content", "and it came", "role",
                                 "assistant", "content", first, "role", "user", "content", "to pass");
    ck_assert_int_eq(json_dump_file(messages, path, 0), 0);
    json_decref(messages);
    last = TENON(NULL, "run", folder, "--messages", path, GREEDY, "-n5", "-q");
    last.out[strlen(last.out) - 1] = '\0';
    ck_assert_str_eq(strchr(grown.out, '\n') + 1, last.out);
    process_free(&grown);
    process_free(&last);
    free(first);
    free(path);
}
END_TEST

START_TEST(the_speed_of_an_answer_is_told)
{
    process_result r = CHAT("/speed\nAnd it came to pass\n/speed\n And\n/speed\n", "-n9", "-q");
    expect_said(&r, "(there is no answer yet)\n(read: 5 tokens in ");
    expect_said(&r, " tokens/s; answered: 9 in ");
    expect_said(&r, " tokens/s)\n(read: 2 tokens in "); /* what the session did not hold               */
    process_free(&r);
}
END_TEST

START_TEST(a_full_context_is_told)
{
    process_result r = CHAT("And it came to pass\n", "--context=12", "--ignore-eos");
    expect_said(&r, "(the context of 12 tokens is full: /reset begins anew, /save FILE keeps what was said; tenon chat "
                    "--context N has room for more)\n");
    process_free(&r);
    r = CHAT("And it came to pass\n", "-n2", "--ignore-eos");
    expect_said(&r, "(ended after 2 tokens; -n N allows more)\n");
    process_free(&r);
    r = CHAT("And it came to pass\n", "--stop", " LORD", "--context=64");
    ck_assert_int_eq(r.status, 0);
    ck_assert_ptr_null(strstr(r.out, "LORD"));
    process_free(&r);
}
END_TEST

/* Answers end before the texts of generation_config.json, and before those of --stop in their place. */
START_TEST(answers_end_where_the_model_says)
{
    write_file("generation_config.json", "{\"stop_strings\": \" had\"}");
    process_result r = CHAT("And it came to pass\n/reset\nAnd it came to pass\n", "-n9");
    expect_said(&r, "stop: \" had\", as generation_config.json says\n");
    ck_assert_str_eq(r.out, ", when the LORD\n, when the LORD\n");
    process_free(&r);
    r = CHAT("And it came to pass\n", "-n9", "--stop", " LORD");
    ck_assert_msg(r.status == 0 && !strstr(r.err, "stop: "), "%s", r.err);
    ck_assert_str_eq(r.out, ", when the\n");
    process_free(&r);
}
END_TEST

/* ---- a terminal ----------------------------------------------------------------------------------- */

typedef struct terminal {
    int fd;
    pid_t pid;
    char seen[65536];
    size_t length, read; /* read: up to here the test has looked                                    */
} terminal;

static void launch(terminal *t, unsigned short columns, bool traced, const char *const *more)
{
    char program[4200];
    const char *argv[24] = {program, "chat", folder, GREEDY};
    struct winsize size = {.ws_row = 24, .ws_col = columns};
    for (int i = 6; *more; i++)
        argv[i] = *more++;
    snprintf(program, sizeof program, "%s/tenon", process_build());
    *t = (terminal){0};
    t->pid = forkpty(&t->fd, NULL, NULL, &size);
    ck_assert_int_ge(t->pid, 0);
    if (t->pid == 0) {
        setenv("TERM", "xterm", 1);
        if (!traced || ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0)
            execv(program, (char *const *)argv);
        _exit(127);
    }
}

static void start(terminal *t, unsigned short columns, const char *const *more)
{
    launch(t, columns, false, more);
}

static bool more_output(terminal *t)
{
    struct pollfd ready = {.fd = t->fd, .events = POLLIN};
    if (poll(&ready, 1, 120000) <= 0 || t->length + 1 >= sizeof t->seen)
        return false;
    ssize_t got = read(t->fd, t->seen + t->length, sizeof t->seen - t->length - 1);
    if (got <= 0)
        return false;
    t->length += (size_t)got;
    t->seen[t->length] = '\0';
    return true;
}

/* Waits for a text behind what was waited for before. */
static void await(terminal *t, const char *text)
{
    for (;;) {
        const char *at = strstr(t->seen + t->read, text);
        if (at) {
            t->read = (size_t)(at - t->seen) + strlen(text);
            return;
        }
        if (!more_output(t))
            ck_abort_msg("'%s' does not come behind: %s", text, t->seen + t->read);
    }
}

static void type(terminal *t, const char *keys)
{
    ck_assert_int_eq(write(t->fd, keys, strlen(keys)), (ssize_t)strlen(keys));
}

/* The prompt comes a moment before the editor has the terminal, which until then shows what is typed as it is. */
static void await_editor(terminal *t)
{
    struct termios how;
    await(t, "> ");
    while (tcgetattr(t->fd, &how) == 0 && (how.c_lflag & ECHO))
        usleep(1000);
}

static void end(terminal *t, int status)
{
    while (more_output(t))
        continue;
    int ended = process_wait(t->pid);
    ck_assert_msg(ended == status, "status %d in place of %d: %s", ended, status, t->seen);
    close(t->fd);
}

START_TEST(lines_are_edited_and_remembered)
{
    static const unsigned short widths[] = {80, 14};
    char *answer = continued("And it came", "6");
    answer[strlen(answer) - 1] = '\0';
    terminal t;
    start(&t, widths[_i], (const char *const[]){"-n6", "-q", NULL});
    await(&t, "> ");
    type(&t, "Xnd it came\x01\x1b[3~A\n"); /* to the beginning, where the first letter is another one */
    await(&t, answer);
    await(&t, "> ");
    type(&t, "/reset\n");
    await(&t, "> ");
    type(&t, "\x1b[A\x1b[A\n"); /* two lines up                                           */
    await(&t, answer);
    await(&t, "> ");
    type(&t, "/reset\n");
    await(&t, "> ");
    type(&t, "And it\\\n");
    await(&t, ". ");
    type(&t, "came\n");
    await(&t, "> ");
    type(&t, "\x04");
    end(&t, 0);
    free(answer);
}
END_TEST

/* What a terminal marks as pasted is one message, with what is typed before and behind it. */
START_TEST(pasted_lines_are_one_message)
{
    char *answer = continued("And it\ncame\tto\npass", "6");
    answer[strlen(answer) - 1] = '\0';
    terminal t;
    start(&t, 80, (const char *const[]){"-n6", "-q", NULL});
    await(&t, "\x1b[?2004h");
    await_editor(&t);
    type(&t, "And \x1b[200~it\rcame\tto\npas\r\x1b[201~s\n");
    await(&t, answer);
    await(&t, "\x1b[?2004h");
    await_editor(&t);
    type(&t, "/reset\n");
    await_editor(&t);
    type(&t, "\x1b[A\x1b[A\n"); /* comes back whole                                                */
    await(&t, answer);
    await_editor(&t);
    type(&t, "\x1b[200~/nope\r\x03"); /* a paste without an end                                          */
    await(&t, "(Ctrl-D or /quit ends)");
    await_editor(&t);
    type(&t, "\x04");
    end(&t, 0);
    ck_assert_ptr_null(strstr(t.seen, "unknown command"));
    free(answer);
}
END_TEST

START_TEST(tab_completes_commands)
{
    terminal t;
    start(&t, 80, (const char *const[]){"-n6", "-q", NULL});
    await_editor(&t);
    type(&t, "/r\t\n");
    await(&t, "/reset ");
    await_editor(&t);
    type(&t, "/sy\tBe brief\n/sa\t/dev/null\n");
    await(&t, "tenon: /dev/null: exists and is not a regular file");
    await_editor(&t);
    type(&t, "/s\t\tx\n"); /* which could be more than one                                       */
    await(&t, "unknown command '/sx'");
    await_editor(&t);
    type(&t, "/x\t\n");
    await(&t, "unknown command '/x'");
    await_editor(&t);
    type(&t, "/q\t\n");
    end(&t, 0);
}
END_TEST

static void type_and_quit(const char *keys, const char *waits_for, const char *option)
{
    terminal t;
    start(&t, 80, (const char *const[]){"-q", option, NULL});
    await_editor(&t);
    type(&t, keys);
    await(&t, waits_for);
    await_editor(&t);
    type(&t, "\x04");
    end(&t, 0);
}

/* The file is for its owner alone. Who wants none neither reads nor writes it. */
START_TEST(lines_are_kept_for_the_next_chat)
{
    char *state = tempdir_path(folder, "state"), *path = tempdir_path(folder, "state/tenon/chat_history");
    struct stat st;
    setenv("XDG_STATE_HOME", state, 1);
    type_and_quit("/first\n", "unknown command '/first'", "--no-history");
    ck_assert(!tempdir_exists(state));
    type_and_quit("/first\n", "unknown command '/first'", NULL);
    ck_assert(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    type_and_quit("\x1b[A/\n", "unknown command '/first/'", NULL);
    type_and_quit("/none\x1b[A\n", "unknown command '/none'", "--no-history");
    type_and_quit("\x1b[A\x1b[A\n", "unknown command '/first'", NULL);
    unsetenv("XDG_STATE_HOME");
    setenv("HOME", state, 1);
    type_and_quit("/home\n", "unknown command '/home'", NULL);
    free(path);
    path = tempdir_path(folder, "state/.local/state/tenon/chat_history");
    ck_assert(tempdir_exists(path));
    process_result r = CHAT("/reset\n", "-q"); /* a pipe's are nobody's                                    */
    ck_assert_int_eq(r.status, 0);
    process_free(&r);
    size_t length;
    char *kept = tempdir_read(path, &length);
    ck_assert(strstr(kept, "home") && !strstr(kept, "reset"));
    free(kept);
    free(path);
    free(state);
}
END_TEST

START_TEST(control_c_and_mistakes_end_nothing)
{
    terminal t;
    start(&t, 80, (const char *const[]){"--context=400", "--ignore-eos", "--threads=1", NULL});
    await(&t, "> ");
    type(&t, "half");
    await(&t, "half");
    type(&t, "\x03");
    await(&t, "(Ctrl-D or /quit ends)");
    await(&t, "> ");
    type(&t, "/nope\n");
    await(&t, "unknown command '/nope'");
    await(&t, "> ");
    type(&t, "/quit\n");
    end(&t, 0);
    ck_assert_ptr_null(strstr(t.seen, "halfnope"));
}
END_TEST

/* Ctrl-C between the look at what it sets and the wait for a key. */
START_TEST(control_c_before_the_wait_is_seen)
{
#if SANITIZER
    printf("SKIPPED Ctrl-C before the wait: the sanitizer wants to come before the library that presses it\n");
#else
    char library[4300];
    terminal t;
    snprintf(library, sizeof library, "%s/tests/late_interrupt.so", process_build());
    setenv("LD_PRELOAD", library, 1);
    start(&t, 80, (const char *const[]){"--context=400", "--threads=1", NULL});
    unsetenv("LD_PRELOAD");
    await(&t, "(Ctrl-D or /quit ends)");
    await(&t, "> ");
    type(&t, "\x04");
    end(&t, 0);
#endif
}
END_TEST

#if !SANITIZER
/* Presses Ctrl-C when the program has begun its first write to standard output and nothing is written yet, as busy
 * machines do now and then. false: it cannot be watched here. */
static bool interrupt_first_write(pid_t pid)
{
    int status, signal = 0;
    if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
        return false;
    ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_TRACESYSGOOD);
    while (ptrace(PTRACE_SYSCALL, pid, NULL, signal) == 0 && waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        struct __ptrace_syscall_info call;
        signal = WSTOPSIG(status);
        if (signal != (SIGTRAP | 0x80))
            continue;
        signal = 0;
        if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof call, &call) > 0 && call.op == PTRACE_SYSCALL_INFO_ENTRY &&
            call.entry.nr == SYS_write && call.entry.args[0] == STDOUT_FILENO) {
            syscall(SYS_tgkill, pid, pid, SIGINT);
            ptrace(PTRACE_DETACH, pid, NULL, NULL);
            return true;
        }
    }
    ck_abort_msg("nothing is written; status %d", status);
    return false;
}
#endif

/* An interrupted write of the editor's is no failed output. */
START_TEST(control_c_during_a_write_loses_nothing)
{
#if SANITIZER
    printf("SKIPPED Ctrl-C during a write: the search for leaks does not work in a program that is watched\n");
#else
    terminal t;
    launch(&t, 80, true, (const char *const[]){"--context=400", "--threads=1", "-q", NULL});
    if (!interrupt_first_write(t.pid)) {
        printf("SKIPPED Ctrl-C during a write: programs may not be watched here\n");
        return;
    }
    await(&t, "(Ctrl-D or /quit ends)");
    await(&t, "> ");
    type(&t, "/quit\n");
    end(&t, 0);
#endif
}
END_TEST

/* The answer is stopped while it comes, and the conversation goes on behind what was said of it. */
START_TEST(control_c_ends_an_answer)
{
    terminal t;
    char *path = tempdir_path(folder, "saved.json"), keys[512];
    start(&t, 80, (const char *const[]){"--context=100000", "--ignore-eos", "--threads=1", NULL});
    await(&t, "> ");
    type(&t, "And it came to pass\n");
    await(&t, "LORD");
    type(&t, "\x03");
    await(&t, "(interrupted)");
    await(&t, "> ");
    snprintf(keys, sizeof keys, "/save %s\n", path);
    type(&t, keys);
    await(&t, "(2 messages are in ");
    await(&t, "> ");
    type(&t, " And\n");
    await(&t, "\n"); /* the echo of the line                                                     */
    while (t.length - t.read < 120)
        ck_assert(more_output(&t)); /* surely of the answer                                        */
    type(&t, "\x03");
    await(&t, "(interrupted");
    await(&t, "> ");
    type(&t, "\x04");
    end(&t, 0);
    json_t *saved = json_load_file(path, 0, NULL);
    ck_assert_ptr_nonnull(strstr(json_string_value(json_object_get(json_array_get(saved, 1), "content")), "LORD"));
    json_decref(saved);
    free(path);
}
END_TEST

/* A token of the model is an escape sequence. Into a pipe it goes as it is, since programs may want it; a terminal gets
 * it written out. */
START_TEST(no_escape_reaches_a_terminal)
{
    char *path = tempdir_path(folder, "tokenizer.json");
    json_t *tokenizer = json_load_file(path, 0, NULL);
    /* The comma, which comes first behind the prompt, changes places with the byte 0x1b. */
    json_t *vocab = json_object_get(json_object_get(tokenizer, "model"), "vocab");
    json_t *comma = json_incref(json_object_get(vocab, ","));
    json_object_set(vocab, ",", json_object_get(vocab, "\xc4\x9b"));
    json_object_set_new(vocab, "\xc4\x9b", comma);
    ck_assert_int_eq(json_dump_file(tokenizer, path, 0), 0);
    json_decref(tokenizer);
    free(path);
    int out = memfd_create("out", MFD_CLOEXEC), err = memfd_create("err", MFD_CLOEXEC);
    const char *const line[] = {"run", folder, "And it came to pass", GREEDY, "-n2", "-q", NULL};
    ck_assert_int_eq(process_wait(process_start(line, open("/dev/null", O_RDONLY | O_CLOEXEC), dup(out), dup(err))), 0);
    char text[64] = "";
    ck_assert_int_gt(pread(out, text, sizeof text - 1, 0), 0);
    ck_assert_msg(strncmp(text, "\x1b when\n", 7) == 0, "%s", text);
    close(out);
    close(err);
    terminal t;
    start(&t, 80, (const char *const[]){"-n2", "-q", NULL});
    await(&t, "> ");
    type(&t, "And it came to pass\n");
    await(&t, "\\x1b when");
    await(&t, "> ");
    type(&t, "\x04");
    end(&t, 0);
    ck_assert_ptr_null(strstr(t.seen, "\x1b when"));
}
END_TEST

/* Bytes as tokenizer.json writes them, and as a terminal and JSON show them: U+009B, and U+202E, behind which
 * everything would read from the right. */
static const struct {
    const char *token, *bytes, *shown, *json;
} deceiving[] = {
    {"\xc3\x82\xc4\xbd", "\xc2\x9b", "\\xc2\\x9b when", "\"text\": \"\\u009b when"},
    {"\xc3\xa2\xc4\xa2\xc2\xae", "\xe2\x80\xae", "\\xe2\\x80\\xae when", "\"text\": \"\\u202e when"},
};

/* Neither what is typed nor what the model writes brings a control of the second set to the terminal, or turns its
 * lines around; typed, they delete nothing of the line. */
START_TEST(nothing_that_deceives_reaches_a_terminal)
{
    char *path = tempdir_path(folder, "tokenizer.json");
    json_t *tokenizer = json_load_file(path, 0, NULL);
    /* The comma, which comes first behind the prompt, becomes it and takes the place of the byte 0x1b. */
    json_t *vocab = json_object_get(json_object_get(tokenizer, "model"), "vocab");
    json_object_set(vocab, deceiving[_i].token, json_object_get(vocab, ","));
    json_object_set(vocab, ",", json_object_get(vocab, "\xc4\x9b"));
    json_object_del(vocab, "\xc4\x9b");
    ck_assert_int_eq(json_dump_file(tokenizer, path, 0), 0);
    json_decref(tokenizer);
    free(path);
    terminal t;
    start(&t, 80, (const char *const[]){"-n2", "-q", NULL});
    await_editor(&t);
    type(&t, "And it came to pass\n");
    await(&t, deceiving[_i].shown);
    await_editor(&t);
    type(&t, "/onetwo\xc2\x88\xc2\x9b"
             "3\n");
    await(&t, "unknown command '/onetwo\xef\xbf\xbd\xef\xbf\xbd"
              "3'");
    await_editor(&t);
    type(&t, "\x04");
    end(&t, 0);
    ck_assert_msg(!strstr(t.seen, "\xc2\x9b") && !strstr(t.seen, "\xc2\x88"), "%s", t.seen);
    ck_assert_msg(!strstr(t.seen, deceiving[_i].bytes), "%s", t.seen);
    process_result r = TENON(NULL, "run", folder, "And it came to pass", "--temperature=0", "-n2", "--json");
    ck_assert_msg(r.status == 0 && strstr(r.out, deceiving[_i].json), "%s%s", r.out, r.err);
    process_free(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cli: chat");
    TCase *all = tcase_create("chat");
    tcase_set_timeout(all, 600);
    tcase_add_checked_fixture(all, setup, teardown);
    tcase_add_test(all, run_answers_messages);
    tcase_add_loop_test(all, wrong_messages_are_errors, 0, sizeof wrong / sizeof *wrong);
    tcase_add_test(all, other_mistakes_are_told);
    tcase_add_test(all, a_question_is_answered_once);
    tcase_add_test(all, the_template_gets_variables_and_tools);
    tcase_add_test(all, a_model_without_a_template_continues_plain_text);
    tcase_add_test(all, a_line_is_a_message);
    tcase_add_test(all, a_conversation_is_saved_and_goes_on);
    tcase_add_test(all, a_conversation_that_cannot_be_saved);
    tcase_add_test(all, what_changed_is_computed_again);
    tcase_add_test(all, the_speed_of_an_answer_is_told);
    tcase_add_test(all, a_full_context_is_told);
    tcase_add_test(all, answers_end_where_the_model_says);
    tcase_add_loop_test(all, lines_are_edited_and_remembered, 0, 2);
    tcase_add_test(all, pasted_lines_are_one_message);
    tcase_add_test(all, tab_completes_commands);
    tcase_add_test(all, lines_are_kept_for_the_next_chat);
    tcase_add_test(all, control_c_and_mistakes_end_nothing);
    tcase_add_test(all, control_c_before_the_wait_is_seen);
    tcase_add_test(all, control_c_during_a_write_loses_nothing);
    tcase_add_test(all, control_c_ends_an_answer);
    tcase_add_test(all, no_escape_reaches_a_terminal);
    tcase_add_loop_test(all, nothing_that_deceives_reaches_a_terminal, 0, 2);
    suite_add_tcase(suite, all);
    return process_main(suite);
}
