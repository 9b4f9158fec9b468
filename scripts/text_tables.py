#!/usr/bin/env python3
"""Writes core/text/unicode_tables.h: classes of characters as the `tokenizers` library (0.23.3) has them, found by asking
it about every character. Its parts use tables of Unicode 8 to 16, so no single version of Unicode agrees with it.

usage: scripts/text_tables.py [FILE], in an environment of Python 3.11 that has `tokenizers`
"""

import sys
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cf".split()
# Those that were there before, and that expressions name.
SCRIPTS = "han hiragana katakana latin cyrillic arabic devanagari kannada telugu ethiopic common inherited".split()


def ranges(codes):
    out = []
    for code in sorted(codes):
        if out and out[-1][1] == code - 1:
            out[-1][1] = code
        else:
            out.append([code, code])
    return out


def write(file, name, comment, rows):
    file.write(f"\n/* {comment} */\nstatic const {name}[] = {{\n")
    line = "   "
    for row in rows:
        item = " {" + ", ".join(row) + "},"
        if len(line) + len(item) > 119:
            file.write(line + "\n")
            line = "   "
        line += item
    file.write(line + "\n};\n")


def write_set(file, name, comment, codes):
    write(file, f"unicode_range {name}", comment, [(f"0x{a:x}", f"0x{b:x}") for a, b in ranges(codes)])


def cuts(splitter, text):
    return len(splitter.pre_tokenize_str(text))


def isolated(splitter):
    return {c for c in CODES if cuts(splitter, "a" + chr(c) + "a") == 3}


def erased(normalizer):
    return {c for c in CODES if normalizer.normalize_str(chr(c)) == ""}


def bert(**on):
    names = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
    return normalizers.BertNormalizer(**{name: on.get(name, False) for name in names})


def word_characters():
    splitter = pre_tokenizers.Whitespace()
    return {c for c in CODES if cuts(splitter, "a" + chr(c) + "a") == 1}


def known_to_forms():
    """Characters that decompose or change places: a mark before which one of a higher class comes, or the reverse."""
    forms = normalizers.NFKD(), normalizers.NFD()
    known = set()
    for code in CODES:
        text = chr(code)
        before, after = text + "\u0334", "\u0345" + text  # classes 1 and 240
        if any(f.normalize_str(text) != text for f in forms) or code in (0x334, 0x345):
            known.add(code)
        elif forms[1].normalize_str(before) != before or forms[1].normalize_str(after) != after:
            known.add(code)
    return known


def scripts():
    splitter = pre_tokenizers.UnicodeScripts()
    runs, script, names = [], {}, []
    for code in CODES:
        text = chr(code)
        if code == 32 or cuts(splitter, "a" + text + "a") == 1 == cuts(splitter, "\u6587" + text + "\u6587"):
            continue  # any script
        if runs and runs[-1][1] == code - 1 and cuts(splitter, chr(code - 1) + text) == 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    rows = []
    for first, last in runs:
        for number, name in enumerate(names):
            if cuts(splitter, name + chr(first)) == 1:
                break
        else:
            number = len(names)
            names.append(chr(first))
        rows.append((f"0x{first:x}", f"0x{last:x}", str(number + 1)))
    return rows


def lower_pairs():
    """Runs of characters whose lower case lies at the same distance, and every step-th of which has one."""
    lower = normalizers.Lowercase()
    rows = []
    for code in CODES:
        text = lower.normalize_str(chr(code))
        if text == chr(code):
            continue
        distance = ord(text[0]) - code
        if rows and rows[-1][3] == distance and rows[-1][0] == rows[-1][1] and code - rows[-1][1] in (1, 2):
            rows[-1][1:3] = [code, code - rows[-1][1]]
        elif rows and rows[-1][3] == distance and code - rows[-1][1] == rows[-1][2]:
            rows[-1][1] = code
        else:
            rows.append([code, code, 1, distance])
    return [(f"0x{a:x}", f"0x{b:x}", str(step), str(distance)) for a, b, step, distance in rows]


def found(property_name, text):
    """The characters of a text that a regular expression takes for those of a property."""
    split = pre_tokenizers.Split(Regex(r"\P{%s}+" % property_name), "removed")
    return {ord(c) for part, _ in split.pre_tokenize_str(text) for c in part}


def newer():
    """Characters that came after Unicode 14, which Python 3.11 has, with what the library's expressions say of them."""
    assert unicodedata.unidata_version == "14.0.0", "run this by Python 3.11"
    text = "".join(chr(c) for c in CODES if unicodedata.category(chr(c)) == "Cn")
    categories = {c: name for name in CATEGORIES for c in found(name, text)}
    scripts_of = {c: name for name in SCRIPTS for c in found(name, text)}
    alphabetic, rows = found("Alphabetic", text), []
    for code in sorted(categories):
        row = [f'"{categories[code]}"', "true" if code in alphabetic else "false", f'"{scripts_of.get(code, "")}"']
        if rows and rows[-1][1] == code - 1 and rows[-1][2:] == row:
            rows[-1][1] = code
        else:
            rows.append([code, code, *row])
    return [(f"0x{first:x}", f"0x{last:x}", *row) for first, last, *row in rows]


def main():
    with open(sys.argv[1] if len(sys.argv) > 1 else "core/text/unicode_tables.h", "w", encoding="ascii") as file:
        file.write("/* Written by scripts/text_tables.py. For unicode.c alone, which has the types. Ranges include "
                   "both ends. */\n")
        file.write("/* clang-format off */\n")
        write_set(file, "punctuation", "Punctuation.", isolated(pre_tokenizers.Punctuation("isolated")))
        write_set(file, "numeric", "Numbers.", isolated(pre_tokenizers.Digits(True)))
        write_set(file, "marks", "Marks of all kinds.", erased(normalizers.StripAccents()))
        write_set(file, "nonspacing", "Nonspacing marks.", erased(bert(strip_accents=True)))
        write_set(file, "other", "Control, format and private characters, without the three that are spaces.",
                  erased(bert(clean_text=True)) - {0xFFFD})
        write_set(file, "word", "Characters of words.", word_characters())
        write_set(file, "known", "What normalization forms decompose or reorder.", known_to_forms())
        write(file, "lower_run lower", "First and last character, step, distance to the lower case.", lower_pairs())
        write(file, "script_run scripts", "First and last character, number of the script.", scripts())
        write(file, "unicode_newer_run newer", "First and last character, category, alphabetic or not, script.",
              newer())
        file.write("/* clang-format on */\n")


if __name__ == "__main__":
    main()
