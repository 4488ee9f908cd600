#!/bin/sh
# deps.sh PACKAGE...: installs the Debian packages that are missing; nothing happens when all are
# there. Root installs; another user goes through sudo, or is told the one command to run.
missing=
if ! command -v dpkg-query > /dev/null; then
    echo "deps: no dpkg here; these Debian packages (or their like) are needed: $*" >&2
    exit 0
fi
for p in "$@"; do
    case $(dpkg-query -W -f='${db:Status-Abbrev}' "$p" 2> /dev/null) in
    ?i*) ;;
    *) missing="$missing $p" ;;
    esac
done
[ -n "$missing" ] || exit 0

install="apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" -eq 0 ]; then
    sudo=
elif command -v sudo > /dev/null && { sudo -n true 2> /dev/null || [ -t 0 ]; }; then
    sudo=sudo
else
    echo "deps: packages are missing; as root, run: $install" >&2
    exit 1
fi
echo "deps: installing$missing"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # words are wanted
$sudo apt-get update -q && $sudo env DEBIAN_FRONTEND=noninteractive $install
