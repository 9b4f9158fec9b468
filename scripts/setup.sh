#!/bin/sh
# Makes sure that everything the build uses is installed. Nothing missing: says nothing and costs milliseconds. On
# Debian and its kin the missing packages are installed with apt-get, as root or through sudo. Elsewhere their names are
# printed; where one is needed the exit status is 1, and what the build or its tests can do without is left out.
# usage: scripts/setup.sh [--no-tests | --optional | --emulation | --spared]
#   --no-tests: without what only tests use; --optional: also what only the checks of .ci/run use, and packages for
#   Debian; --emulation: also what scripts/arm64.sh uses; --spared: installs nothing and prints what build and tests can
#   do without, a kind and a name each line
set -u
cc=${CC:-gcc}

# What to look for (a header, a program or a module of Python) and its package on Debian, Fedora, Arch, openSUSE, Alpine.
needed='
program make               make           make                  make        make             make
program pkg-config         pkg-config     pkgconf-pkg-config    pkgconf     pkg-config       pkgconf
header  stdio.h            libc6-dev      glibc-devel           glibc       glibc-devel      musl-dev
header  ltdl.h             libltdl-dev    libtool-ltdl-devel    libtool     libtool          libtool
header  jansson.h          libjansson-dev jansson-devel         jansson     libjansson-devel jansson-dev
header  dnnl.h             libdnnl-dev    onednn-devel          onednn      onednn-devel     onednn-dev
header  pcre2.h            libpcre2-dev   pcre2-devel           pcre2       pcre2-devel      pcre2-dev
header  utf8proc.h         libutf8proc-dev utf8proc-devel       libutf8proc libutf8proc-devel utf8proc-dev
header  zlib.h             zlib1g-dev     zlib-devel            zlib        zlib-devel       zlib-dev
header  gelf.h             libelf-dev     elfutils-libelf-devel libelf      libelf-devel     elfutils-dev
header  histedit.h         libedit-dev    libedit-devel         libedit     libedit-devel    libedit-dev
header  png.h              libpng-dev     libpng-devel          libpng      libpng16-devel   libpng-dev
header  jpeglib.h          libjpeg-dev libjpeg-turbo-devel libjpeg-turbo libjpeg8-devel libjpeg-turbo-dev
header  webp/decode.h      libwebp-dev    libwebp-devel         libwebp     libwebp-devel    libwebp-dev
header  sndfile.h          libsndfile1-dev libsndfile-devel     libsndfile  libsndfile-devel libsndfile-dev
header  soxr.h             libsoxr-dev    soxr-devel            libsoxr     soxr-devel       soxr-dev
header  openssl/evp.h      libssl-dev     openssl-devel         openssl     libopenssl-devel openssl-dev
'
needed_by_tests='
header  check.h            check          check-devel           check       check-devel      check-dev
'
spared='
header  seccomp.h          libseccomp-dev libseccomp-devel      libseccomp  libseccomp-devel libseccomp-dev
header  microhttpd.h       libmicrohttpd-dev libmicrohttpd-devel libmicrohttpd libmicrohttpd-devel libmicrohttpd-dev
'
spared_by_tests='
program g++                g++            gcc-c++               gcc         gcc-c++          g++
program dot                graphviz       graphviz              graphviz    graphviz         graphviz
program gnuplot            gnuplot-nox    gnuplot               gnuplot     gnuplot          gnuplot
program groff              groff-base     groff-base            groff       groff            groff
program zsh                zsh            zsh                   zsh         zsh              zsh
program abidiff            abigail-tools  libabigail            libabigail  libabigail-tools libabigail
program python3            python3        python3               python      python3          python3
program clang-tidy         clang-tidy     clang-tools-extra     clang       clang            clang-extra-tools
'
optional='
program chromium           chromium       chromium              chromium    chromium         chromium
program clang              clang          clang                 clang       clang            clang
program clang-format       clang-format   clang-tools-extra     clang       clang            clang-extra-tools
program cppcheck           cppcheck       cppcheck              cppcheck    cppcheck         cppcheck
program mpicc              libopenmpi-dev openmpi-devel         openmpi     openmpi4-devel   openmpi-dev
program mpirun             openmpi-bin    openmpi               openmpi     openmpi4         openmpi
program llvm-cov           llvm           llvm                  llvm        llvm             llvm
program python3-config     python3-dev    python3-devel         python      python3-devel    python3-dev
module  ensurepip          python3-venv   python3               python      python3          python3
program shellcheck         shellcheck     ShellCheck            shellcheck  ShellCheck       shellcheck
program valgrind           valgrind       valgrind              valgrind    valgrind         valgrind
'
# These are made on Debian and its kin alone.
packages_for_debian='
program dh                 debhelper
program lintian            lintian
program mmdebstrap         mmdebstrap
'
emulation='
program aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu gcc-aarch64-linux-gnu aarch64-linux-gnu-gcc cross-aarch64-gcc12 gcc-aarch64-none-elf
program qemu-aarch64-static qemu-user-static qemu-user-static-aarch64 qemu-user-static qemu-linux-user qemu-aarch64
'
# The compiler. oneDNN uses the OpenMP runtime of gcc, which clang brings along, too.
case $cc in
*clang*) needed="
program $cc                clang          clang                 clang       clang            clang
$needed" ;;
gcc) needed="
program gcc                gcc            gcc                   gcc         gcc              gcc
$needed" ;;
esac
[ "${1:-}" = --no-tests ] || needed="$needed$needed_by_tests" spared="$spared$spared_by_tests"
[ "${1:-}" = --optional ] && spared="$spared$optional$(command -v dpkg >/dev/null && echo "$packages_for_debian")"
[ "${1:-}" = --emulation ] && needed="$needed$emulation"
[ "${1:-}" = --spared ] && { echo "$spared" | awk 'NF { print $1, $2 }' && exit; }

has_headers() { # in one go, since starting the compiler is what takes time
    for h in "$@"; do
        [ "$h" = pcre2.h ] && echo '#define PCRE2_CODE_UNIT_WIDTH 8'
        echo "#include <$h>"
    done | "$cc" -E -x c - >/dev/null 2>&1
}

has() {
    case $1 in
    program) command -v "$2" >/dev/null 2>&1 ;;
    header) [ -n "$have_headers" ] || has_headers "$2" ;;
    module) python3 -c "import $2" >/dev/null 2>&1 ;;
    esac
}

# Column n of the rows of a list that are missing; $2: 3 for Debian to 7 for Alpine.
missing() {
    echo "$1" | while read -r kind name debian fedora arch suse alpine; do
        [ -n "$kind" ] || continue
        has "$kind" "$name" || case $2 in
        3) echo "$debian" ;; 4) echo "$fedora" ;; 5) echo "$arch" ;; 6) echo "$suse" ;; 7) echo "$alpine" ;;
        esac
    done | sort -u | tr '\n' ' '
}

# shellcheck disable=SC2046 # one argument for each header
have_headers=$(has_headers $(echo "$needed$spared" | awk '$1 == "header" { print $2 }') && echo all)
[ -n "$(missing "$needed$spared" 3)" ] || exit 0

name_packages() { # LIST WHAT-ABOUT-THEM
    echo "tenon: these packages are missing, and $2:"
    echo "  Debian, Ubuntu  apt-get install $(missing "$1" 3)"
    echo "  Fedora          dnf install $(missing "$1" 4)"
    echo "  Arch            pacman -S $(missing "$1" 5)"
    echo "  openSUSE        zypper install $(missing "$1" 6)"
    echo "  Alpine          apk add $(missing "$1" 7)"
} >&2

# The end, where there is nothing more to try: WHY.
go_on() {
    [ -z "$(missing "$needed" 3)" ] || { name_packages "$needed$spared" "$1. Install them and run this again"; exit 1; }
    [ -z "$(missing "$spared" 3)" ] || name_packages "$spared" "$1. It goes on without; SETUP=no asks no more"
    exit 0
}

command -v apt-get >/dev/null 2>&1 || go_on 'this system has no apt-get'
as_root=
if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || go_on 'installing them takes root or sudo without a password'
    as_root='sudo -n'
fi
apt() {
    # shellcheck disable=SC2086 # as_root is a command with its option, or nothing
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" >&2
}
# The lists of packages may be old or absent: they are fetched only when the first try fails.
install() {
    [ $# -eq 0 ] || {
        echo "tenon: installing $*" >&2
        apt install --no-install-recommends "$@" 2>/dev/null ||
            { apt update && apt install --no-install-recommends "$@"; }
    }
}
# One name that this system does not have keeps all others back.
why='apt-get installed them without error, but they cannot be used'
# shellcheck disable=SC2046 # one argument for each package
install $(missing "$needed$spared" 3) || {
    why='apt-get could not install them'
    install $(missing "$needed" 3)
}
have_headers=
go_on "$why"
