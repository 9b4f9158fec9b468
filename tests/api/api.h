/* The public functions as calls.awk reads them from the headers. */
#ifndef TEST_API_H
#define TEST_API_H

#include <stdbool.h>
#include <stddef.h>

typedef enum api_kind {
    API_NONE, /* nothing that calls.awk knows */
    API_VOID,
    API_STATUS,
    API_STRING,
    API_SIZED, /* a pointer to a struct that begins with its size */
    API_POINTER,
    API_FUNCTION,
    API_INTEGER,
    API_ENUM,
    API_DOUBLE,
    API_BOOL
} api_kind;

/* Room for any argument or result. */
enum { API_PARAMS = 12, API_BYTES = 128 };

typedef struct api_param {
    const char *name, *type, *base; /* base: what it points to */
    size_t size, pointed;           /* pointed: bytes of the struct, of API_SIZED */
    api_kind kind;
    bool is_unsigned;
} api_param;

typedef struct api_function {
    const char *name, *result;
    api_kind kind; /* of the result */
    size_t result_size, count;
    void (*call)(void *const *arguments, void *result); /* arguments: where each of them is */
    api_param params[API_PARAMS];
} api_function;

/* A member of a struct: a number, a text, a pointer; of arrays the first two elements. */
typedef struct api_member {
    const char *of, *name;
    size_t offset, size;
    api_kind kind;
} api_member;

const api_function *api_functions(size_t *count);
const api_member *api_members(size_t *count);

/* values.c, values_world.c: what right calls have. Opened once, in the process that forks; false: not known for this
 * parameter. All memory that a value points to is as large as the function may believe and no larger. */
enum { VALUES_CONTEXT = 32, VALUES_VOCABULARY = 512 }; /* positions of the session; ids of the vocabulary */
void values_open(void);
void values_close(void);
void values_enter(void); /* a folder for what calls leave behind */
bool values_make(const api_function *function, size_t param, void *out);

#endif
