#!/usr/bin/env python3
"""Sums gcovr's JSON up by folder of core, and lists lines that report an error and were not run.

usage: scripts/coverage.py COVERAGE.json UNCOVERED.txt
"""
import json
import re
import sys
from collections import defaultdict

REPORTS = re.compile(r"\btn_fail\(|\b(sandbox_fail|config_fail|doc_unsupported|no_memory|sandbox_out_of_memory)\(|return TN_E_")


def main():
    source, target = sys.argv[1:]
    with open(source, encoding="utf-8") as f:
        files = json.load(f)["files"]
    folders = defaultdict(lambda: [0, 0])
    errors = 0
    with open(target, "w", encoding="utf-8") as out:
        for file in sorted(files, key=lambda one: one["file"]):
            with open(file["file"], encoding="utf-8") as f:
                text = f.read().split("\n")
            lines = [one for one in file["lines"] if not one.get("gcovr/noncode")]
            folder = "/".join(file["file"].split("/")[:2])
            folders[folder][0] += sum(one["count"] > 0 for one in lines)
            folders[folder][1] += len(lines)
            missed = [one["line_number"] for one in lines if one["count"] == 0]
            missed = [n for n in missed if REPORTS.search(text[n - 1])]
            errors += len(missed)
            if missed:
                out.write(f"{file['file']}\n")
            for n in missed:
                out.write(f"  {n}: {text[n - 1].strip()}\n")
    run, total = map(sum, zip(*folders.values()))
    for folder, (a, b) in sorted(folders.items()):
        print(f"{folder:20} {a:6} of {b:6} lines  {100 * a / b:5.1f} %")
    print(f"{'core':20} {run:6} of {total:6} lines  {100 * run / total:5.1f} %")
    print(f"{errors} lines that report an error were not run: {target}")


if __name__ == "__main__":
    main()
