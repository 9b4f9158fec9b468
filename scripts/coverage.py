#!/usr/bin/env python3
"""Sums the lines of an lcov file up by folder of core, and lists those that no test ran.

Files for instruction sets that this processor lacks are summed up apart, as "not on this processor", and those of
other machines, which were not compiled, are named; nothing else is left out. In the list a "!" marks lines that report
an error.
usage: scripts/coverage.py CORE.lcov UNCOVERED.txt
"""
import glob
import os
import re
import sys
from collections import defaultdict

REPORTS = re.compile(r"\b(\w+_)?(fail|failed|error|unsupported|no_memory|out_of_memory)\(|return TN_E_")
# Suffix of a file, and the flag in /proc/cpuinfo without which its code cannot run.
FLAGS = {
    "avx2": "avx2",
    "avxvnni": "avx_vnni",
    "avx512": "avx512f",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "amx": "amx_bf16",
}

MACHINES = {*FLAGS, "neon"}


def suffix_of(file):
    return os.path.splitext(file)[0].rpartition("_")[2]


def processor_flags():
    """The words of the first line of flags; none where there is no such line."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            return next((line.split() for line in f if line.startswith("flags")), [])
    except OSError:
        return []


def read_counts(path):
    """Of each file of core: the count of each line that has code."""
    files = defaultdict(dict)
    name = None
    with open(path, encoding="utf-8") as f:
        for line in f:
            if line.startswith("SF:"):
                name = os.path.relpath(line[3:].strip())
            elif line.startswith("DA:") and name.startswith("core/"):
                number, count = line[3:].split(",")[:2]
                files[name][int(number)] = int(count)
    return files


def ranges(numbers):
    """[1, 2, 3, 7] is 1-3 and 7."""
    first = last = None
    for n in numbers:
        if last is not None and n == last + 1:
            last = n
            continue
        if first is not None:
            yield first, last
        first = last = n
    if first is not None:
        yield first, last


def write_missed(out, file, missed):
    with open(file, encoding="utf-8") as f:
        text = f.read().split("\n")
    reports = 0
    out.write(f"{file}: {len(missed)} lines\n")
    for a, b in ranges(missed):
        for n in range(a, b + 1):
            tells = bool(REPORTS.search(text[n - 1]))
            reports += tells
            out.write(f"{'!' if tells else ' '} {n:5}  {text[n - 1]}\n")
        out.write("\n")
    return reports


def row(name, counts):
    run, total = counts
    print(f"{name:24} {run:6} of {total:6} lines  {100 * run / total:5.1f} %")


def main():
    source, target = sys.argv[1:]
    flags = processor_flags()
    folders, elsewhere = defaultdict(lambda: [0, 0]), [0, 0]
    errors = 0
    files = read_counts(source)
    with open(target, "w", encoding="utf-8") as out:
        for file, lines in sorted(files.items()):
            run = sum(count > 0 for count in lines.values())
            suffix = suffix_of(file)
            lacks = suffix in FLAGS and FLAGS[suffix] not in flags
            sums = elsewhere if lacks else folders["/".join(file.split("/")[:2])]
            sums[0] += run
            sums[1] += len(lines)
            missed = sorted(n for n, count in lines.items() if count == 0)
            if missed:
                errors += write_missed(out, file, missed)
    for folder, counts in sorted(folders.items()):
        row(folder, counts)
    row("core", [sum(one) for one in zip(*folders.values())])
    if elsewhere[1]:
        row("not on this processor", elsewhere)
    others = [file for file in sorted(glob.glob("core/*/*_*.c")) if suffix_of(file) in MACHINES and file not in files]
    if others:
        print("not compiled on this machine:", *others)
    print(f"{errors} lines that report an error were not run: {target}")


if __name__ == "__main__":
    main()
