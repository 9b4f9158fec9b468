#!/bin/sh
# The manual page: it renders without warnings, also on a narrow terminal, and tells of every sub-command, every option
# and every variable of the environment that there is. docs/configuration.md has the variables, too.
. tests/build/lib.sh
PATH=$build:$PATH
page=docs/tenon.1
sed 's/\\-/-/g; s/\\f[BIR]//g; s/^\.\(BR\|B\|BI\|RB\|I\|IR\) //; s/"//g' "$page" >"$tmp/plain"

# What the formatter has to say at this width; nothing.
renders() {
    groff -man -t -Tutf8 -ww -rLL="$1"n "$page" 2>"$tmp/warnings" >"$tmp/page"
    cat "$tmp/warnings"
    [ -s "$tmp/page" ] && [ ! -s "$tmp/warnings" ]
}
if command -v groff >/dev/null 2>&1; then
    for width in 40 80 120; do
        check "it renders without warnings in $width columns" renders $width
    done
else
    echo 'SKIPPED rendering the manual page: groff is not installed'
fi

has_section() {
    grep -qx "\.SH $1" "$page"
}
for section in NAME SYNOPSIS DESCRIPTION COMMANDS OPTIONS SIGNALS 'EXIT STATUS' ENVIRONMENT FILES EXAMPLES 'SEE ALSO'; do
    check "it has $section" has_section "$section"
done

tells() { # WORD: in the page, not inside of a longer word
    grep -qE -- "(^|[^a-zA-Z-])$1([^a-z-]|\$)" "$tmp/plain"
}
commands=$(tenon --help | sed -n '/^commands:/,/^$/s/^  \([a-z][a-z]*\) .*/\1/p')
check 'there are commands' test "$(echo "$commands" | wc -l)" -ge 9
for command in $commands; do
    check "it tells of tenon $command" tells "$command"
    for option in $(tenon "$command" --help | grep -oE '^ {2,6}(-., )?--[a-z-]+' | grep -oE -- '--[a-z-]+'); do
        check "it tells of $option of tenon $command" tells "$option"
    done
done

# Every status that the program's help names.
for status in 0 1 2 3 4 5 6 130 141; do
    check "it tells of exit status $status" grep -qx "\.B $status" "$page"
done

# Variables that the sources ask for.
variables=$(grep -ohE 'getenv\("[A-Z_]+"\)' core/*/*.c cli/*.c plugins/*/*.c | grep -oE '[A-Z_]+' | sort -u)
check 'there are variables' test "$(echo "$variables" | wc -l)" -ge 5
sed -n '/^\.SH ENVIRONMENT/,/^\.SH FILES/p' "$page" >"$tmp/environment"
for variable in $variables; do
    check "ENVIRONMENT has $variable" grep -qx "\.B $variable" "$tmp/environment"
    [ "$variable" = HOME ] || check "docs/configuration.md has $variable" grep -q "$variable" docs/configuration.md
done
finish
