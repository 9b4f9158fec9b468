#!/bin/sh
# Every public header compiles alone, as C17 and as C++17, without warnings.
. tests/build/lib.sh

alone() { # COMPILER LANGUAGE STANDARD HEADER
    echo "#include <$4>" | "$1" -x "$2" "-std=$3" -Iinclude -Wall -Wextra -Wpedantic -Werror -fsyntax-only -
}

case $cc in
*clang*) cxx=$(echo "$cc" | sed 's/clang/clang++/') ;;
*) cxx=$(echo "$cc" | sed 's/gcc/g++/') ;;
esac
command -v "$cxx" >/dev/null 2>&1 || cxx=
[ -n "$cxx" ] || echo 'SKIPPED the headers as C++: no C++ compiler is installed'
for header in include/tenon/*.h; do
    header=${header#include/}
    check "$header as C17" alone "$cc" c c17 "$header"
    [ -z "$cxx" ] || check "$header as C++17" alone "$cxx" c++ c++17 "$header"
done
finish
