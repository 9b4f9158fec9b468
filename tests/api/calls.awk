# Reads the public headers and writes what tests/api/test_api.c calls them by: for each function that is exported a call
# with its arguments in memory, and what each of them is; for each struct what its members are. What it does not
# understand becomes a parameter of no kind, which the test fails on.
# usage: awk -f calls.awk include/tenon/*.h

function trim(text) {
    gsub(/[ \t\n]+/, " ", text)
    sub(/^ /, "", text)
    sub(/ $/, "", text)
    return text
}

# The file without comments and lines of the preprocessor.
function add_line(line,    i) {
    if (!inside && line ~ /^[ \t]*#/) {
        continued = line ~ /\\$/
        return
    }
    if (continued) {
        continued = line ~ /\\$/
        return
    }
    while (line != "") {
        i = index(line, inside ? "*/" : "/*")
        if (!inside)
            text = text (i ? substr(line, 1, i - 1) : line)
        if (!i)
            break
        line = substr(line, i + 2)
        inside = !inside
    }
    text = text "\n"
}

# "const char *name" is in two parts, declared and declared_name; the name of a pointer to a function is inside.
function split_declaration(declaration,    at) {
    declaration = trim(declaration)
    if (match(declaration, /\(\*[a-z_]+\)/)) {
        declared_name = substr(declaration, RSTART + 2, RLENGTH - 3)
        declared = substr(declaration, 1, RSTART + 1) substr(declaration, RSTART + RLENGTH - 1)
    } else {
        match(declaration, /[A-Za-z0-9_]+$/)
        declared_name = substr(declaration, RSTART)
        declared = trim(substr(declaration, 1, RSTART - 1))
    }
}

function base_of(type) {
    sub(/^const /, "", type)
    sub(/ ?\*$/, "", type)
    return type
}

function kind_of(type) {
    if (type ~ /\(\*/ || type == "tn_observer *")
        return "FUNCTION"
    if (type == "const char *")
        return "STRING"
    if (type ~ /\*$/)
        return (base_of(type) in sized) ? "SIZED" : "POINTER"
    if (type in enums)
        return "ENUM"
    if (type ~ /^u?int(32|64)_t$/ || type == "size_t" || type == "int")
        return "INTEGER"
    if (type == "double" || type == "bool")
        return toupper(type)
    return "NONE"
}

# The parts of a list between commas that are in no parentheses.
function split_list(list, parts,    i, c, depth, count) {
    count = 1
    parts[1] = ""
    for (i = 1; i <= length(list); i++) {
        c = substr(list, i, 1)
        depth += (c == "(") - (c == ")")
        if (c == "," && depth == 0)
            parts[++count] = ""
        else
            parts[count] = parts[count] c
    }
    return count
}

# "int64_t rows, *all[8]" of a struct.
function write_members(name, members,    parts, count, i, first, own) {
    if (members ~ /\(/) # to a function
        return
    count = split_list(members, parts)
    for (i = 1; i <= count; i++) {
        own = parts[i]
        array = sub(/\[.*\]/, "", own)
        if (i == 1) {
            split_declaration(own)
            first = declared
            sub(/[ *]+$/, "", first)
        } else
            split_declaration(first " " own)
        if (declared_name == "size" || kind_of(declared) == "NONE")
            continue
        printf "    {\"%s\", \"%s\", offsetof(%s, %s), sizeof(%s), API_%s},\n", name, declared_name, name, declared_name,
            declared, kind_of(declared)
        if (array)
            printf "    {\"%s\", \"%s[1]\", offsetof(%s, %s) + sizeof(%s), sizeof(%s), API_%s},\n", name, declared_name,
                name, declared_name, declared, declared, kind_of(declared)
    }
}

function write_structs(    rest, name, body, members, count, i) {
    print "static const api_member members[] = {"
    rest = text
    while (match(rest, /typedef struct tn_[a-z_]+ \{/)) {
        name = substr(rest, RSTART + 15, RLENGTH - 17)
        rest = substr(rest, RSTART + RLENGTH)
        body = substr(rest, 1, index(rest, "\n} " name) - 1)
        count = split(body, members, ";")
        for (i = 1; i < count; i++)
            write_members(name, trim(members[i]))
    }
    print "};\n"
}

function write_call(declaration,    open, list, parts, count, name, result, i, arguments, varies) {
    sub(/ __attribute__.*/, "", declaration)
    open = index(declaration, "(")
    split_declaration(substr(declaration, 1, open - 1))
    name = declared_name
    result = declared
    list = substr(declaration, open + 1)
    sub(/\)$/, "", list)
    varies = sub(/, \.\.\.$/, "", list)
    count = list == "void" ? 0 : split_list(list, parts)
    for (i = 1; i <= count; i++) {
        split_declaration(parts[i])
        table[calls] = table[calls] sprintf("        {\"%s\", \"%s\", \"%s\", sizeof(%s), %s, API_%s, %d},\n", declared_name,
            declared, base_of(declared), declared, kind_of(declared) == "SIZED" ? "sizeof(" base_of(declared) ")" : "0",
            kind_of(declared), declared ~ /^(uint|size)/)
        arguments = arguments (i > 1 ? ", " : "") "*(__typeof__(" declared ") *)a[" i - 1 "]"
    }
    printf "static void call_%s(void *const *a, void *result)\n{\n    (void)a;\n    (void)result;\n", name
    if (result == "void")
        printf "    %s(%s);\n}\n\n", name, arguments
    else
        printf "    %s r = %s(%s);\n    memcpy(result, &r, sizeof r);\n}\n\n", result, name, arguments
    head[calls++] = sprintf("    {\"%s\", \"%s\", API_%s, %s, %d, call_%s, {\n", name, result,
        result == "void" ? "VOID" : result == "tn_status" ? "STATUS" : kind_of(result),
        result == "void" ? "0" : "sizeof(" result ")", count, name)
    if (count == 0)
        table[calls - 1] = "        {0},\n"
}

BEGIN { calls = 0 }

{ add_line($0) }

END {
    rest = text
    while (match(rest, /typedef (enum|struct) tn_[a-z_]+ \{/)) {
        name = substr(rest, RSTART, RLENGTH - 2)
        is_enum = name ~ /enum/
        sub(/typedef (enum|struct) /, "", name)
        rest = substr(rest, RSTART + RLENGTH)
        if (is_enum)
            enums[name] = 1
        else if (rest ~ /^[ \n]*uint32_t size;/)
            sized[name] = 1
    }
    write_structs()
    rest = text
    while ((at = index(rest, "\nTN_API ")) > 0) {
        rest = substr(rest, at + 8)
        write_call(trim(substr(rest, 1, index(rest, ";") - 1)))
    }
    print "static const api_function functions[] = {"
    for (i = 0; i < calls; i++)
        printf "%s%s    }},\n", head[i], table[i]
    print "};"
}
