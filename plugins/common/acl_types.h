/* Types in rows of acl_ops.def, for who calls the operators and for who stands in for them. */
#ifndef ACL_TYPES_H
#define ACL_TYPES_H

#include "acl.h"

#include <string.h>

/* The letter of a type, 0 for what operators do not take. */
static inline char acl_letter(aclDataType type)
{
    static const char letters[] = {
        [ACL_FLOAT] = 'f',  [ACL_FLOAT16] = 'h', [ACL_BF16] = 'b',  [ACL_DOUBLE] = 'd', [ACL_BOOL] = '?',
        [ACL_INT8] = 'c',   [ACL_UINT8] = 'u',   [ACL_INT16] = 's', [ACL_INT32] = 'i',  [ACL_INT64] = 'l',
        [ACL_UINT16] = 'S', [ACL_UINT32] = 'I',  [ACL_UINT64] = 'L'};
    return type >= 0 && (size_t)type < sizeof letters ? letters[type] : '\0';
}

/* The types that a letter of a row may be; NULL: it is one itself. */
static inline const char *acl_choices(char letter)
{
    switch (letter) {
    case 'T':
    case 'U':
        return "fhb";
    case 'C':
    case 'D':
        return "fhbil?d";
    case 'A':
        return "fhbilcus?dSIL";
    default:
        return NULL;
    }
}

/* Does one of the combinations have these types, in the order of the tensors? Letters; 0: there is no tensor. */
static inline bool acl_types_fit(const char *types, const char *given, int count)
{
    for (const char *row = types; *row; row += strcspn(row, " "), row += *row == ' ') {
        char chosen[128] = {0};
        int i = 0;
        for (; i < count && row[i] && row[i] != ' '; i++) {
            const char *choices = acl_choices(row[i]);
            char *one = &chosen[(unsigned char)row[i]];
            if (!given[i])
                continue;
            if (row[i] == 'P' ? given[i] != (chosen['T'] == chosen['U'] ? chosen['T'] : 'f')
                : choices     ? !strchr(choices, given[i]) || (*one && *one != given[i])
                              : row[i] != given[i])
                break;
            *one = given[i];
        }
        if (i == count)
            return true;
    }
    return false;
}

#endif
