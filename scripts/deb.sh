#!/bin/sh
# Builds packages for Debian from a tarball of make dist, and lets lintian judge them. What they are of lies in debian/.
# Nothing is installed, and no network is used.
# DEB_CFLAGS_APPEND and DEB_BUILD_OPTIONS, where they are set, are those of Debian's tools.
# usage: scripts/deb.sh TARBALL FOLDER
set -u
for each in dpkg-buildpackage:dpkg-dev dh:debhelper lintian:lintian; do
    command -v "${each%:*}" >/dev/null 2>&1 ||
        { echo "tenon: no packages: ${each#*:} is not installed (scripts/setup.sh --optional)" >&2; exit 1; }
done
rm -rf "$2" && mkdir -p "$2" && tar -xzf "$1" -C "$2" && cd "$2" || exit 1
# Variables of the make that called, such as BUILD, which `make clean` removes, are not for this one.
(cd tenon-* && env -i PATH="$PATH" HOME="$HOME" LC_ALL=C.UTF-8 ${DEB_CFLAGS_APPEND:+"DEB_CFLAGS_APPEND=$DEB_CFLAGS_APPEND"} \
    ${DEB_BUILD_OPTIONS:+"DEB_BUILD_OPTIONS=$DEB_BUILD_OPTIONS"} dpkg-buildpackage -us -uc -b) || exit 1
lintian --fail-on error,warning ./*.changes
