"""Measures a saved tiny model: losses against an n-gram baseline, chat accuracy, tool-call format, needle recall,
MTP acceptance, weight-quantisation sensitivity, and samples.  Generation runs through transformers (cached path)."""

import argparse
import json
import random
import re

import gen_data as G
import numpy as np
import torch
from train import Data

import model as M


class NGram:
    """Interpolated absolute discounting over packed 12-bit tokens, orders 1..n."""

    def __init__(self, t, n, V):
        self.n, self.V, self.tabs = n, V, []
        t = t.astype(np.uint64)
        for k in range(1, n + 1):
            key = np.zeros(len(t) - k + 1, np.uint64)
            for j in range(k):
                key = (key << np.uint64(12)) | t[j : len(t) - k + 1 + j]
            u, c = np.unique(key, return_counts=True)
            h = u >> np.uint64(12)
            hu, first = np.unique(h, return_index=True)
            self.tabs.append((u, c, hu, np.add.reduceat(c, first), np.diff(np.append(first, len(u)))))

    def logp(self, t, D=0.75):
        t = t.astype(np.uint64)
        m = len(t)
        p = np.full(m, 1.0 / self.V)
        for k in range(1, self.n + 1):
            u, c, hu, hc, hn = self.tabs[k - 1]
            key = np.zeros(m, np.uint64)
            for j in range(k):
                key = (key << np.uint64(12)) | np.concatenate([np.zeros(k - 1 - j, np.uint64), t[: m - (k - 1 - j)]])
            h = key >> np.uint64(12)
            i = np.minimum(np.searchsorted(hu, h), len(hu) - 1)
            ok = hu[i] == h
            a = np.minimum(np.searchsorted(u, key), len(u) - 1)
            cnt = np.where(u[a] == key, c[a], 0)
            q = np.maximum(cnt - D, 0) / hc[i] + D * hn[i] / hc[i] * p
            p = np.where(ok, q, p)
        return np.log(p)


def fake_quant(w, bits, block=32):
    """Symmetric round-to-nearest in blocks of 32 along rows."""
    b = w.float().reshape(-1, block)
    s = b.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1) + 1e-12
    return ((b / s).round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) * s).reshape(w.shape)


@torch.no_grad()
def losses(model, stem, S=1024, n=12, sparse=True):
    d, out, mine = Data(stem, S), [], []
    for _ in range(n):
        ids, w = d.batch(1)
        r = model(ids, w, sparse=sparse)
        a = w[0, 1:-1] == 1
        acc = r["mtp_hit"][:-1] == r["hit"][1:]
        out.append(
            (
                r["tok"].mean(),
                r["tok"][a].mean(),
                acc.float().mean(),
                acc[a[1:]].float().mean(),
                r["mtp_tok"].mean(),
                (r["hit"] == ids[0, 1:-1]).float().mean(),
            )
        )
        mine.append(ids[0].numpy())
        if d.pos == 0 or (len(mine) > 1 and mine[-1][0] == mine[0][0] and (mine[-1] == mine[0]).all()):
            break
    m = torch.tensor([[float(x) for x in o] for o in out]).mean(0).tolist()
    return dict(
        zip(
            ("loss", "answer_loss", "mtp_accept", "mtp_accept_answers", "mtp_loss", "top1"),
            (round(x, 4) for x in m),
            strict=False,
        )
    ), mine


def parse_dsml(text):
    """Strict reading of one tool_calls block; None when the format is broken."""
    D = G.DS
    m = re.fullmatch(rf"(?P<pre>.*?)\n\n<{D}tool_calls>\n(?P<body>.*)</{D}tool_calls>", text, re.S)
    if not m:
        return None
    calls, rest = [], m["body"]
    while rest:
        c = re.match(
            rf'<{D}invoke name="([^"]+)">\n'
            rf'((?:<{D}parameter name="[^"]+" string="(?:true|false)">[^<]*</{D}parameter>\n)*)'
            rf"</{D}invoke>\n",
            rest,
        )
        if not c:
            return None
        args = {}
        for k, s, v in re.findall(
            rf'<{D}parameter name="([^"]+)" string="(true|false)">([^<]*)</{D}parameter>\n', c[2]
        ):
            try:
                args[k] = v if s == "true" else json.loads(v)
            except ValueError:
                return None
        calls.append((c[1], args))
        rest = rest[c.end() :]
    return calls


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("dir")
    ap.add_argument("--data", default="data")
    ap.add_argument("--train", default="train")
    ap.add_argument("--wordnet")
    ap.add_argument("--n", type=int, default=40)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--parts", default="loss,ngram,quant,chat,tool,needle,samples")
    ap.add_argument("--out")
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    parts, res = a.parts.split(","), {}
    from safetensors.torch import load_file
    from tokenizers import Tokenizer
    from transformers import DeepseekV4ForCausalLM

    tok = Tokenizer.from_file(f"{a.dir}/tokenizer.json")
    cfg = M.Cfg.load(f"{a.dir}/config.json")
    model = M.import_state(M.TinyV4(cfg), load_file(f"{a.dir}/model.safetensors")).eval()
    hf = DeepseekV4ForCausalLM.from_pretrained(a.dir, dtype=torch.float32, attn_implementation="eager").eval()

    def show(k, v):
        return (res.__setitem__(k, v), print(k, json.dumps(v, ensure_ascii=False), flush=True))

    kinds = ["val"] + [f"val_{k}" for k in ("story", "prose", "chat", "tool", "needle")]

    if "loss" in parts:
        model.dtype = torch.float32
        ng = NGram(np.fromfile(f"{a.data}/{a.train}.bin", np.uint16), 5, cfg.vocab_size) if "ngram" in parts else None
        for k in kinds:
            r, seqs = losses(model, f"{a.data}/{k}", n=24 if k == "val" else 10)
            if ng:
                r["ngram5_loss"] = round(float(np.mean([-ng.logp(s)[1:-1].mean() for s in seqs])), 4)
            text = tok.decode([int(x) for s in seqs for x in s], skip_special_tokens=False)
            r["bits_per_byte"] = round(r["loss"] / np.log(2) * sum(len(s) for s in seqs) / len(text.encode()), 4)
            show(k, r)
        del ng
    if "quant" in parts:
        d = Data(f"{a.data}/val", 1024)
        batch = [d.batch(1) for _ in range(6)]

        def run(m):
            with torch.no_grad():
                return torch.cat(
                    [hf(ids[:, :-2], use_cache=False).logits[0].log_softmax(-1) for ids, _ in batch]
                ), torch.cat([ids[0, 1:-1] for ids, _ in batch])

        ref, y = run(hf)
        keep = {n: p.detach().clone() for n, p in hf.named_parameters()}

        def nll(lp):
            return float(-lp.gather(1, y[:, None]).mean())

        q = {"fp32": {"loss": round(nll(ref), 4)}}
        for name, pick, bits in [
            ("bf16", lambda n: True, 0),
            ("all_q8", lambda n: True, 8),
            ("experts_q4", lambda n: ".experts." in n, 4),
            ("all_q4", lambda n: True, 4),
            ("experts_q3", lambda n: ".experts." in n, 3),
            ("experts_q2", lambda n: ".experts." in n, 2),
        ]:
            with torch.no_grad():
                for n, p in hf.named_parameters():
                    big = p.dim() >= 2 and not any(x in n for x in ("hc", "position_bias", "gate.weight"))
                    p.copy_(
                        keep[n].bfloat16().float()
                        if big and bits == 0
                        else fake_quant(keep[n], bits)
                        if big and pick(n)
                        else keep[n]
                    )
            lp, _ = run(hf)
            q[name] = {
                "loss": round(nll(lp), 4),
                "kl": round(float((ref.exp() * (ref - lp)).sum(-1).mean()), 5),
                "same_top1": round(float((ref.argmax(-1) == lp.argmax(-1)).float().mean()), 4),
            }
        with torch.no_grad():
            for n, p in hf.named_parameters():
                p.copy_(keep[n])
        show("quant", q)

    @torch.no_grad()
    def gen(prompt, n=120, temp=0.0, seed=0):
        ids = tok.encode(prompt, add_special_tokens=False).ids
        torch.manual_seed(seed)
        o = hf.generate(
            torch.tensor([ids]),
            max_new_tokens=n,
            do_sample=temp > 0,
            temperature=temp or None,
            top_p=0.95 if temp else None,
            eos_token_id=1,
            pad_token_id=2,
        )[0, len(ids) :].tolist()
        return tok.decode(o[:-1] if o and o[-1] == 1 else o, skip_special_tokens=False)

    @torch.no_grad()
    def greedy(doc):
        """Per answer segment: does greedy decoding reproduce it?  (It does iff every forced argmax is the target.)
        The first token (<think> or </think>) belongs to the prompt.
        Returns [(text, exact, tail_exact)], prompt length."""
        enc = [tok.encode(t, add_special_tokens=False).ids for t, _ in doc]
        ids = [i for part in enc for i in part]
        S = (len(ids) + 127) // 128 * 128
        hit = model(torch.tensor([ids + [2] * (S + 2 - len(ids))]), torch.ones(1, S + 2), sparse=True, mtp=False)[
            "hit"
        ].tolist()
        out, p, first = [], 0, None
        for (t, w), e in zip(doc, enc, strict=False):
            if w == 1:
                out.append((t, hit[p : p + len(e) - 1] == e[1:], hit[p + len(e) - 6 : p + len(e) - 1] == e[-5:]))
                first = first or p
            p += len(e)
        return out, first

    r = random.Random(4242)
    G.glosses(a.wordnet) if a.wordnet else []
    model.dtype = torch.bfloat16
    if "chat" in parts:
        hit, tot, _wrong = {}, {}, []
        for _i in range(a.n * 12):
            q, ans, _ = G.qa(r, [])
            if "\n" in ans:
                continue  # free lists have no single right answer
            kind = (
                "sum"
                if re.search(r"\d+ [+-] \d+", q)
                else "product"
                if " * " in q
                else "json"
                if "JSON" in q
                else "who"
                if " has the " in q
                else "copy"
                if ans in q and ": " in q and "," not in q
                else "capital"
                if "capital" in q
                else "list words"
                if " list" in q
                else "number"
                if "number" in q or "spell" in q
                else "other facts"
            )
            ((t, ok, tail),) = greedy(G.chat([(q, ans)]))[0]
            ok = tail if kind in ("sum", "product") else ok
            tot[kind] = tot.get(kind, 0) + 1
            hit[kind] = hit.get(kind, 0) + ok
        show(
            "chat",
            {
                "accuracy": round(sum(hit.values()) / sum(tot.values()), 3),
                "by_kind": {k: f"{hit[k]}/{tot[k]}" for k in sorted(tot)},
            },
        )
    if "tool" in parts:
        call = final = n = 0
        for _i in range(a.n * 3):
            res_ = list(greedy(G.tool_chat(r, []))[0])[-2:]
            n += 1
            call += res_[0][1]
            final += res_[1][1]
        fmt = name = m = 0
        bad = []
        for _i in range(max(6, a.n // 3)):
            d = G.tool_chat(r, [])
            texts = [s for s, _ in d]
            i0 = len(texts) - 4
            want = parse_dsml(texts[i0][: -len(G.EOS)].split(G.ETH)[-1])
            o = gen("".join(texts[:i0]) + G.ETH, 160)
            got = parse_dsml(o)
            m += 1
            fmt += got is not None
            name += bool(got) and [c[0] for c in got] == [c[0] for c in want]
            if got != want and len(bad) < 5:
                bad.append((texts[i0 - 2], o))
        show(
            "tool",
            {
                "exact_call": f"{call}/{n}",
                "exact_final_answer": f"{final}/{n}",
                "generated_well_formed": f"{fmt}/{m}",
                "generated_right_tools": f"{name}/{m}",
                "wrong": bad,
            },
        )
    if "needle" in parts:
        tab = {}
        for budget in (300, 1000, 2500, 5500, 12000):
            ok, L = 0, []
            for _i in range(max(8, a.n // 2)):
                d = G.needle(r, budget)
                (x, *_), p = greedy(d[:4])
                L.append(p)
                ok += x[1]
            tab[int(np.mean(L))] = f"{ok}/{len(L)}"
        show("needle_by_prompt_tokens", tab)
    if "samples" in parts:
        S = []
        for p, t in [
            (G.USER + "Tell me a story about a fox and a silver bell." + G.BOT + G.ETH, 0.7),
            (G.USER + "Tell me a story." + G.BOT + G.ETH, 0.8),
            ("The Owl and the Old Map\n\n", 0.7),
            (G.USER + "Who are you?" + G.BOT + G.ETH, 0),
            (G.USER + "What is the capital of Norway?" + G.BOT + G.TH, 0),
            (G.USER + "What is 27 + 15?" + G.BOT + G.TH, 0),
            (G.USER + "Write this as JSON: name Anna, age 7, city Oslo" + G.BOT + G.ETH, 0),
            (G.USER + "What is a bridge?" + G.BOT + G.ETH, 0),
            (
                G.tool_system(["get_weather", "set_timer"])
                + G.USER
                + "What is the weather in Paris in celsius?"
                + G.BOT
                + G.ETH,
                0,
            ),
            ("It is a truth universally acknowledged,", 0.8),
            ("'Curiouser and curiouser!' cried Alice", 0.8),
        ]:
            o = gen(G.BOS + p, 260, t)
            S.append({"prompt": p[-90:], "temperature": t, "text": o})
            print("###", p[-90:], "\n" + o + "\n", flush=True)
        res["samples"] = S
    if a.out:
        with open(a.out, "w") as f:
            json.dump(res, f, indent=1, ensure_ascii=False)


if __name__ == "__main__":
    main()
