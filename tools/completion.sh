#!/bin/sh
# completion.sh PROGRAM: bash completion of one command, made from its own --help.
# A command with modes lists them in its help as "usage: glm-verify MODE …"; each has its own --help.
set -eu
name=${1##*/}
modes=$("$1" --help | sed -nE "s/^(usage:|      ) $name ([a-z]+)( .*)?\$/\2/p" | tr '\n' ' ')
{
    "$1" --help
    for mode in $modes; do "$1" "$mode" --help; done
} | awk -v name="$name" -v modes="${modes% }" '
# "  --dtype same|bf16 …" gives the option, and its words if the value is a choice.
/^  --/ && !($1 in seen) {
    seen[$1] = 1
    options = options " " $1
    if ($2 ~ /^[a-z0-9_]+\|/) {
        words = $2
        gsub(/\|/, " ", words)
        cases = cases "    " $1 ") COMPREPLY=($(compgen -W \"" words "\" -- \"$word\")); return ;;\n"
    }
}
END {
    f = name
    gsub(/-/, "_", f)
    printf "# bash completion of %s, made from its --help\n_%s() {\n", name, f
    printf "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
    printf "    [[ $before == = ]] && before=${COMP_WORDS[COMP_CWORD-2]}\n"
    printf "    [[ $word == = ]] && word= before=${COMP_WORDS[COMP_CWORD-1]}\n"
    printf "    case $before in\n%s    esac\n", cases
    printf "    if [[ $word == -* ]]; then\n"
    printf "        COMPREPLY=($(compgen -W \"%s\" -- \"$word\"))\n", substr(options, 2)
    if (modes != "") {
        printf "    elif ((COMP_CWORD == 1)); then\n"
        printf "        COMPREPLY=($(compgen -W \"%s\" -- \"$word\"))\n", modes
    }
    printf "    else\n        COMPREPLY=($(compgen -f -- \"$word\"))\n    fi\n}\n"
    printf "complete -o filenames -F _%s %s\n", f, name
}'
