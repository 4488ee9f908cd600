#!/bin/bash
# make install DESTDIR=… PREFIX=…: what it puts there works from there, and uninstall removes it all.
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
bad=0
check() { # name, command
    local name=$1
    shift
    if "$@" > "$tmp/log" 2>&1; then
        echo "ok $name"
    else
        echo "FAIL $name"
        sed 's/^/    /' "$tmp/log"
        bad=1
    fi
}

# Without the outer make's flags: this is a user's call.
install() {
    env -u MAKEFLAGS make --no-print-directory DESTDIR="$tmp/root" PREFIX=/opt/glm install
}
check "installs under DESTDIR and PREFIX" install
prefix=$tmp/root/opt/glm

# A program of somebody else, through pkg-config and the door of each folder.
cat > "$tmp/user.c" << 'END'
#include <ckpt/ckpt.h>
#include <convert/convert.h>
#include <kernels/base/version.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    unsigned char sum[DIGEST_SIZE];
    char hex[DIGEST_HEX];
    digest_of("abc", 3, sum);
    digest_hex(sum, hex);
    puts(hex);
    return strcmp(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad") != 0;
}
END
compile() { # how to link
    local flags
    flags=$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --define-variable=prefix="$prefix" \
        --cflags --libs "$@" glm) || return 1
    # shellcheck disable=SC2086 # words are wanted
    (cd "$tmp" && gcc -std=c11 user.c $flags -o user)
}
shared() { compile && LD_LIBRARY_PATH=$prefix/lib "$tmp/user"; }
static() {
    mv "$prefix/lib/libglm.so" "$tmp/aside" && compile --static && "$tmp/user"
    local status=$?
    mv "$tmp/aside" "$prefix/lib/libglm.so"
    return $status
}
headers() { # with gcc's own default: some need POSIX
    local h bad=0 flags
    flags=$(pkg-config --cflags jansson hdf5 yaml-0.1)
    while IFS= read -r h; do
        # shellcheck disable=SC2086 # words are wanted
        printf '#include <%s>\nextern int not_empty;\n' "$h" |
            gcc -fsyntax-only -x c "-I$prefix/include/glm" $flags - || bad=1
    done < <(cd "$prefix/include/glm" && find . -name '*.h' | sed 's|^\./||')
    return $bad
}
check "every installed header compiles alone" headers
check "a program compiles, links and runs with libglm.so" shared
check "a program compiles, links and runs with libglm.a" static

for command in "$prefix"/bin/*; do
    [ -e "$command" ] || { echo "SKIP commands: none is built"; break; }
    program=${command##*/}
    check "$program runs" "$command" --version
    check "$program has a manual" test -s "$prefix/share/man/man1/$program.1"
    completes() {
        # shellcheck disable=SC1090 # just installed
        . "$prefix/share/bash-completion/completions/$program" || return 1
        local f=_${program//-/_}
        COMP_WORDS=("$program" --vers) COMP_CWORD=1 COMPREPLY=()
        "$f" && [ "${COMPREPLY[*]}" = --version ]
    }
    check "$program completes options" completes
done

version() {
    [ "$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --modversion glm)" \
        = "$(sed -n 's/^.define GLM_VERSION "\(.*\)"/\1/p' kernels/base/version.h)" ]
}
check "glm.pc has the version" version

uninstall() {
    env -u MAKEFLAGS make --no-print-directory DESTDIR="$tmp/root" PREFIX=/opt/glm uninstall \
        || return 1
    left=$(find "$tmp/root" ! -type d)
    [ -z "$left" ] || { echo "left: $left"; return 1; }
}
check "uninstall leaves no file" uninstall
exit $bad
