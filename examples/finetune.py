"""Trains a LoRA adapter on a text file on the CPU, with kernels in the live model: forward and backward.

    python examples/finetune.py MODEL TEXT.txt --steps 50 --out adapter

MODEL is a folder of transformers or an id of the Hub's. Needs torch, transformers and peft. At the end it prints the
loss, and of each kernel how many calls it performed."""

import argparse
import time

import peft
import tenon
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("model")
    ask.add_argument("text")
    ask.add_argument("--steps", type=int, default=50)
    ask.add_argument("--tokens", type=int, default=512)
    ask.add_argument("--kernels", default="auto", help='as --kernels of tenon; "none" for torch alone')
    ask.add_argument("--out", help="where the adapter is written")
    o = ask.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(o.model)
    base = AutoModelForCausalLM.from_pretrained(o.model, dtype=torch.bfloat16)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    model = peft.get_peft_model(
        base, peft.LoraConfig(r=8, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM")
    )
    model.train()
    with open(o.text, encoding="utf-8") as file:
        ids = tokenizer(file.read(), return_tensors="pt").input_ids[0]
    if len(ids) < 2:
        raise SystemExit(f"{o.text}: too short")
    rows = ids.split(o.tokens)
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)

    with tenon.apply(model, kernels=o.kernels, training=True) as applied:
        print(applied.summary)
        for step in range(o.steps):
            begin, row = time.perf_counter(), rows[step % len(rows)][None]
            loss = model(input_ids=row, labels=row, use_cache=False).loss
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            print(f"step {step}: loss {loss.item():.4f}, {time.perf_counter() - begin:.2f} s")
        calls: dict[str, list[int]] = {}
        for site in applied.sites:
            if site.kernel:
                count = calls.setdefault(site.kernel, [0, 0])
                count[0] += site.calls
                count[1] += site.eager_calls
        for kernel, (taken, left) in calls.items():
            print(f"{kernel}: {taken} calls, {left} left to torch")
    if o.out:
        model.save_pretrained(o.out)


if __name__ == "__main__":
    main()
