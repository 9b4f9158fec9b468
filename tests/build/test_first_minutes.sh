#!/bin/sh
# What a newcomer tries in the first ten minutes, and what is said then: the README's own lines are test_readme.sh's.
. tests/build/lib.sh
tenon=$build/tenon
model=$PWD/models/demo
greedy='-n 4 --temperature 0 -q'
export XDG_CACHE_HOME="$tmp/cache" TENON_MEASURE=no
unset HF_HUB_CACHE HF_HOME

# says WORDS COMMAND...: on stdout or stderr, whatever its status.
says() {
    words=$1
    shift
    check "'$words' is said by: $*" sh -c 'words=$1; shift; "$@" 2>&1 | grep -F -e "$words" || { "$@"; exit 1; }' - "$words" "$@"
}

# On a terminal, which turns line ends into two characters.
shown() {
    words=$1
    shift
    check "'$words' is shown by: $*" sh -c 'script -qec "$2" /dev/null </dev/null | grep -F -e "$1" || { script -qec "$2" /dev/null; exit 1; }' \
        - "$words" "$*"
}

# ---- plugins, kernels and their words
mkdir -m 755 "$tmp/own"
cp "$build/tests/hello_kernel/hello_kernel.so" "$tmp/own"
says example_fused_rmsnorm "$tenon" kernels --plugins "$tmp/own"
says cpu_attention "$tenon" kernels --plugins "$tmp/own"
check 'only that folder' sh -c '! "$0" kernels --only-plugins "$1" | grep cpu_attention' "$tenon" "$tmp/own"
says 'the ids are those of LLaMA-Factory' "$tenon" kernels
says ' more for other devices: --all lists them' "$tenon" kernels
says ' sites; --verbose lists them' "$tenon" run "$model" And -n 2
shown ' sites; --verbose lists them' "$tenon run $model And -n 2"
says "did you mean 'npu_fused_swiglu'?" "$tenon" run "$model" And --kernels swiglu
says 'at all sites' "$tenon" run "$model" And -n 2 --threads 1000 --no-measure

# ---- prompts, questions, other programs' words
# shellcheck disable=SC2086 # words
text=$("$tenon" run "$model" 'And it came' $greedy)
check 'there is a text' test -n "$text"
same() {
    check "the same text: $*" sh -c 'test "$(echo "And it came" | "$@" -n 4 --temperature 0 -q)" = "$0"' "$text" "$@"
}
same "$tenon" run "$model"
same "$tenon" "$model" 'And it came'
same "$tenon" -m "$model" -p 'And it came' -t 2 -c 64
same "$tenon" chat "$model"
same "$tenon" chat "$model" 'And it came'
same "$tenon" run "$model" 'And it came' --dtype bfloat16
says 'the model has no chat template; it continues plain text' "$tenon" chat "$model" 'And it came' -n 2
shown 'it continues plain text' "$tenon chat $model 'And it came' -n 2"
says '"logprob"' "$tenon" run "$model" And -n 2 --json --logprobs 2

# The other side has no kernels, which promise nothing, and is measured all the same.
says 'decode' "$tenon" bench "$model" --kernels auto --same-bits --prompt 8 --decode 2 --repeat 1

# ---- the Hub's cache
hub=$tmp/cache/huggingface/hub/models--org--demo
mkdir -p "$hub/refs" "$hub/snapshots"
ln -s "$model" "$hub/snapshots/0123456789abcdef0123456789abcdef01234567"
printf 0123456789abcdef0123456789abcdef01234567 >"$hub/refs/main"
same "$tenon" run org/demo
same "$tenon" run org/demo@0123456
says 'hf download org/none' "$tenon" run org/none And
says 'hf download org/demo --revision v2' "$tenon" run org/demo@v2 And

# ---- what lies where a model should
mkdir "$tmp/lfs" "$tmp/pickles" "$tmp/adapter"
cp "$model"/*.json "$tmp/lfs"
cp "$model/config.json" "$tmp/pickles"
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 1\n' 0 >"$tmp/lfs/model.safetensors"
printf x >"$tmp/pickles/pytorch_model.bin"
printf '{"base_model_name_or_path": "org/base"}' >"$tmp/adapter/adapter_config.json"
printf x >"$tmp/adapter/adapter_model.safetensors"
says 'git lfs pull' "$tenon" run "$tmp/lfs" And
says 'pickles (pytorch_model.bin)' "$tenon" run "$tmp/pickles" And
says 'is an adapter' "$tenon" run "$tmp/adapter" And
finish
