#!/bin/sh
# What the library, the program and the plugins are hardened by, as their ELF files tell: what may be written is not run,
# tables are read-only from the start, stack frames and sizes are guarded, targets of jumps are marked. None of them
# tells where it was built.
. tests/build/lib.sh

shown() { # OPTIONS-OF-READELF FILE PATTERN
    readelf -W "$1" "$2" >"$tmp/elf" && grep -qE -- "$3" "$tmp/elf" || { cat "$tmp/elf"; false; }
}
not_shown() {
    readelf -W "$1" "$2" >"$tmp/elf" && ! grep -E -- "$3" "$tmp/elf"
}
# The first instruction of every function that others call.
marked() { # FILE FUNCTION
    objdump -d --disassemble="$2" "$1" | grep -A 1 "<$2>:" | grep -q endbr64
}
knows_no_place() {
    ! strings -a "$1" | grep -E "^$PWD(/(core|cli|plugins|include|build)/.*)?$"
}

hardened() { # FILE
    name=${1#"$build"/}
    check "$name may lie anywhere" shown -h "$1" 'Type: +DYN'
    check "$name has tables that become read-only" shown -l "$1" ' GNU_RELRO '
    check "$name is bound at its start" shown -d "$1" '(BIND_NOW|FLAGS.* NOW)'
    check "$name has a stack without code" shown -l "$1" 'GNU_STACK .* RW '
    check "$name has nothing that is written and run" not_shown -l "$1" ' (LOAD|GNU_STACK) .* RWE '
    check "$name has code that is not written to" not_shown -d "$1" TEXTREL
    check "$name guards its stack" shown --dyn-syms "$1" ' __stack_chk_fail'
    check "$name does not say where it was built" knows_no_place "$1"
}

check 'there are plugins' test -e "$build/plugins/npu_rope.so"
for file in "$build/libtenon.so" "$build/tenon" "$build/tenon-serve" "$build"/plugins/*.so; do
    [ ! -e "$file" ] || hardened "$file"
done
check 'tenon is a program that may lie anywhere' shown -d "$build/tenon" 'FLAGS_1.* PIE'
# Sanitizers check sizes themselves, and without optimisation there is no size to check.
for file in "$build/libtenon.so" "$build/tenon"; do
    check "$(basename "$file") checks sizes at calls of the C library" shown --dyn-syms "$file" ' __[a-z]+_chk@'
done
if shown -h "$build/libtenon.so" 'Machine: .*X86-64' >/dev/null; then
    for function in tn_model_open tn_error_clear; do
        check "$function is marked as a target of jumps" marked "$build/libtenon.so" "$function"
    done
    for object in core/open/model.o cli/main.o plugins/npu_rope/plugin.o; do
        check "$object is marked as a whole" shown -n "$build/obj/$object" 'x86 feature: .*IBT'
        check "$object has no other returns" shown -n "$build/obj/$object" 'x86 feature: .*SHSTK'
    done
else
    echo "SKIPPED marked targets of jumps: those of x86-64"
fi
finish
