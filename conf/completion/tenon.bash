# bash completion of tenon. What there is to complete is read from tenon --help, so that it is never out of date.
# Installed as share/bash-completion/completions/tenon; `. tenon.bash` works, too.

# Sub-commands, one a line.
_tenon_commands() {
    "$1" --help 2>/dev/null | sed -nE '/^commands:/,/^$/s/^  ([a-z]+) .*/\1/p'
    printf '%s\n' help version
}

# "--name METAVAR" of each option of a sub-command, without METAVAR where it takes no value; letters as "-q".
_tenon_options() {
    "$1" "$2" --help 2>/dev/null |
        sed -nE 's/^ {2,6}(-([A-Za-z]), )?(--[a-z-]+)(\[=[^]]*\]| ([^ ]+))?( {2}.*)?$/\3 \5 -\2/p' |
        sed -E 's/ +-$//' | awk '{ print $1 (NF > 1 && $2 !~ /^-/ ? " " $2 : ""); if ($NF ~ /^-[A-Za-z]$/) print $NF }'
}

# Ids of kernels, and devices, one a line, as `tenon kernels` has them in its table and in lines before it.
_tenon_kernels() {
    "$1" kernels 2>/dev/null | awk '$4 ~ /^(yes|no)$/ { print $1 }' | sort -u
}
_tenon_devices() {
    "$1" kernels --all 2>&1 |
        awk '/^device: / { sub(/,.*/, "", $2); print $2 } $4 ~ /^(yes|no)$/ { print $2 }' | sort -u
}

# What may stand for a METAVAR of a program. A SPEC may be a list, of which the last is being written.
_tenon_values() {
    local before=
    case $1 in
    *'|'*) COMPREPLY=($(compgen -W "${1//|/ }" -- "$2")) ;;
    SPEC)
        [[ $2 == *,* ]] && before=${2%,*},
        COMPREPLY=($(compgen -P "$before" -W "auto none $(_tenon_kernels "$3")" -- "${2##*,}")) ;;
    'NAME[:N]') COMPREPLY=($(compgen -W "auto cpu $(_tenon_devices "$3")" -- "$2")) ;;
    DIR) COMPREPLY=($(compgen -d -- "$2")) ;;
    FILE*) COMPREPLY=($(compgen -f -- "$2")) ;;
    *) COMPREPLY=() ;;
    esac
}

_tenon() {
    local program=${COMP_WORDS[0]} word command='' cur prev commands i
    cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    commands=$(_tenon_commands "$program")
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        case $'\n'$commands$'\n' in *$'\n'"$word"$'\n'*) command=$word && break ;; esac
    done
    # "--name=va" comes as three words, since "=" separates them.
    [[ $cur == '=' ]] && cur=
    [[ $prev == '=' ]] && prev=${COMP_WORDS[COMP_CWORD - 2]}
    local options metavar
    options=$(_tenon_options "$program" "${command:-run}")
    metavar=$(awk -v name="$prev" '$1 == name { print $2 }' <<<"$options")
    if [[ -n $metavar ]]; then
        _tenon_values "$metavar" "$cur" "$program"
    elif [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$(awk '{ print $1 }' <<<"$options")" -- "$cur"))
    elif [[ -z $command || $command == help ]]; then
        # A folder may be called as a command is.
        COMPREPLY=($({ compgen -W "$commands" -- "$cur"; compgen -d -- "$cur"; } | sort -u))
    else
        COMPREPLY=($(compgen -f -- "$cur"))
    fi
}

complete -o filenames -F _tenon tenon
