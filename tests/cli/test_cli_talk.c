/* tenon chat on a terminal: its editor, Ctrl-C, and what must not reach the terminal. */
#include "sanitizer.h"
#include "suite.h"
#include "talk.h"

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
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

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
    await_editor(&t);
    type(&t, "Xnd it came\x01\x1b[3~A\n"); /* to the beginning, where the first letter is another one */
    await(&t, answer);
    await_editor(&t);
    type(&t, "/reset\n");
    await_editor(&t);
    type(&t, "\x1b[A\x1b[A\n"); /* two lines up                                           */
    await(&t, answer);
    await_editor(&t);
    type(&t, "/reset\n");
    await_editor(&t);
    type(&t, "And it\\\n");
    await(&t, ". ");
    type(&t, "came\n");
    await_editor(&t);
    type(&t, "\x04");
    end(&t, 0);
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
    char *state = tempdir_at(folder, "state"), *path = tempdir_at(folder, "state/tenon/chat_history");
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
    path = tempdir_at(folder, "state/.local/state/tenon/chat_history");
    ck_assert(tempdir_exists(path));
    process_result r = CHAT("/reset\n", "-q"); /* a pipe's are nobody's                                    */
    ck_assert_int_eq(r.status, 0);
    size_t length;
    char *kept = tempdir_read(path, &length);
    ck_assert(strstr(kept, "home") && !strstr(kept, "reset"));
    free(kept);
}
END_TEST

START_TEST(control_c_and_mistakes_end_nothing)
{
    terminal t;
    start(&t, 80, (const char *const[]){"--context=400", "--ignore-eos", "--threads=1", NULL});
    await_editor(&t);
    type(&t, "half");
    await(&t, "half");
    type(&t, "\x03");
    await(&t, "(Ctrl-D or /quit ends)");
    await_editor(&t);
    type(&t, "/nope\n");
    await(&t, "unknown command '/nope'");
    await_editor(&t);
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
    await_editor(&t);
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
    await_editor(&t);
    type(&t, "/quit\n");
    end(&t, 0);
#endif
}
END_TEST

/* The answer is stopped while it comes, and the conversation goes on behind what was said of it. */
START_TEST(control_c_ends_an_answer)
{
    terminal t;
    char *path = tempdir_at(folder, "saved.json"), keys[512];
    start(&t, 80, (const char *const[]){"--context=100000", "--ignore-eos", "--threads=1", NULL});
    await_editor(&t);
    type(&t, "And it came to pass\n");
    await(&t, "LORD");
    type(&t, "\x03");
    await(&t, "(interrupted)");
    await_editor(&t);
    snprintf(keys, sizeof keys, "/save %s\n", path);
    type(&t, keys);
    await(&t, "(2 messages are in ");
    await_editor(&t);
    type(&t, " And\n");
    await(&t, "\n"); /* the echo of the line                                                     */
    while (t.length - t.read < 120)
        ck_assert(more_output(&t)); /* surely of the answer                                        */
    type(&t, "\x03");
    await(&t, "(interrupted");
    await_editor(&t);
    type(&t, "\x04");
    end(&t, 0);
    json_t *saved = json_load_file(path, 0, NULL);
    ck_assert_ptr_nonnull(strstr(json_string_value(json_object_get(json_array_get(saved, 1), "content")), "LORD"));
    json_decref(saved);
}
END_TEST

/* A token of the model is an escape sequence. Into a pipe it goes as it is, since programs may want it; a terminal gets
 * it written out. */
START_TEST(no_escape_reaches_a_terminal)
{
    char *path = tempdir_at(folder, "tokenizer.json");
    json_t *tokenizer = json_load_file(path, 0, NULL);
    /* The comma, which comes first behind the prompt, changes places with the byte 0x1b. */
    json_t *vocab = json_object_get(json_object_get(tokenizer, "model"), "vocab");
    json_t *comma = json_incref(json_object_get(vocab, ","));
    json_object_set(vocab, ",", json_object_get(vocab, "\xc4\x9b"));
    json_object_set_new(vocab, "\xc4\x9b", comma);
    ck_assert_int_eq(json_dump_file(tokenizer, path, 0), 0);
    json_decref(tokenizer);
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
    await_editor(&t);
    type(&t, "And it came to pass\n");
    await(&t, "\\x1b when");
    await_editor(&t);
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
    char *path = tempdir_at(folder, "tokenizer.json");
    json_t *tokenizer = json_load_file(path, 0, NULL);
    /* The comma, which comes first behind the prompt, becomes it and takes the place of the byte 0x1b. */
    json_t *vocab = json_object_get(json_object_get(tokenizer, "model"), "vocab");
    json_object_set(vocab, deceiving[_i].token, json_object_get(vocab, ","));
    json_object_set(vocab, ",", json_object_get(vocab, "\xc4\x9b"));
    json_object_del(vocab, "\xc4\x9b");
    ck_assert_int_eq(json_dump_file(tokenizer, path, 0), 0);
    json_decref(tokenizer);
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
}
END_TEST

int main(void)
{
    TCase *all = suite_open("cli: chat on a terminal", 600);
    tcase_add_checked_fixture(all, setup, NULL);
    tcase_add_loop_test(all, lines_are_edited_and_remembered, 0, 2);
    suite_add(all, pasted_lines_are_one_message, tab_completes_commands, lines_are_kept_for_the_next_chat,
              control_c_and_mistakes_end_nothing, control_c_before_the_wait_is_seen,
              control_c_during_a_write_loses_nothing, control_c_ends_an_answer, no_escape_reaches_a_terminal);
    tcase_add_loop_test(all, nothing_that_deceives_reaches_a_terminal, 0, 2);
    return process_main();
}
