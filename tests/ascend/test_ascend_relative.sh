#!/bin/sh
# A relative folder in LD_LIBRARY_PATH: where a plugin needs a library that the program has not loaded, the plugin is
# refused, and who asks for the device that it would have brought hears why.
set -eu
here=$(cd "$TENON_BUILD" && pwd)
said=$(LD_LIBRARY_PATH=relative/folder "$here/tests/check_models" tests/data/models/llama --device npu --kernels none 2>&1) && exit 1
case $said in
*"no plugin brings this device; there are: cpu; "*"was not taken: it needs libtenon"*"LD_LIBRARY_PATH has the entry 'relative/folder'"*) ;;
*) echo "$said" && exit 1 ;;
esac
