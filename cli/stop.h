/* Ctrl-C and its like, of work that has something to put in order first. */
#ifndef TENON_CLI_STOP_H
#define TENON_CLI_STOP_H

/* From now on SIGINT, SIGTERM and SIGHUP, unless they are ignored, are noted and end nothing; a second one ends the
 * program at once. */
void stop_listen(void);

/* The signal that came; 0: none. Who has put things in order raises it again. */
int stop_asked(void);

#endif
