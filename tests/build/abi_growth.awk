# Reads what abidiff --leaf-changes-only says and prints what is no growth. Growth is: a function or variable more (abidiff
# is told not to say); a struct that begins with its size, is handed over by pointer (list, separated by spaces) and has new
# members beyond its former end (not in the padding there, which callers of then leave as it is while their size covers it);
# what the headers only name (private);
# an enumerator more, which may move one whose name ends in _COUNT.
BEGIN {
    count = split(private, names, " ")
    for (i = 1; i <= count; i++)
        unseen["struct " names[i]] = 1
    count = split(list, names, " ")
    for (i = 1; i <= count; i++)
        sized["struct " names[i]] = 1
}
function bad() { if (!(what in unseen)) print what ": " $0 }
/^Leaf changes summary|^Changed leaf types summary/ || NF == 0 { next }
/^Removed\/Changed\/Added/ { if (!/: 0 Removed, 0 Changed/) bad(); next }
/^'.*' changed:$/ {
    split($0, parts, "'")
    what = parts[2]
    sub(/ at .*/, "", what)
    former = -1
    inserting = ""
    if (what !~ /^enum / && !(what in sized)) bad()
    next
}
/^  details were reported earlier$/ { next }
/^  type size hasn't changed$/ { next }
/^  type size changed from [0-9]+ to [0-9]+ \(in bits\)$/ { former = $5; if ($7 < former || !(what in sized)) bad(); next }
/^  [0-9]+ data member insertions?:$/ { inserting = "member"; next }
/^  [0-9]+ enumerator insertions?:$/ { inserting = "enumerator"; next }
/^  [0-9]+ enumerator changes?:$/ { inserting = "counter"; next }
/^    '.*', at offset [0-9]+ \(in bits\)/ && inserting == "member" {
    at = $0
    sub(/.*, at offset /, "", at)
    if (former < 0 || at + 0 < former) bad()
    next
}
/^    '.*' value '/ && inserting == "enumerator" { next }
/^    '[^']*_COUNT' from value/ && inserting == "counter" { next }
{ bad() }
