#!/bin/bash
# tools/deps.sh: nothing when all is there; root installs; others use sudo or are told one command.
root=$(cd "$(dirname "$0")/../.." && pwd)
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
bad=0

# Stand-ins for the system's commands: what is installed, who runs, what was asked of apt-get.
mkdir "$tmp/bin"
cat > "$tmp/bin/dpkg-query" << 'END'
#!/bin/sh
for p in "$@"; do :; done
case $p in
here*) echo 'ii ' ;;
removed) echo 'rc ' ;;
*) exit 1 ;;
esac
END
printf '#!/bin/sh\necho "$WHO"\n' > "$tmp/bin/id"
printf '#!/bin/sh\necho "apt-get $*" >> "%s/apt"\n' "$tmp" > "$tmp/bin/apt-get"
chmod +x "$tmp"/bin/*
for tool in sh env cat; do ln -s "$(command -v $tool)" "$tmp/bin/$tool"; done

run() { # who, packages
    local who=$1
    shift
    rm -f "$tmp/apt"
    out=$(PATH=$tmp/bin WHO=$who "$root/tools/deps.sh" "$@" 2>&1 < /dev/null)
    status=$?
    apt=$(cat "$tmp/apt" 2> /dev/null)
}
expect() { # name, status, output, what apt-get was asked
    if [ $status -eq "$2" ] && [ "$out" = "$3" ] && [ "$apt" = "$4" ]; then
        echo "ok $1"
    else
        echo "FAIL $1: status $status, output '$out', apt '$apt'"
        bad=1
    fi
}

run 0 here here2
expect "nothing happens when all is there" 0 "" ""
run 0 here gone removed
expect "root installs what is missing, removed packages too" 0 "deps: installing gone removed" \
    $'apt-get update -q\napt-get install -y --no-install-recommends gone removed'
run 1000 here gone
expect "another user without sudo is told the one command" 1 \
    "deps: packages are missing; as root, run: apt-get install -y --no-install-recommends gone" ""
printf '#!/bin/sh\n[ "$1" = -n ] && exit 0\n"$@"\n' > "$tmp/bin/sudo"
chmod +x "$tmp/bin/sudo"
run 1000 here gone
expect "another user goes through sudo" 0 "deps: installing gone" \
    $'apt-get update -q\napt-get install -y --no-install-recommends gone'
exit $bad
