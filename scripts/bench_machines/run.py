#!/usr/bin/env python3
"""Models cut over two ranks of one thread beside one process of two threads, in turns: what make bench-machines runs.

In each round every way runs once for each model, as processes of their own. Figures are medians over the rounds. Then, for each
network of --networks, messages are made as late as it would (tests/slow_mpi), and what a token and a prompt take is put beside
what tenon inspect --network foretells. Ranks spin while they are late: this wants two processors that do nothing else. What was
measured stays in BUILD/bench/machines.jsonl; the tables go to BUILD/bench-machines.md and, with --write, between the markers of
the page."""
import json
import os
import shutil
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench_peers"))
from common import Failed, Files, add_line, be_urgent, begin_arguments, end_with_children, lines_of, output_of, say, write_page  # noqa: E402

KINDS = ("tensor", "sums")
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
       "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}


def arguments():
    p = begin_arguments(__doc__)
    p.add_argument("--models", default="qwen3-0.6b,moe-1.5b", help="names that make_checkpoint --like knows, or folders")
    p.add_argument("--networks", default="200,0.11 20,1.1 3,2.9", help="microseconds of a message and GB/s, of each")
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--decode", type=int, default=32)
    p.add_argument("--rounds", type=int, default=5)
    return p.parse_args()


class Bench(Files):
    def __init__(self, options):
        super().__init__(options.build)
        self.o = options
        self.results = self.path("bench", "machines.jsonl")

    def folder(self, model):
        return model if os.path.isdir(model) else self.checkpoint(model)

    def bench(self, model, kind=None, network=None):
        """Seconds of a token and of a prompt."""
        command = [self.path("tenon"), "bench", self.folder(model), "--prompt", str(self.o.prompt), "--decode",
                   str(self.o.decode), "--repeat", "1", "--kernels=auto", "--against=auto", "--no-measure", "--json", "-q"]
        if kind:
            late = ["env", f"SLOW_MPI_NETWORK={network}", f"LD_PRELOAD={os.path.abspath(self.path('tests', 'slow_mpi.so'))}"]
            command = ["mpirun", "-q", "-n", "2", *(late if network else []), *command, "-t", "1", "--parallel", kind]
        else:
            command += ["-t", "2"]
        found = {}
        for result in json.loads(output_of(command))["results"]:
            found.setdefault(result["phase"], []).append(1 / result["tokens_per_second"])
        return {"decode": statistics.median(found["decode"]), "prompt": statistics.median(found["prompt"]) * self.o.prompt}

    def foretold(self, model, kind, network):
        """Seconds of messages and of all, of a token and of a prompt of 512."""
        said = json.loads(output_of([self.path("tenon"), "inspect", self.folder(model), "--parallel", kind + "=2", "-t", "1",
                                     "--network", network, "--format", "json", "-q"]))
        return {"decode" if call["tokens"] == 1 else "prompt":
                [call["exchange_seconds"], call["exchange_seconds"] + call["compute_seconds"]] for call in said["calls"]}

    def ways(self, networks):
        yield None, None
        for kind in KINDS:
            yield kind, None
            for network in networks:
                yield kind, network

    def measure(self):
        os.makedirs(self.path("bench"), exist_ok=True)
        if os.path.exists(self.results):
            os.remove(self.results)
        networks, models = self.o.networks.split(), self.o.models.split(",")
        messages = output_of(["mpirun", "-q", "-n", "2", self.path("tests", "measure_messages"), self.path("plugins")])
        add_line(self.results, {"messages": json.loads(messages)})
        for number in range(self.o.rounds):
            for model in models:
                ways = list(self.ways(networks))
                turn = number % len(ways)
                for kind, network in ways[turn:] + ways[:turn]:
                    try:
                        took = self.bench(model, kind, network)
                        foretold = self.foretold(model, kind, network) if network else None
                    except (Failed, ValueError, KeyError, statistics.StatisticsError) as error:
                        say(f"{kind or 'one process'}, {network or 'no delays'}, on {model} is left out: {error}")
                        continue
                    add_line(self.results, {"model": os.path.basename(model), "kind": kind, "network": network, **took,
                                            "foretold": foretold, "tokens": self.o.prompt})
                    say(f"round {number + 1}, {model}, {kind or 'one process'}, {network or 'no delays'}: "
                        f"{took['decode'] * 1e3:.1f} ms a token, {took['prompt'] * 1e3:.0f} ms a prompt")

    def write(self):
        page = "\n".join(tables(lines_of(self.results)))
        write_page(page, self.path("bench-machines.md"), "machines: make bench-machines", self.o.write)
        return page


def median(runs, what):
    return statistics.median(run[what] for run in runs)


def tables(lines):
    groups = {}
    for line in lines:
        if "messages" in line:
            m = line["messages"]
            yield (f"Two ranks, shared memory: {m['bytes'] // 1024} KiB of each to the other in {m['us']:.1f} us (best tenth "
                   f"{m['best_tenth_us']:.1f}); a rank that waits for an order takes {100 * m['idle_share']:.1f} % of a processor.")
        else:
            groups.setdefault((line["model"], line["kind"], line["network"]), []).append(line)
    if not groups:
        return
    tokens = next(iter(groups.values()))[0]["tokens"]
    yield ""
    yield "| model | | decode, tokens/s | of one process | " f"prompt of {tokens}, tokens/s | of one process |"
    yield "|---|---|---:|---:|---:|---:|"
    for (model, kind, network), runs in groups.items():
        one = groups.get((model, None, None))
        if network or not one:
            continue
        cells = []
        for what, count in (("decode", 1), ("prompt", tokens)):
            took = median(runs, what)
            cells += [f"{count / took:.1f}", f"{median(one, what) / took:.2f}" if kind else ""]
        yield f"| {model} | {kind + ', 2 ranks of 1 thread' if kind else 'one process, 2 threads'} | {' | '.join(cells)} |"
    yield ""
    yield "With delays, ms: what a token takes, what `inspect --network` says at least, and the part of messages in both (measured: what it takes longer than without)."
    yield ""
    yield "| model | | network, us, GB/s | a token | foretold | messages | foretold |"
    yield "|---|---|---|---:|---:|---:|---:|"
    for (model, kind, network), runs in groups.items():
        plain = groups.get((model, kind, None))
        if not network or not plain:
            continue
        took = median(runs, "decode")
        exchange, whole = (statistics.median(run["foretold"]["decode"][i] for run in runs) for i in (0, 1))
        yield (f"| {model} | {kind} | {network} | {took * 1e3:.1f} | {whole * 1e3:.1f} | "
               f"{(took - median(plain, 'decode')) * 1e3:.2f} | {exchange * 1e3:.2f} |")


def main():
    o = arguments()
    end_with_children()
    if o.urgent:
        be_urgent()
    bench = Bench(o)
    if not o.tables and (not shutil.which("mpirun") or not os.path.exists(bench.path("plugins", "mpi", "open_mpi.so"))):
        sys.exit("bench_machines: Open MPI is not installed, or the build has no plugins/mpi/open_mpi.so (scripts/setup.sh)")
    os.environ.update(MPI)
    if not o.tables:
        bench.measure()
    print(bench.write())
    return 0


if __name__ == "__main__":
    sys.exit(main())
