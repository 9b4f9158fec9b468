#!/bin/sh
# scripts/setup.sh with a compiler, apt-get, sudo and id that play a machine without some packages.
. tests/build/lib.sh
mkdir "$tmp/bin"
for tool in sh awk sort tr cat env sed grep mktemp rm; do
    ln -s "$(command -v $tool)" "$tmp/bin/$tool"
done

tool() { # NAME: a program from stdin
    { echo '#!/bin/sh'; cat; } >"$tmp/bin/$1"
    chmod 755 "$tmp/bin/$1"
}
# The compiler fails when asked for a header that $tmp/missing names.
tool gcc <<E2
! grep -qF -f "$tmp/missing" -
E2
for name in make pkg-config $(scripts/setup.sh --spared | sed -n 's/^program //p'); do tool "$name" </dev/null; done
# apt-get notes its arguments; "install" brings the headers back unless the lists are said to be stale, or a package of
# those that are asked for is in none.
apt_get='echo "$*" >>'"$tmp/log"'
case "$*" in
*update*) rm -f '"$tmp/stale"' ;;
*'"\$(cat $tmp/unknown)"'*) exit 100 ;;
*) [ ! -e '"$tmp/stale"' ] && echo no-such-header >'"$tmp/missing"' ;;
esac'

machine() { # MISSING UID: a fresh one
    rm -f "$tmp/log" "$tmp/stale" "$tmp/bin/sudo"
    : >"$tmp/log"
    echo no-such-package >"$tmp/unknown"
    printf '%s\n' "$1" >"$tmp/missing"
    echo "$apt_get" | tool apt-get
    echo "echo $2" | tool id
}
setup() { # EXPECTED-STATUS [OPTION]: leaves its output in $tmp/said
    expected=$1
    shift
    env -i PATH="$tmp/bin" CC=gcc sh scripts/setup.sh "$@" >"$tmp/said" 2>&1
    status=$?
    cat "$tmp/said"
    [ "$status" -eq "$expected" ]
}
said() {
    grep -q -- "$1" "$tmp/said" || { cat "$tmp/said"; false; }
}
asked() { # the lines of apt-get, without its options
    sed 's/^-q -y -o [^ ]* //; s/ --no-install-recommends//' "$tmp/log" | diff - "$tmp/want"
}

machine no-such-header 0
check 'nothing is missing' setup 0
check 'nothing is said then' test ! -s "$tmp/said"
: >"$tmp/want"
check 'apt-get is not called then' asked

machine jansson.h 0
check 'a missing header as root' setup 0
echo 'install libjansson-dev' >"$tmp/want"
check 'its package is installed' asked

machine check.h 0
check 'the program is built without the test library' setup 0 --no-tests
: >"$tmp/want"
check 'which is then not installed' asked
check 'tests want it' setup 0
echo 'install check' >"$tmp/want"
check 'and get it' asked

# The targets for which make asks for it.
tested() {
    "${MAKE:-make}" -n -p "$@" 2>/dev/null | sed -n 's/^TESTED := *//p'
}
check 'make wants no test library' test -z "$(tested)"
check 'make demo wants no test library' test -z "$(tested demo)"
check 'make install wants no test library' test -z "$(tested install)"
check 'make check wants it' test -n "$(tested check)"

machine 'ltdl.h
gelf.h' 0
touch "$tmp/stale"
check 'old lists of packages' setup 0
printf '%s\n' 'install libelf-dev libltdl-dev' update 'install libelf-dev libltdl-dev' >"$tmp/want"
check 'are fetched after the first try' asked

machine dnnl.h 1000
echo 'shift; [ "$*" = true ] || exec "$@"' | tool sudo
ln -sf "$(command -v true)" "$tmp/bin/true"
check 'a missing header with sudo' setup 0
echo 'install libdnnl-dev' >"$tmp/want"
check 'sudo runs apt-get' asked

machine dnnl.h 1000
check 'without sudo it stops' setup 1
check 'and names the package' said 'apt-get install libdnnl-dev'
: >"$tmp/want"
check 'and leaves the system alone' asked

# What the build and the tests can do without is installed all the same, and stops nobody where that cannot be.
machine seccomp.h 0
check 'a missing library that may be missing' setup 0 --no-tests
echo 'install libseccomp-dev' >"$tmp/want"
check 'is installed for who only builds' asked
machine no-such-header 0
mv "$tmp/bin/zsh" "$tmp/zsh"
check 'a missing program of the tests' setup 0 --no-tests
: >"$tmp/want"
check 'is not installed for who only builds' asked
setup 0 >/dev/null
echo 'install zsh' >"$tmp/want"
check 'but for the tests' asked
mv "$tmp/zsh" "$tmp/bin/zsh"
machine 'seccomp.h
gelf.h' 0
echo libseccomp-dev >"$tmp/unknown"
check 'a system without its package' setup 0
printf '%s\n' 'install libelf-dev libseccomp-dev' update 'install libelf-dev libseccomp-dev' 'install libelf-dev' >"$tmp/want"
check 'gets the others' asked
machine seccomp.h 1000
check 'without sudo it goes on without' setup 0
check 'and says so' said 'It goes on without; SETUP=no asks no more'
check 'with the name' said 'apt-get install libseccomp-dev *$'
machine 'seccomp.h
dnnl.h' 1000
check 'what is needed stops it' setup 1
check 'and both are named' said 'apt-get install libdnnl-dev libseccomp-dev'

machine pcre2.h 0
rm "$tmp/bin/apt-get"
check 'without apt-get it stops' setup 1
for name in 'apt-get install libpcre2-dev' 'dnf install pcre2-devel' 'pacman -S pcre2' 'zypper install pcre2-devel' \
    'apk add pcre2-dev'; do
    check "and says: $name" said "$name"
done
finish
