# shellcheck shell=bash
# Sourced by the scripts of this folder: where Open MPI and the build have what they take, a folder $tmp of their own, in which
# Open MPI keeps its files, too, and what counts and ends a script.
set -u
build=${TENON_BUILD:-build}
if ! command -v mpirun >/dev/null || [ ! -e "$build/plugins/mpi/open_mpi.so" ]; then
    echo 'SKIPPED mpirun: Open MPI is not installed, or the build has no plugins/mpi/open_mpi.so'
    echo '0 passed, 0 failed'
    exit 0
fi
build=$(cd "$build" && pwd)
passed=0 failed=0 tmp=$(mktemp -d)
mkdir "$tmp/mpi"
export TMPDIR=$tmp/mpi # no longer than a socket's name may be
trap 'rm -rf "$tmp"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
# In a container the system may not let one process read another one's memory.
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl_vader_single_copy_mechanism=none
export HOME=$tmp XDG_CACHE_HOME=$tmp XDG_CONFIG_HOME=$tmp TENON_MEASURE=no
export tenon=$build/tenon

ok() { # NAME CONDITION...
    local name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED $name"
        sed 's/^/    /' "$tmp/out" "$tmp/err" 2>/dev/null | cut -c 1-300 | head -20
    fi
}
ranks() { # N COMMAND...
    local n=$1
    shift
    timeout -k 5 "${limit:-200}" mpirun -q -n "$n" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
}
input() { # N: a file of safetensors with so many token ids
    python3 -c 'import json, struct, sys
n = int(sys.argv[1])
header = json.dumps({"input_ids": {"dtype": "I64", "shape": [1, n], "data_offsets": [0, 8 * n]}}).encode()
header += b" " * (-len(header) % 8)
ids = struct.pack("<%dq" % n, *((i * 37 + 11) % 200 + 1 for i in range(n)))
sys.stdout.buffer.write(struct.pack("<Q", len(header)) + header + ids)' "$1"
}
end() {
    echo "$passed passed, $failed failed"
    [ $failed = 0 ]
}
