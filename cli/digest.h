/* A number that tells checkpoints apart; of the program and of the server. */
#ifndef TENON_CLI_DIGEST_H
#define TENON_CLI_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define DIGEST_START UINT64_C(0xCBF29CE484222325)

void digest_bytes(uint64_t *hash, const void *bytes, size_t length);
void digest_text(uint64_t *hash, const char *text); /* NULL: as an empty one                              */
void digest_number(uint64_t *hash, int64_t number);

/* The files of a checkpoint's folder, or one file: names, sizes, and pieces all over them. */
void digest_checkpoint(uint64_t *hash, const char *path);

#endif
