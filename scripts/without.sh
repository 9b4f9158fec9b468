#!/bin/sh
# Builds and tests as on a machine that lacks all that scripts/setup.sh calls spared: their headers are errors, pkg-config
# knows no library of their names, and their programs are in no folder of PATH. Nothing is uninstalled. Plugins, and the
# objects of sources that see no difference, are those of the folder BUILD. Ends with "N passed, N failed".
# usage: scripts/without.sh MAKE FOLDER BUILD TEST...     names of test programs, or of scripts in tests/build
set -u
make=$1 place=$2 build=$3
mkdir -p "$place/tests" || exit 1
folder=$(cd "$place" && pwd)
shift 3
spared=$(scripts/setup.sh --spared) || exit 1
rm -rf "$folder/path" "$folder/include"
mkdir -p "$folder/path/first" "$folder/include" || exit 1

# The folders of PATH one by one, so that what looks for the next program of its own name finds it.
real=$(command -v pkg-config) path=$folder/path/first count=0
IFS=:
for each in $PATH; do
    [ -d "$each" ] || continue
    count=$((count + 1))
    mkdir "$folder/path/$count" && find "$each/" -mindepth 1 -maxdepth 1 -exec ln -s -t "$folder/path/$count" {} + || exit 1
    path=$path:$folder/path/$count
done
unset IFS
for program in $(echo "$spared" | sed -n 's/^program //p'); do
    rm -f "$folder"/path/*/"$program"
done
words='' names=''
for header in $(echo "$spared" | sed -n 's/^header //p'); do
    echo '#error "it is hidden"' >"$folder/include/$header"
    words="$words *${header%.h}*) exit 1 ;;"
    names=${names:+$names|}${header%.h}
done
cat >"$folder/path/first/pkg-config" <<END
#!/bin/sh
for word; do
    case \$word in$words esac
done
exec "$real" "\$@"
END
chmod 755 "$folder/path/first/pkg-config"

# Who includes a header that is hidden, or asks whether its library is there, sees a difference, and who includes that.
rm -rf "$folder/obj" && mkdir "$folder/obj" && cp -R "$build/obj/core" "$build/obj/cli" "$build/obj/tests" "$folder/obj" || exit 1
grep -rliE "^ *#.*($names)" core cli include tests --include='*.[ch]' >"$folder/named"
find "$folder/obj" -name '*.d' -exec grep -lF -f "$folder/named" {} + | sed 's/d$/o/' | xargs -r rm -f

PATH=$path
export PATH
programs='' checks=''
for name in "$@"; do
    case $name in
    *.sh) checks="$checks tests/build/$name" ;;
    *) programs="$programs $place/tests/$name" checks="$checks $place/tests/$name" ;;
    esac
done
# shellcheck disable=SC2086 # one argument for each
$make -s -j"$(nproc)" -o "$place/flags" -o "$place/places" SETUP=no BUILD="$place" OPT=-O1 CFLAGS="-Werror -I$place/include" "$place/tenon" $programs || exit 1
cp -R "$build/plugins" "$build/examples" "$folder" || exit 1
for each in bad_plugins bad_kernels hello_kernel; do cp -R "$build/tests/$each" "$folder/tests" || exit 1; done
# shellcheck disable=SC2086
TENON_BUILD=$folder MAKE="$make" TEST_JOBS=$(nproc) tests/run.sh $checks
