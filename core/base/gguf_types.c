/* The types that tensors of .gguf files are of: by number, those that were, and those that only ik_llama.cpp has. */
#include "base/gguf_read.h"

#include "base/text.h"

static const struct type_entry {
    const char *name;
    tn_dtype dtype;
} types[] = {
    {"F32", TN_F32},
    {"F16", TN_F16},
    {"Q4_0", TN_Q4_0},
    {"Q4_1", TN_Q4_1},
    {"Q4_2", TN_DTYPE_NONE},
    {"Q4_3", TN_DTYPE_NONE},
    {"Q5_0", TN_Q5_0},
    {"Q5_1", TN_Q5_1},
    {"Q8_0", TN_Q8_0},
    {"Q8_1", TN_DTYPE_NONE},
    {"Q2_K", TN_Q2_K},
    {"Q3_K", TN_Q3_K},
    {"Q4_K", TN_Q4_K},
    {"Q5_K", TN_Q5_K},
    {"Q6_K", TN_Q6_K},
    {"Q8_K", TN_DTYPE_NONE},
    {"IQ2_XXS", TN_IQ2_XXS},
    {"IQ2_XS", TN_IQ2_XS},
    {"IQ3_XXS", TN_IQ3_XXS},
    {"IQ1_S", TN_IQ1_S},
    {"IQ4_NL", TN_IQ4_NL},
    {"IQ3_S", TN_IQ3_S},
    {"IQ2_S", TN_IQ2_S},
    {"IQ4_XS", TN_IQ4_XS},
    {"I8", TN_I8},
    {"I16", TN_I16},
    {"I32", TN_I32},
    {"I64", TN_I64},
    {"F64", TN_F64},
    {"IQ1_M", TN_IQ1_M},
    {"BF16", TN_BF16},
    {"Q4_0_4_4", TN_DTYPE_NONE},
    {"Q4_0_4_8", TN_DTYPE_NONE},
    {"Q4_0_8_8", TN_DTYPE_NONE},
    {"TQ1_0", TN_TQ1_0},
    {"TQ2_0", TN_TQ2_0},
    {"IQ4_NL_4_4", TN_DTYPE_NONE},
    {"IQ4_NL_4_8", TN_DTYPE_NONE},
    {"IQ4_NL_8_8", TN_DTYPE_NONE},
    {"MXFP4", TN_MXFP4},
    {"NVFP4", TN_NVFP4},
    {"Q1_0", TN_DTYPE_NONE},
    {"Q2_0", TN_DTYPE_NONE},
};
#define TYPES (sizeof types / sizeof types[0])

/* Those that ik_llama.cpp adds. Its types with rows in turns have the number of the plain one and INTERLEAVED. */
#define FIRST_OF_IK 133
#define INTERLEAVED 200
static const char *const types_of_ik[] = {
    "Q6_0",   "IQ1_BN", "IQ2_BN", "Q8_K64", "IQ2_K",   "IQ3_K",  "IQ4_K",  "IQ5_K",  "IQ6_K",
    "IQ2_TN", NULL,     "IQ4_KS", "IQ2_KS", "IQ4_KSS", "Q8_K16", "Q8_K32", "Q8_KR8", "Q8_K128",
    "Q8_KV",  "IQ5_KS", "IQ2_KT", "IQ3_KT", "IQ4_KT",  "IQ3_KS", "IQ2_KL", "IQ1_KT",
};

/* The name that a type has in ik_llama.cpp alone; NULL: none. */
static const char *name_of_ik(uint32_t type)
{
    uint32_t plain = type > INTERLEAVED ? type - INTERLEAVED : type;
    if (plain >= FIRST_OF_IK && plain - FIRST_OF_IK < sizeof types_of_ik / sizeof types_of_ik[0])
        return types_of_ik[plain - FIRST_OF_IK];
    return type > INTERLEAVED && plain < TYPES ? types[plain].name : NULL;
}

tn_dtype gguf_type(uint32_t type, char *name, size_t size)
{
    const char *ik = name_of_ik(type);
    if (type < TYPES)
        text_cut(name, size, "%s (%u)", types[type].name, type);
    else
        text_cut(name, size, "%s%s (%u)%s", ik ? ik : "no known name",
                 ik && type > INTERLEAVED ? " with rows in turns" : "", type, ik ? " of ik_llama.cpp" : "");
    return type < TYPES ? types[type].dtype : TN_DTYPE_NONE;
}
