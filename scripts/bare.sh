#!/bin/sh
# Both commands of the README in a bare Debian of their own: a folder with nothing but what apt needs, and make, in which
# the last commit is unpacked, built and tested. It has the machine's kernel, network, sources of packages and /dev;
# its processes and mounts are its own and go with it, however this ends. Ends with "N passed, N failed", the demo being
# one check. The system itself, before anything is built, is kept as FOLDER/base.tar for the next time, and so are the
# packages; FOLDER/demo.log and FOLDER/check.log have what was printed.
# With PACKAGES, a folder that make deb has filled, these are installed there instead, used and taken away again, each
# step being one check.
# usage: scripts/bare.sh FOLDER [PACKAGES]
set -u

stop() {
    echo "tenon: no bare Debian: $1" >&2
    exit 1
}

# Inside of namespaces of its own, where the machine sees no mount: the commands, then what they did.
inside() {
    root=$1
    mount -t proc proc "$root/proc" && mount -t sysfs -o ro sysfs "$root/sys" && mount --rbind /dev "$root/dev" &&
        mount --bind "$root/../archives" "$root/var/cache/apt/archives" || stop 'its folders could not be mounted'
    shift
    chroot "$root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
        MAKEFLAGS="-j$(nproc)" "$@"
}
# This shell is the first process there, and waits for what others leave behind.
[ "$1" != --inside ] || { shift && inside "$@"; exit; }

[ "$(id -u)" -eq 0 ] || stop 'it takes root, to make its devices and to mount'
for each in mmdebstrap:mmdebstrap unshare:util-linux chroot:coreutils git:git apt-config:apt; do
    command -v "${each%:*}" >/dev/null 2>&1 || stop "${each%:*} is not installed (apt-get install ${each#*:})"
done
unshare --mount --pid --fork true 2>/dev/null || stop 'this system gives out no namespaces for mounts and processes'
mkdir -p "$1/archives/partial" || exit 1
packages=${2:-}
folder=$(cd "$1" && pwd) self=$(readlink -f "$0")
root=$folder/root
trap 'rm -rf --one-file-system "$root"' EXIT
trap 'exit 130' INT TERM HUP
rm -rf --one-file-system "$root"

# The same release from the same sources as outside, by the same way to them.
apt-config dump | grep '^Acquire::' >"$folder/apt.conf"
sources=$(find /etc/apt/sources.list /etc/apt/sources.list.d -name '*.list' -o -name '*.sources' 2>/dev/null)
# shellcheck disable=SC1091,SC2086 # of the system; one argument for each file
[ -e "$folder/base.tar" ] || {
    . /etc/os-release
    mmdebstrap --quiet --mode=root --variant=apt --include=make --aptopt="$folder/apt.conf" "$VERSION_CODENAME" \
        "$folder/new.tar" $sources && mv "$folder/new.tar" "$folder/base.tar"
} || stop 'mmdebstrap could not make one'
mkdir "$root" && tar -x -C "$root" -f "$folder/base.tar" --exclude='./dev/*' && mkdir "$root/tenon" &&
    git archive HEAD | tar -x --no-same-permissions -C "$root/tenon" && cp -L /etc/resolv.conf /etc/hosts "$root/etc/" || stop 'it could not be unpacked'

count_packages() {
    grep -c '^Status: install ok installed' "$root/var/lib/dpkg/status"
}
# NAME COMMAND...: the command in there, with the time that it took and how many packages there are then.
in_there() {
    name=$1 began=$(date +%s)
    shift
    { unshare --mount --pid --fork --kill-child "$self" --inside "$root" "$@" 2>&1; echo "status $?"; } |
        tee "$folder/$name.log" | grep --line-buffered -v '^status [0-9]*$'
    echo "==== $name: $(($(date +%s) - began)) s, $(count_packages) packages"
    [ "$(tail -n 1 "$folder/$name.log")" = 'status 0' ]
}
command_of_readme() {
    in_there "$1" make -C /tenon "$1"
}
# Each step is a line of shell, in there.
step() { # NAME LINE
    if in_there "$1" sh -exc "$2"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}
try_packages() {
    apt='env DEBIAN_FRONTEND=noninteractive apt-get -q -y'
    passed=0 failed=0
    step install "$apt update; $apt install --no-install-recommends /tenon/tenon_*.deb /tenon/libtenon*.deb"
    step kernels 'tenon kernels >/tmp/said; cat /tmp/said; grep "^npu_fused_rmsnorm .* yes .*/tenon/plugins/" /tmp/said'
    step run 'cd /usr/share/doc/tenon/examples/demo; tenon run . "And it came to pass" -n 16 --temperature 0 --verbose >/tmp/said 2>&1;
        cat /tmp/said; grep "^kernels: .* npu_fused_rmsnorm " /tmp/said; grep "LORD" /tmp/said'
    step purge "$apt purge tenon libtenon0 libtenon-dev; ! find / -xdev \\( -path /tenon -o -path /root \\) -prune -o -name '*tenon*' -print | grep ."
    echo "$passed passed, $failed failed"
    [ $failed -eq 0 ]
}
echo "==== a bare Debian: $(count_packages) packages"
[ -z "$packages" ] || { cp "$packages"/*.deb "$root/tenon" && try_packages; exit; }
if command_of_readme demo; then passed=1 failed=0; else passed=0 failed=1; fi
command_of_readme check
status=$?
# shellcheck disable=SC2046 # two numbers or none
set -- $(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$folder/check.log" | tail -n 1)
[ "$status" -eq 0 ] || [ "${2:-0}" -gt 0 ] || set -- "${1:-0}" 1
echo "$((passed + ${1:-0})) passed, $((failed + ${2:-0})) failed"
[ $((failed + ${2:-0})) -eq 0 ]
