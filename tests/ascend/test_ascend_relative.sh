#!/bin/sh
# A relative folder in LD_LIBRARY_PATH: where a plugin needs a library that the program has not loaded, the plugin is
# refused, and who asks for the device that it would have brought hears why. Ends with "N passed, N failed".
set -u
here=$(cd "$TENON_BUILD" && pwd) || exit 1
said=$(LD_LIBRARY_PATH=relative/folder "$here/tests/check_models" tests/data/models/llama --device npu --kernels none 2>&1)
status=$?
case $status:$said in
0:*) echo 'the device is there' ;;
*"no plugin brings this device; there are: cpu; "*"was not taken: it needs libtenon"*"LD_LIBRARY_PATH has the entry 'relative/folder'"*)
    echo '1 passed, 0 failed'
    exit
    ;;
esac
echo "$said"
echo '0 passed, 1 failed'
exit 1
