#!/bin/sh
# What scripts/bench_peers.sh, scripts/bench_serve.sh and scripts/bench_train.sh end with: the peers, unless nothing is to be measured, then NAME/run.py.
# usage: scripts/bench_peers/begin.sh NAME BUILD PEERS [ARGUMENT...]     PEERS: what install.sh knows, with blanks between
set -eu
name=$1 build=$2 peers=$3
shift 3
command -v python3 >/dev/null || {
    echo "$name: python3 is missing; install it with its venv module (Debian: python3-venv)" >&2
    exit 1
}
case " $* " in
*' --tables '* | *' --help '* | *' -h '*) peers= ;;
esac
for peer in $peers; do
    scripts/bench_peers/install.sh "$build/peers" "$peer"
done
exec python3 "scripts/$name/run.py" "$build" "$@"
