"""Opening, generating, figures: against the program, bit for bit, and against the goldens of the tree."""

import json
import math
import shutil

import pytest
import tenon
from conftest import TOP, flat, read, write

PROMPT = "And it came to pass"
EXACT = ("--dtype", "f32", "--kernels=none", "-q")


@pytest.fixture(scope="module")
def golden():
    return read(TOP / "tests/data/models/llama/expected.safetensors")


def rows_of(golden, name):
    shape, values = golden[name]
    return [list(values[r * shape[1] : (r + 1) * shape[1]]) for r in range(shape[0])]


def test_facts(demo):
    assert (demo.model_type, demo.vocab, demo.hidden, demo.layers, demo.dtype, demo.device) == (
        "qwen3_moe",
        2048,
        192,
        4,
        "f32",
        "cpu",
    )
    assert demo.folder == str(TOP / "models/demo")
    assert "Qwen3MoeForCausalLM" in repr(demo)


def test_greedy(llama, golden):
    want = list(golden["greedy"][1])
    result = llama.generate(rows_of(golden, "input_ids"), max_tokens=len(want), temperature=0, ignore_eos=True)
    assert result.ids == want and result.text is None and result.stop == "length"


def test_text(demo, program):
    said = json.loads(program("run", demo.folder, PROMPT, "-n", 24, "--temperature", 0, "--json", *EXACT).stdout)
    result = demo.generate(PROMPT, max_tokens=24, temperature=0)
    assert result.ids == said["tokens"] and result.text == said["text"] and str(result) == said["text"]
    tokens = list(demo.stream(PROMPT, max_tokens=24, temperature=0))
    assert [t.id for t in tokens] == result.ids and "".join(t.text for t in tokens) == result.text
    assert demo.decode(demo.encode(PROMPT)) == PROMPT


@pytest.mark.parametrize(
    "drawing",
    [dict(seed=7), dict(seed=8, temperature=1.5, top_k=0, top_p=1.0), dict(seed=9, repetition_penalty=1.3, min_p=0.1)],
)
def test_drawing(demo, program, drawing):
    """What generation_config.json says counts where nothing is given, and a penalty sees all that came."""
    options = [x for k, v in drawing.items() for x in (f"--{k.replace('_', '-')}", v)]
    said = json.loads(program("run", demo.folder, PROMPT, "-n", 30, *options, "--json", *EXACT).stdout)
    assert demo.generate(PROMPT, max_tokens=30, **drawing).ids == said["tokens"]


def test_seeds_differ(demo):
    assert len({tuple(demo.generate(PROMPT, max_tokens=20, temperature=2.0).ids) for _ in range(4)}) > 1


def test_stop(demo):
    whole = demo.generate(PROMPT, max_tokens=24, temperature=0).text
    stop = whole[20:24]
    result = demo.generate(PROMPT, max_tokens=24, temperature=0, stop=stop)
    assert result.stop == "stop" and result.text == whole[: whole.index(stop)]
    pieces = list(demo.stream(PROMPT, max_tokens=24, temperature=0, stop=[stop, "never"]))
    assert "".join(t.text for t in pieces) == result.text and len(pieces) == len(result.ids)
    held = whole[-3:] + "never"  # the text ends in what may begin a stop text: it comes all the same
    assert demo.generate(PROMPT, max_tokens=24, temperature=0, stop=held).text == whole


def test_ends(demo, tmp_path):
    result = demo.generate([1, 2, 3], max_tokens=100, temperature=0, context=10)
    assert result.stop == "context" and len(result.ids) == 8
    assert (
        demo.generate([1] * 510, max_tokens=50, temperature=0, ignore_eos=True).stop == "context"
    )  # it is made for 512
    want = demo.generate(PROMPT, max_tokens=12, temperature=0)
    shutil.copytree(demo.folder, tmp_path / "m")
    for name in ("config.json", "generation_config.json"):
        said = json.loads((tmp_path / "m" / name).read_text())
        (tmp_path / "m" / name).write_text(json.dumps({**said, "eos_token_id": want.ids[5]}))
    with tenon.Model(tmp_path / "m", dtype="f32", kernels="none") as model:
        assert model.generate(PROMPT, max_tokens=12, temperature=0)[::2] == (want.ids[:6], "eos")
        assert [t.id for t in model.stream(PROMPT, max_tokens=12, temperature=0)] == want.ids[:6]
        assert model.generate(PROMPT, max_tokens=12, temperature=0, ignore_eos=True) == want


def test_left_streams(demo):
    want = demo.generate(PROMPT, max_tokens=12, temperature=0).ids
    for left in range(4):
        stream = demo.stream(PROMPT, max_tokens=12, temperature=0)
        assert [next(stream).id for _ in range(left)] == want[:left]
        assert demo.generate(PROMPT, max_tokens=12, temperature=0).ids == want
    a, b = (demo.stream(PROMPT, max_tokens=12, temperature=0) for _ in range(2))
    assert [(x.id, y.id) for x, y in zip(a, b)] == [(i, i) for i in want]
    assert list(a) == [] and list(b) == []


def test_logits(llama, golden, program, tmp_path):
    ids = rows_of(golden, "input_ids")
    longer = [ids[0] * 15, ids[0][::-1] * 15]  # more than are computed at once
    for rows in (ids, longer):
        write(tmp_path / "in", input_ids=rows)
        assert (
            program(
                "logits", llama.folder, "--input", tmp_path / "in", "--output", tmp_path / "out", "--hidden", *EXACT
            ).returncode
            == 0
        )
        said = read(tmp_path / "out")
        out, hidden = llama.logits(rows), llama.embeddings(rows)
        assert (out.shape, hidden.shape) == (said["logits"][0], said["hidden.2"][0])
        if rows is ids:
            assert flat(out.tolist()) == list(said["logits"][1]) and flat(hidden.tolist()) == list(said["hidden.2"][1])
        else:  # sums of other pieces of a text may be other sums: as far apart as roundings of the largest value
            for got, want in ((out, said["logits"][1]), (hidden, said["hidden.2"][1])):
                assert max(abs(a - b) for a, b in zip(flat(got.tolist()), want)) <= 2**-16 * max(map(abs, want))
    one = llama.logits(ids[0])
    assert one.shape == (1, len(ids[0]), llama.vocab)
    want, largest = golden["logits"][1], max(map(abs, golden["logits"][1]))
    assert max(abs(a - b) for a, b in zip(flat(one.tolist()), want)) <= 2**-16 * largest


def test_mask(llama):
    tokens, padded = [5, 6, 7, 8], [0, 0, 5, 6, 7, 8]
    out = llama.logits([padded, [9, 10, 11, 12, 13, 14]], mask=[[0, 0, 1, 1, 1, 1], [1] * 6]).tolist()
    alone = llama.logits(tokens).tolist()
    largest = max(map(abs, flat(alone)))
    assert max(abs(a - b) for a, b in zip(flat(out[0][2:]), flat(alone))) <= 2**-16 * largest
    assert flat(llama.logits(padded).tolist()[0][2:]) != flat(alone)


def test_perplexity(demo, program, tmp_path):
    text = (TOP / "models/demo/heldout.txt").read_text()[:3000]
    (tmp_path / "text").write_text(text)
    said = json.loads(program("perplexity", demo.folder, tmp_path / "text", "--json", "--context", 100, *EXACT).stdout)
    assert math.isclose(demo.perplexity(text, window=100), said["perplexity"], rel_tol=1e-9)
    assert demo.perplexity([5, 6, 7], window=2**62) == demo.perplexity([5, 6, 7])
    assert math.isclose(demo.perplexity(demo.encode(text, special=False), window=100), said["perplexity"], rel_tol=1e-9)


def test_chat(tmp_path, demo):
    shutil.copytree(demo.folder, tmp_path / "m")
    (tmp_path / "m/chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}{{ tone }}"
    )
    with tenon.Model(tmp_path / "m", dtype="f32", kernels="none") as model:
        want = demo.generate("user: Hello\nassistant:", max_tokens=12, temperature=0)
        assert model.chat("Hello", max_tokens=12, temperature=0) == want
        messages = [{"role": "user", "content": "Hello"}]
        assert [t.id for t in model.chat(messages, max_tokens=12, temperature=0, stream=True)] == want.ids
        assert model.chat(messages, max_tokens=12, temperature=0, variables={"tone": " Yea"}) == demo.generate(
            "user: Hello\nassistant: Yea", max_tokens=12, temperature=0
        )
        begun = [*messages, {"role": "assistant", "content": "And it"}]
        assert model.chat(begun, max_tokens=12, temperature=0) == demo.generate(
            "user: Hello\nassistant: And it", max_tokens=12, temperature=0
        )
        for bad, words in (
            ([], "none"),
            ([{"content": "x"}], "role"),
            ([{"role": "user", "content": [{"type": "image"}]}], "no text"),
        ):
            with pytest.raises(tenon.InputError, match=words):
                model.chat(bad)
    with pytest.raises(tenon.InputError, match="template"):
        demo.chat("Hello")


def test_kernels(tmp_path):
    calls = []
    with tenon.Model(TOP / "models/demo", progress=lambda *a: calls.append(a)) as model:
        assert "npu_fused_rmsnorm" in model.kernels and calls and all(0 <= done <= total for _, done, total in calls)
        table = model.explain()
        assert "input_layernorm" in table and "npu_fused_rmsnorm" in table and table != model.explain("none")
        assert json.loads(model.explain(format="json"))
        rows = model.verify("npu_fused_rmsnorm")
        assert rows and all(
            r["kernel"] == "npu_fused_rmsnorm" and r["passed"] and r["largest_error"] <= 1 for r in rows
        )
        with pytest.raises(tenon.KernelError, match="npu_no_such"):
            model.verify("npu_no_such")
        with pytest.raises(ValueError, match="format"):
            model.explain(format="xml")
        eager = tenon.Model(TOP / "models/demo", kernels="none")
        assert eager.kernels != model.kernels


def test_closed(llama):
    with tenon.Model(llama.folder, kernels="none") as model:
        stream = model.stream([1, 2, 3], temperature=0, ignore_eos=True)
        next(stream)
        out = model.logits([1, 2, 3])
    values = out.tolist()
    for use in (
        lambda: model.generate([1]),
        lambda: model.logits([1]),
        lambda: next(stream),
        lambda: model.explain(),
        lambda: model.perplexity([1, 2]),
    ):
        with pytest.raises(tenon.UsageError, match="closed"):
            use()
    model.close()
    assert model.vocab == 264 and out.tolist() == values
