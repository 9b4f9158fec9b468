#!/bin/sh
# The interface of a library as libabigail's abidw writes it: functions, and types that they reach, as the public headers
# have them. Without places and names of parameters, so that it changes only when the interface does.
# usage: scripts/abi.sh LIBRARY > FILE
set -eu
exec abidw --no-show-locs --no-comp-dir-path --no-corpus-path --no-elf-needed --no-parameter-names \
    --headers-dir include/tenon --drop-private-types --drop-undefined-syms --exported-interfaces-only "$1"
