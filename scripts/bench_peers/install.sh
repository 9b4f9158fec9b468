#!/bin/sh
# Installs the programs that `make bench-peers`, `make bench-serve` and `make bench-train` compare with, all from PyPI, into FOLDER and nowhere
# else: llama.cpp (its sources come with the package llama-cpp-python) with llama-bench or its server, OpenVINO GenAI, and
# torch with transformers. What cannot be had is said and left out. What is there stays as it is: remove its folder for
# another version.
# usage: [JOBS=N] scripts/bench_peers/install.sh FOLDER [llama|llama-server|openvino|torch|peft...]
set -u
folder=${1:-build/peers}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- llama openvino torch
mkdir -p "$folder" && folder=$(cd "$folder" && pwd) || exit 1
jobs=${JOBS:-$(nproc)}

absent() {
    echo "peers: $1 is left out: $2; see $folder/$1.log" >&2
}

# A virtual environment of its own, with these packages.
environment() {
    name=$1 && shift
    [ -x "$folder/$name/bin/python" ] || python3 -m venv "$folder/$name" || return 1
    "$folder/$name/bin/python" -m pip install -q --disable-pip-version-check "$@"
}

# pip asks the package for its name before it keeps the archive, and for that fetches what it is built with.
llama_sources() {
    [ ! -d "$folder/llama/src" ] || return 0
    mkdir -p "$folder/llama/download" && cd "$folder/llama" &&
        python3 -m pip download -q --disable-pip-version-check --no-deps --no-binary :all: -d download \
            llama-cpp-python || return 1
    archive=$(ls download/llama_cpp_python-*.tar.gz) && [ -f "$archive" ] || return 1
    package=$(basename "$archive" .tar.gz)
    tar -xzf "$archive" "$package/vendor/llama.cpp" && mv "$package/vendor/llama.cpp" src || return 1
    echo "${package#llama_cpp_python-}" >version
    rm -rf "$package" download
}

# One of its programs; the server without its page, which would be fetched from elsewhere.
llama_program() {
    [ ! -x "$folder/llama/build/bin/$1" ] || return 0
    command -v cmake >/dev/null || { echo 'cmake is missing' && return 1; }
    llama_sources && cd "$folder/llama" &&
        cmake -S src -B build -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DGGML_OPENMP=ON \
            -DGGML_CPU_REPACK=ON -DGGML_LLAMAFILE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
            -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_UI=OFF \
            -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TOOLS=ON &&
        cmake --build build -j "$jobs" --target "$1"
}

openvino() {
    [ ! -e "$folder/openvino/complete" ] || return 0
    environment openvino openvino-genai numpy && touch "$folder/openvino/complete"
}

torch() {
    [ ! -e "$folder/torch/complete" ] || return 0
    environment torch torch transformers numpy && touch "$folder/torch/complete"
}

# Beside torch.
peft() {
    [ ! -e "$folder/torch/peft" ] || return 0
    torch && environment torch peft && touch "$folder/torch/peft"
}

for peer in "$@"; do
    case $peer in
    llama) install='llama_program llama-bench' ;;
    llama-server) install='llama_program llama-server' ;;
    openvino | torch | peft) install=$peer ;;
    *)
        echo "usage: scripts/bench_peers/install.sh FOLDER [llama|llama-server|openvino|torch|peft...]" >&2
        exit 2
        ;;
    esac
    echo "peers: $peer" >&2
    ($install) >"$folder/$peer.log" 2>&1 || absent "$peer" 'it could not be installed'
done
