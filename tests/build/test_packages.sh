#!/bin/sh
# What is handed on of the last commit: the tarball of make dist, and the packages of make deb, which lintian accepts.
. tests/build/lib.sh
make=${MAKE:-make}
git rev-parse -q --verify HEAD >"$tmp/head" 2>/dev/null || {
    echo 'SKIPPED make dist and make deb: git is not installed, or this is no repository of its'
    finish
}

dist() { # FOLDER MASK ZONE
    (umask "$2" && TZ=$3 GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=tar.umask GIT_CONFIG_VALUE_0=$2 "$make" SETUP=no BUILD="$tmp/$1" dist)
}
version=$(sed -n 's/.*TN_VERSION "\(.*\)"/\1/p' include/tenon/tenon.h)
tarball=tenon-$version.tar.gz
check 'make dist' dist one 022 UTC
check 'make dist elsewhere' dist two 077 Asia/Kathmandu
check 'the bytes are the same' cmp "$tmp/one/$tarball" "$tmp/two/$tarball"
git ls-tree -r --name-only HEAD | sed "s|^|tenon-$version/|" | LC_ALL=C sort >"$tmp/tracked"
tar -tzf "$tmp/one/$tarball" | grep -v '/$' | LC_ALL=C sort >"$tmp/packed"
check 'it holds what the commit holds' diff "$tmp/tracked" "$tmp/packed"

# What building them takes is said by debian/control.
missing=$(for tool in dpkg-checkbuilddeps lintian; do command -v $tool >/dev/null || echo $tool; done)
[ -n "$missing" ] || missing=$(dpkg-checkbuilddeps 2>&1 | sed 's/.*: //')
# shellcheck disable=SC2086 # in one line
[ -z "$missing" ] || { echo SKIPPED make deb: $missing not installed '(scripts/setup.sh --optional)'; finish; }
holds() { # PACKAGE FILE...: all that it has outside of share/doc
    dpkg-deb -c "$tmp/packages/deb/$1"_*.deb | awk '!/^d/ { print $6 }' | grep -v '^./usr/share/doc/' | LC_ALL=C sort >"$tmp/has"
    shift
    printf './%s\n' "$@" | LC_ALL=C sort | diff - "$tmp/has"
}
documents() { # PACKAGE FILE...: some of share/doc
    dpkg-deb -c "$tmp/packages/deb/$1"_*.deb | awk '{ print $6 }' >"$tmp/has"
    package=$1
    shift
    for file; do grep -qx "./usr/share/doc/$package/$file" "$tmp/has" || { echo "$file"; return 1; }; done
}
libraries=usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH) share=usr/share
# A compiler that takes what was built of the same source before, where no place of the installation is in it: what the
# program is of and what knows places is compiled, and all is linked. What differs from the last commit is not the same.
stand_in() {
    real=$(command -v "$cc") && mkdir "$tmp/path" && sed "s|@REAL|$real|; s|@TREE|$PWD|g; s|@BUILD|$build|g" >"$tmp/path/gcc" <<'END' && chmod 755 "$tmp/path/gcc"
#!/bin/sh
source='' object='' before=''
for word; do
    case $before in -c) source=$word ;; -o) object=$word ;; esac
    before=$word
done
built=@BUILD/obj/${source%.c}.o
case $source in core/*.c | plugins/*.c)
    [ "$built" -nt "@TREE/$source" ] && cmp -s "$source" "@TREE/$source" && ! grep -q 'TN_SYSCONFDIR\|TN_BIN_TO_LIB' "$source" &&
        exec cp "$built" "$object" ;;
esac
exec @REAL "$@"
END
}
case $(basename "$cc")$(cat "$build/flags" 2>/dev/null) in
*sanitize* | *fprofile* | clang*) ;;
*) git diff --quiet HEAD -- include core plugins && stand_in && PATH=$tmp/path:$PATH ;;
esac
# What is looked at here does not depend on how well the compiler optimises.
check 'make deb' env DEB_CFLAGS_APPEND='-O1 -g0' DEB_BUILD_OPTIONS="noautodbgsym parallel=$(nproc)" "$make" SETUP=no BUILD="$tmp/packages" deb
check 'the version is that of the library' test -e "$tmp/packages/deb/tenon_${version}_$(dpkg --print-architecture).deb"
check 'libtenon0 has the library' holds libtenon0 "$libraries/libtenon.so.0" "$libraries/libtenon.so.$version"
# shellcheck disable=SC2046 # one argument for each file
{
    check 'libtenon-dev has what programs and plugins are built with' holds libtenon-dev "$libraries/libtenon.so" \
        "$libraries/pkgconfig/tenon.pc" $(find include/tenon -name '*.h' -printf 'usr/%p\n')
    check 'tenon has the program, its plugins and its settings' holds tenon usr/bin/tenon usr/bin/tenon-serve etc/tenon/kernels.json \
        $(find plugins -name plugin.c -printf '%h\n' | sed "s|^|$libraries/tenon/|; s|\$|.so|") $share/man/man1/tenon.1.gz $share/man/man1/tenon-serve.1.gz \
        $share/bash-completion/completions/tenon $share/zsh/vendor-completions/_tenon
    check 'tenon has the guides and the demo model' documents tenon $(cd docs && echo *.md) examples/demo/model.safetensors
    check 'libtenon-dev has the examples' documents libtenon-dev $(git ls-files 'examples/*')
}
finish
