/* What the host offers to templates: every table. */
#include "template/runtime.h"

const builtin_table builtins[] = {
    {BUILTIN_FILTER, filters_table},      {BUILTIN_FILTER, filters_list_table}, {BUILTIN_FILTER, filters_text_table},
    {BUILTIN_TEST, predicates_table},     {BUILTIN_FUNCTION, functions_table},  {BUILTIN_OF_TEXT, text_methods_table},
    {BUILTIN_OF_TEXT, text_search_table}, {BUILTIN_OF_DICT, methods_dict},      {BUILTIN_OF_LIST, methods_sequence},
    {BUILTIN_OF_LIST, methods_list},      {BUILTIN_OF_TUPLE, methods_sequence}, {BUILTIN_OF_LOOP, methods_loop},
    {BUILTIN_OF_CYCLER, methods_cycler},  {BUILTIN_OF_FLOAT, methods_float},    {0},
};
