#!/bin/sh
# The interface of libtenon.so only grows: compared with tests/data/abi-library/libtenon.abi.gz, as CONTRIBUTING.md says.
. tests/build/lib.sh
skip() {
    echo "SKIPPED the interface of libtenon.so: $1"
    finish
}
command -v abidiff >/dev/null 2>&1 || skip 'abidiff is not installed'

# A match is part of an impl, whose other members would move.
sized=$(awk '/^typedef struct/ { name = $3 } /^    uint32_t size;/ && name != "tn_match" { print name }' include/tenon/*.h |
    tr '\n' ' ')

# Structs that the headers name and do not show.
private=$(sed -n 's/^typedef struct \([a-z0-9_]*\) [a-z0-9_]*;.*/\1/p' include/tenon/*.h | tr '\n' ' ')

# shellcheck disable=SC2317 # check calls them
compare() { # OLD NEW LIST-OF-SIZED-STRUCTS [OPTIONS OF ABIDIFF]
    old=$1 new=$2 list=$3
    shift 3
    abidiff --leaf-changes-only --no-added-syms --no-show-locs "$@" "$old" "$new" >"$tmp/changes" 2>&1
    [ $(($? & 3)) -eq 0 ] || { cat "$tmp/changes"; return 1; }
    awk -v list="$list" -v private="$private" -f tests/build/abi_growth.awk "$tmp/changes" >"$tmp/wrong"
}
# shellcheck disable=SC2317
grows() {
    compare "$@" && { [ ! -s "$tmp/wrong" ] || { cat "$tmp/wrong"; false; }; }
}
# shellcheck disable=SC2317
breaks() {
    compare "$@" && [ -s "$tmp/wrong" ]
}

# What is told apart, at a small library.
cat >"$tmp/base.c" <<'E2'
#include <stdint.h>
typedef enum kind { KIND_A, KIND_B, KIND_COUNT } kind;
typedef struct plain { int x; } plain;
typedef struct options { uint32_t size; int a; const char *b; int c; } options;
int f(const options *o, const plain *p, kind k);
int f(const options *o, const plain *p, kind k) { return o->a + p->x + (int)k; }
int g(int x);
int g(int x) { return x; }
E2
library() { # NAME SED-EXPRESSION
    sed "$2" "$tmp/base.c" >"$tmp/$1.c" && gcc -g -shared -fPIC -o "$tmp/$1.so" "$tmp/$1.c"
}
growth() { # WHAT SED-EXPRESSION
    library other "$2" && check "growth: $1" grows "$tmp/first.so" "$tmp/other.so" options
}
breach() {
    library other "$2" && check "no growth: $1" breaks "$tmp/first.so" "$tmp/other.so" options
}
if command -v gcc >/dev/null 2>&1; then
    library first ''
    growth 'nothing changes' ''
    # shellcheck disable=SC2016 # $ is sed's
    growth 'a function more' '$aint h(void); int h(void) { return 1; }'
    growth 'a member behind the end' 's|int c; }|int c; long long d; }|'
    growth 'an enumerator more' 's/KIND_COUNT/KIND_C, KIND_COUNT/'
    breach 'a function less' '/^int g/d'
    breach 'another parameter' 's/int g(int x)/int g(long x)/'
    breach 'a member less' 's/ int c; }/ }/'
    breach 'a member between' 's/int a;/int a; long long z;/'
    breach 'a member of another type' 's/int a;/float a;/'
    breach 'members that change places' 's/int a; const char \*b; int c;/int a; int c; const char *b; int d;/'
    breach 'a member in the padding' 's/int c; }/int c; int d; }/'
    breach 'a larger struct without a size' 's/int x; }/int x, y; }/'
    breach 'another value' 's/KIND_A, KIND_B/KIND_B, KIND_A/'
    breach 'a value between' 's/KIND_A,/KIND_A, KIND_C,/'
fi

[ "$(uname -m)" = x86_64 ] || skip 'the stored one is of x86-64'
case $cc in *clang*) skip 'the stored one is of a library that gcc built' ;; esac
gzip -dc tests/data/abi-library/libtenon.abi.gz >"$tmp/libtenon.abi" || exit 1
# abidiff would compare types that only the library sees, too.
scripts/abi.sh "$build/libtenon.so" >"$tmp/now.abi" || exit 1
check 'the interface of libtenon.so only grew' grows "$tmp/libtenon.abi" "$tmp/now.abi" "$sized"
finish
