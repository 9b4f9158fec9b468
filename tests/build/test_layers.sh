#!/bin/sh
# The table of CONTRIBUTING.md says what each folder of core may include: includes and symbols keep to it, and it has no
# circles. Files form few: at most five, of no more than three. A function that other files call carries the name of its file, of a header beside it, or of its folder.
. tests/build/lib.sh

# Lines "folder other", one for each entry of the table's last column.
sed -n 's/^| `core\/\([a-z_]*\)\/` |.*| \([^|]*\) |$/\1 \2/p' CONTRIBUTING.md | tr -d ',`' |
    awk '{ for (i = 2; i <= NF; i++) if ($i != "–") print $1, $i; print $1, $1 }' | sort -u >"$tmp/allowed"

# Keeps the lines "from to what" that the table does not allow, and fails when there are any.
forbidden() {
    awk 'NR == FNR { ok[$1 " " $2] = 1; next } !(($1 " " $2) in ok) { print $1 " may not use " $2 ": " $3; bad = 1 }
        END { exit bad }' "$tmp/allowed" "$1"
}

every_folder_has_a_row() {
    for folder in core/*/; do
        name=$(basename "$folder")
        grep -q "^$name $name\$" "$tmp/allowed" || { echo "core/$name is not in the table of CONTRIBUTING.md"; return 1; }
    done
}

no_circle() {
    awk '$1 != $2' "$tmp/allowed" | tsort >/dev/null
}

includes() {
    grep -H '^#include "' core/*/*.[ch] |
        sed 's#^core/\([a-z_]*\)/\([^:]*\):.include "\([^"]*\)".*#\1 \3 \1/\2#' |
        awk '{ n = split($2, to, "/"); print $1, n > 1 ? to[1] : $1, $3 " includes " $2 }' >"$tmp/includes"
    sed 's/ includes /:/' "$tmp/includes" >"$tmp/pairs"
    forbidden "$tmp/pairs"
}

# Lines "folder/file kind symbol", of core and cli: sources that are gone may have left objects behind. Once, since a
# process for each of the many objects takes a minute.
for source in core/*/*.c cli/*.c cli/*/*.c; do
    object=$build/obj/${source%.c}.o
    [ -e "$source" ] && [ -e "$object" ] && echo "$object"
done | xargs nm -A -g | sed "s#^$build/obj/##; s#\\.o:[0-9a-f]*  *# #; s#[.@][^ ]*\$##" >"$tmp/symbols"

symbols() {
    sed -n 's#^core/##p' "$tmp/symbols" | tr / ' ' >"$tmp/of_core"
    awk '$3 != "U" && $3 != "w" { print $4, $1, $2 }' "$tmp/of_core" | sort -u >"$tmp/defined"
    awk '$3 == "U" || $3 == "w" { print $4, $1, $2 }' "$tmp/of_core" | sort -u >"$tmp/undefined"
    [ -s "$tmp/defined" ] || { echo "no objects in $build/obj"; return 1; }
    join "$tmp/undefined" "$tmp/defined" | awk '{ print $2, $4, $2 "/" $3 ":" $1 }' >"$tmp/uses"
    forbidden "$tmp/uses"
}

# The strongly connected files of core or of cli, by Tarjan's algorithm: a line of names for each circle. Who calls _exit
# means the C library's, which cli stands in for.
circles_of() {
    grep "^$1/" "$tmp/symbols" | awk '$2 == "U" { print $3, "u", $1 } $2 !~ /[Uw]/ { print $3, "d", $1 }' |
        awk '$1 != "_exit" { if ($2 == "d") where[$1] = $3; else { n++; symbol[n] = $1; user[n] = $3 } }
        END { for (i = 1; i <= n; i++) if (symbol[i] in where && where[symbol[i]] != user[i]) print user[i], where[symbol[i]] }' |
        sort -u | awk '
        function visit(v, uses, count, i, w, names) {
            low[v] = seen[v] = ++time
            stack[++top] = v
            on[v] = 1
            count = split(to[v], uses, " ")
            for (i = 1; i <= count; i++) {
                w = uses[i]
                if (!(w in seen)) {
                    visit(w)
                    if (low[w] < low[v]) low[v] = low[w]
                } else if (on[w] && seen[w] < low[v])
                    low[v] = seen[w]
            }
            if (low[v] < seen[v])
                return
            do {
                w = stack[top--]
                on[w] = 0
                names = names " " w
            } while (w != v)
            if (names != " " v) print names
        }
        { to[$1] = to[$1] " " $2 }
        END { for (v in to) if (!(v in seen)) visit(v) }'
}

few_file_circles() {
    { circles_of core; circles_of cli; } | tee "$tmp/circles"
    awk 'NF > 3 { large = 1 } END { exit NR > 5 || large }' "$tmp/circles"
}

# symbol folder file: the prefixes that are right.
names() {
    for header in core/*/*.h; do
        echo "$(basename "$(dirname "$header")") $(basename "$header" .h)"
    done >"$tmp/headers"
    awk 'function carries(name, prefix) { return name == prefix || index(name, prefix "_") == 1 }
        NR == FNR { headers[$1] = headers[$1] " " $2; next }
        {
            good = carries($1, "tn") || carries($1, $2) || carries($1, $3)
            n = split(headers[$2], h, " ")
            for (i = 1; i <= n && !good; i++)
                good = carries($1, h[i])
            if (!good) {
                print "core/" $2 "/" $3 ".c: " $1 " carries the name of no file there"
                bad = 1
            }
        }
        END { exit bad }' "$tmp/headers" "$tmp/defined"
}

# One basename for one thing: sources of different folders of core, and core and plugins, do not share one.
basenames() {
    find core -name '*.[ch]' | sed 's#.*/\([^/]*\)/\([^/]*\)\.[ch]$#\2 \1#' | sort -u | cut -d' ' -f1 | uniq -d >"$tmp/twice"
    cat "$tmp/twice"
    [ ! -s "$tmp/twice" ]
}

# Files that comments cite are there.
cited() {
    grep -ohE '[a-z_0-9]{3,}[.](c|sh)([^a-z_0-9(]|$)|[A-Za-z_0-9/-]+[.]md' core/*/*.[ch] include/tenon/*.h | grep -oE '[A-Za-z_0-9-]+[.](c|sh|md)' |
        sort -u >"$tmp/cited"
    find . -path ./build -prune -o -type f -print | sed 's#.*/##' | sort -u >"$tmp/files"
    grep -vxF -f "$tmp/files" "$tmp/cited" >"$tmp/gone"
    cat "$tmp/gone"
    [ ! -s "$tmp/gone" ]
}

check 'every folder of core has a row in the table' every_folder_has_a_row
check 'the table has no circle' no_circle
check 'includes keep to the table' includes
check 'symbols keep to the table' symbols
check 'files form at most five circles, of three at most' few_file_circles
check 'functions carry the name of a file' names
check 'comments cite files that are there' cited
check 'no two files of core share a name' basenames
finish
