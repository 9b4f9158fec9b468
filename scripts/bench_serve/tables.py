"""The tables of make bench-serve, from the lines that it measured."""
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bench_peers"))

from common import span  # noqa: E402

NAMES = {"tenon": "Tenon", "llama": "llama-server", "openvino": "OpenVINO"}


class Measured:
    """The runs of one model."""

    def __init__(self, lines):
        self.runs = {}
        for line in lines:
            self.runs.setdefault((line["line"], line["side"]), {})[line["round"]] = line["values"]
        self.sides = [s for s in NAMES if any(side == s for _, side in self.runs)]

    def values(self, line, side, key):
        """Of each round."""
        return {number: run[key] for number, run in self.runs.get((line, side), {}).items() if key in run}

    def cell(self, line, side, key, scale=1):
        """A median, and between what it is."""
        values = [v * scale for v in self.values(line, side, key).values()]
        if not values:
            return "–"
        digits = 0 if min(values) >= 99.5 else 1 if min(values) >= 1 else 3
        median = f"{statistics.median(values):.{digits}f}"
        return median if len(values) == 1 else f"{median} ({span(values, digits)})"


def ratio(above, below):
    """The median of the quotients of each round; None: there is no round with both."""
    both = [above[number] / below[number] for number in above if below.get(number)]
    return statistics.median(both) if both else None


def best(each):
    """The most of several sides in each round."""
    return {number: max(values[number] for values in each if number in values) for number in set().union(*each)}


def judged(value, goal, least=True, digits=2):
    """A number, in bold where it misses its goal."""
    if value is None:
        return "–"
    text = f"{value:.{digits}f}"
    return text if goal is None or (value >= goal if least else value <= goal) else f"**{text}**"


def row(m, label, cells, over="", goal=""):
    return "| " + " | ".join([label] + [cells.get(side, "") for side in m.sides] + [over, goal]) + " |"


def everyone(m, line, key, scale=1):
    return {side: m.cell(line, side, key, scale) for side in m.sides}


def quotients(m, above, below, goal, least=True, digits=2):
    """Of two (line, key) of the same side in the same round; Tenon's is held to the goal."""
    each = {s: ratio(m.values(above[0], s, above[1]), m.values(below[0], s, below[1])) for s in m.sides}
    return {s: judged(value, goal if s == "tenon" else None, least, digits) for s, value in each.items()}


def numbers_of_streams(m):
    return sorted({int(line.split()[1]) for line, _ in m.runs if line.startswith("streams ")})


def throughput(m, dense):
    key, counts = "tokens_per_second", numbers_of_streams(m)
    for n in counts:
        line = f"streams {n}"
        peers = [m.values(line, side, key) for side in m.sides if side != "tenon"]
        over = ratio(m.values(line, "tenon", key), best(peers)) if peers else None
        yield row(m, f"{n} stream{'s' * (n > 1)}, tokens/s", everyone(m, line, key), judged(over, 1.3), "≥ 1.3")
    if 1 in counts and 16 in counts:
        cells = quotients(m, ("streams 16", key), ("streams 1", key), 4 if dense else None)
        yield row(m, "16 streams over one", cells, goal="≥ 4" if dense else "")


def beside_bench(m):
    decoding = {number: 1 / step for number, step in m.values("streams 1", "tenon", "step").items()}
    share = ratio(decoding, m.values("bench", "tenon", "decode"))
    if share is not None:
        yield row(m, "`tenon bench --same-bits` decoding, tokens/s", {"tenon": m.cell("bench", "tenon", "decode")})
        yield row(m, "one stream between its tokens over it", {"tenon": judged(share, 0.98)}, goal="≥ 0.98")


def prefix(m, shared):
    if not any(line == "prefix" for line, _ in m.runs):
        return
    yield row(m, f"first token of a prompt of {shared:,} tokens, ms", everyone(m, "prefix", "uncached", 1e3))
    over = ratio(m.values("prefix", "tenon", "cached"), m.values("prefix", "llama", "cached"))
    yield row(m, "the same where another began alike, ms", everyone(m, "prefix", "cached", 1e3), judged(over, 1, least=False),
              "≤ llama-server")
    cells = quotients(m, ("prefix", "cached"), ("prefix", "uncached"), 0.05, least=False, digits=3)
    yield row(m, "the second over the first", cells, goal="≤ 1/20")


def beside(m, long):
    if not any(line == "beside" for line, _ in m.runs):
        return
    yield row(m, f"between tokens beside a prompt of {long:,}: median, ms", everyone(m, "beside", "between", 1e3))
    yield row(m, "and 99 of 100 below, ms", everyone(m, "beside", "between_p99", 1e3))
    yield row(m, "the second over the first", quotients(m, ("beside", "between_p99"), ("beside", "between"), 3, least=False),
              goal="≤ 3")


def masks(m):
    times = {key: list(m.values("mask", "tenon", key).values()) for key in ("mask", "compiled", "vocabulary")}
    if not times["mask"]:
        return
    mask = f"mask of {times['vocabulary'][-1]:,} tokens"
    for label, key, goal in ((mask, "mask", 0.3), ("schema compiled", "compiled", 20)):
        yield row(m, label + ", ms", {"tenon": judged(statistics.median(times[key]), goal, least=False, digits=3)}, goal=f"≤ {goal}")
    yield row(m, "between tokens of one stream, ms", {"tenon": m.cell("mask", "tenon", "plain", 1e3)})
    yield row(m, "the same under a schema, ms", {"tenon": m.cell("mask", "tenon", "formed", 1e3)})


def clients_table(m):
    counts = numbers_of_streams(m)
    if not counts:
        return
    yield ""
    yield "What a client waits for, ms: the first token; then between tokens; medians, and 99 of 100 below."
    yield ""
    yield "| streams | " + " | ".join(NAMES[side] for side in m.sides) + " |"
    yield "|---:|" + "---|" * len(m.sides)
    for n in counts:
        yield f"| {n} | " + " | ".join(wait_text(m, f"streams {n}", side) for side in m.sides) + " |"


def wait_text(m, line, side):
    texts = []
    for key in ("first", "first_p99", "between", "between_p99"):
        values = list(m.values(line, side, key).values())
        if not values:
            return "–"
        texts.append(f"{statistics.median(values) * 1e3:.0f}")
    return f"{texts[0]}, {texts[1]}; {texts[2]}, {texts[3]}"


def model_table(model, lines):
    m, asked = Measured(lines), lines[-1]["asked"]
    yield f"**{model}**"
    yield ""
    yield "| | " + " | ".join(NAMES[side] for side in m.sides) + " | Tenon over the best other | goal |"
    yield "|---|" + "---:|" * (len(m.sides) + 2)
    yield from throughput(m, lines[-1]["dense"])
    yield from beside_bench(m)
    yield from prefix(m, asked["shared"])
    yield from beside(m, asked["long"])
    yield from masks(m)
    yield from clients_table(m)


def page(lines):
    versions = {line["side"]: line["version"] for line in lines}
    named = "; ".join(f"{NAMES[side]} {versions[side]}" for side in NAMES if side in versions)
    rounds = len({line["round"] for line in lines})
    machines = [line["machine"] for line in lines]
    asked, threads = lines[-1]["asked"], sorted({line["threads"] for line in lines})
    yield f"**{machines[-1]['cpu']}**, {time.strftime('%Y-%m-%d', time.gmtime())}; {named}. {threads[-1]} threads, prompts of " \
          f"{asked['prompt']} tokens, answers of {asked['answer']}, {asked['requests']} of each stream; medians of {rounds} " \
          f"round{'s' * (rounds > 1)} in turns, and the least and the most. Before the turns the threads read " \
          f"{span([m['read_gb_per_second'] for m in machines])} GB/s. The clients took up to " \
          f"{100 * max([line['values'].get('client', 0) for line in lines]):.0f} % of a processor."
    for model in dict.fromkeys(line["model"] for line in lines):
        yield ""
        yield from model_table(model, [line for line in lines if line["model"] == model])
