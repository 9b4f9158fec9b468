/* Inside core: how loops are compiled whose results must be the same everywhere. To be included before other headers of
 * mathematics. */
#ifndef TENON_CORE_CLONES_H
#define TENON_CORE_CLONES_H

/* A product and a sum round one by one, on every machine. GCC does so in ISO mode, Clang has to be told. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
/* Nothing here looks at floating-point exceptions; selections then need no branches. Values stay the same. */
#pragma GCC optimize("no-trapping-math", "no-math-errno")
#endif

/* After the pragmas, which are to hold for these functions too: otherwise the compiler does not inline them. */
#include <tenon/half.h>

/* Compiles a function for several instruction sets; the loader chooses. None of them changes a result. Clang before 18
 * hides the clones from other files; under ThreadSanitizer the loader would choose by code that is watched before the
 * watch has begun. */
#if defined(__x86_64__) && defined(__gnu_linux__) && (!defined(__clang__) || __clang_major__ >= 18) &&                 \
    !defined(__SANITIZE_THREAD__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

#endif
