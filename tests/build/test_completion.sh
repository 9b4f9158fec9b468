#!/bin/sh
# Completion in bash and zsh: sound scripts that offer every sub-command and every option that --help has. Where one of
# the shells is missing its part is skipped, aloud.
. tests/build/lib.sh
PATH=$build:$PATH
bash_script=conf/completion/tenon.bash zsh_script=conf/completion/_tenon
commands=$(tenon --help | sed -n '/^commands:/,/^$/s/^  \([a-z][a-z]*\) .*/\1/p')
check 'there are commands' test "$(echo "$commands" | wc -l)" -ge 9

# The options of a command, from the first column of its help.
options_of() {
    tenon "$1" --help | grep -oE '^ {2,6}(-., )?--[a-z-]+' | grep -oE -- '--[a-z-]+' | sort
}

# bash's offers for a line, of which the last word is being written.
offered() {
    bash -c '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _tenon; printf "%s\n" "${COMPREPLY[@]}"' \
        "$bash_script" "$@"
}
offers() { # WHAT... -- LINE...
    want=
    while [ "$1" != -- ]; do
        want="$want$1
"
        shift
    done
    shift
    printf %s "$want" | sort >"$tmp/want"
    offered "$@" | sort >"$tmp/got"
    diff "$tmp/want" "$tmp/got"
}
bash_offers_options() {
    offered tenon "$1" -- | grep '^--' | sort >"$tmp/got"
    options_of "$1" >"$tmp/want"
    [ -s "$tmp/want" ] && diff "$tmp/want" "$tmp/got"
}
in_bash() {
    check 'the bash script is sound' bash -n "$bash_script"
    for command in $commands; do
        check "bash offers tenon $command" offers "$command" -- tenon "$command"
        check "bash offers the options of tenon $command" bash_offers_options "$command"
    done
    check 'bash offers choices' offers text json dot svg -- tenon inspect models/demo --format ''
    check 'and those behind an equals sign' offers json -- tenon inspect models/demo --format = j
    check 'kernels' offers auto -- tenon run models/demo --kernels a
    check 'kernels by their ids' offers npu_fused_swiglu -- tenon run models/demo --kernels npu_fused_sw
    check 'and in a list' offers auto,npu_fused_swiglu -- tenon run models/demo --kernels auto,npu_fused_sw
    check 'devices' offers npu -- tenon run models/demo --device n
    check 'no devices for a variable' offers '' -- tenon run models/demo --template-var c
    check 'folders for a model' offers models/demo -- tenon inspect models/de
    check 'commands behind help' offers version -- tenon help vers
    check 'options of run without a command' offers --kernels -- tenon --ker
}

zsh_options() {
    TENON_COMPLETION_TEST=yes zsh -fc ". $zsh_script; _tenon_options tenon $1" | sed 's/[: ].*//' | sort >"$tmp/got"
    options_of "$1" | diff - "$tmp/got"
}
zsh_commands() {
    TENON_COMPLETION_TEST=yes zsh -fc ". $zsh_script; _tenon_commands tenon" | sed 's/:.*//' >"$tmp/got"
    printf '%s\n' "$commands" help version | diff - "$tmp/got"
}
zsh_lists() { # FUNCTION WHAT
    TENON_COMPLETION_TEST=yes zsh -fc ". $zsh_script; $1 tenon" | grep -qx "$2"
}
in_zsh() {
    check 'the zsh script is sound' zsh -fn "$zsh_script"
    check 'zsh offers the commands' zsh_commands
    check 'zsh offers kernels' zsh_lists _tenon_kernels npu_fused_swiglu
    check 'zsh offers devices' zsh_lists _tenon_devices npu
    for command in $commands; do
        check "zsh offers the options of tenon $command" zsh_options "$command"
    done
}

for shell in bash zsh; do
    if command -v $shell >/dev/null 2>&1; then in_$shell; else echo "SKIPPED completion in $shell, which is not installed"; fi
done
finish
