"""Trains the tiny DeepSeek-V4 model on CPU: Muon for matrices, AdamW for the rest, warmup-constant-decay schedule.

The schedule follows --steps (deterministic) or --minutes (wall clock: decay starts at --decay-from of the budget)."""

import argparse
import json
import os
import time

import numpy as np
import torch

import model as M

ADAM = ("embed", "head.weight", "norm", "hc_", "attn_sink", "ape", "gate.weight", "out.", "weights_proj")


@torch.no_grad()
def newton_schulz(g, steps=5):
    x = g.bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return (x.mT if tall else x).float()


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum; parameters of one shape are updated as one batch."""

    def __init__(self, params, lr, momentum=0.95, wd=0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum, "wd": wd})

    @torch.no_grad()
    def step(self):
        for grp in self.param_groups:
            shapes = {}
            for p in grp["params"]:
                if p.grad is None:
                    continue
                buf = self.state[p].setdefault("m", torch.zeros_like(p))
                buf.lerp_(p.grad, 1 - grp["momentum"])
                u = p.grad.lerp(buf, grp["momentum"])
                for q, v in zip(p.view(-1, *p.shape[-2:]).unbind(0), u.view(-1, *p.shape[-2:]).unbind(0), strict=False):
                    shapes.setdefault(q.shape, []).append((q, v))
            for (r, c), qs in shapes.items():
                for i in range(0, len(qs), 16):
                    o = newton_schulz(torch.stack([v for _, v in qs[i : i + 16]]))
                    for (q, _), d in zip(qs[i : i + 16], o.unbind(0), strict=False):
                        q.mul_(1 - grp["lr"] * grp["wd"]).add_(d, alpha=-grp["lr"] * max(1, r / c) ** 0.5)


class Data:
    """Sequences that start at a document start; a document cut at the end of one starts the next."""

    def __init__(self, stem, S, pos=0, device="cpu"):
        self.t, self.w, self.S, self.pos = (
            np.memmap(stem + ".bin", np.uint16, "r"),
            np.memmap(stem + ".w.bin", np.uint8, "r"),
            S,
            pos,
        )
        self.device = device
        self.bos = np.flatnonzero(self.t == 0)

    def batch(self, B):
        ids, ws, S = [], [], self.S
        for _ in range(B):
            if self.pos + S + 2 >= len(self.t):
                self.pos = 0
            s = int(self.bos[np.searchsorted(self.bos, self.pos)])
            if s + S + 2 > len(self.t):
                s = 0
            ids.append(torch.from_numpy(self.t[s : s + S + 2].astype(np.int64)))
            ws.append(torch.from_numpy(self.w[s : s + S + 2].astype(np.float32) / 100))
            last = int(self.bos[np.searchsorted(self.bos, s + S) - 1])
            self.pos = last if last > s + S // 2 else s + S
        return torch.stack(ids).to(self.device), torch.stack(ws).to(self.device)


@torch.no_grad()
def evaluate(model, stem, S, B, n, block=None, sparse=False, mtp=True):
    model.eval()
    d, tot = Data(stem, S, device=model.embed.weight.device), {}
    for _ in range(n):
        ids, w = d.batch(B)
        r = model(ids, w, sparse=sparse, block=block, mtp=mtp)
        wt = w[:, 1:-1].reshape(-1)
        for k, v in dict(
            loss=r["tok"].mean(),
            acc=r["hit"].eq(ids[:, 1:-1].reshape(-1)).float().mean(),
            answer=(r["tok"] * (wt == 1)).sum() / (wt == 1).sum(),
            **(
                {
                    "mtp": r["mtp_tok"].mean(),
                    "mtp_agree": (r["mtp_hit"].view(B, S)[:, :-1] == r["hit"].view(B, S)[:, 1:]).float().mean(),
                }
                if mtp
                else {}
            ),
        ).items():
            tot[k] = tot.get(k, 0) + float(v) / n
    model.train()
    return {k: round(v, 4) for k, v in tot.items()}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", default="config.json")
    ap.add_argument("--data", default="data/train")
    ap.add_argument("--val", default="data/val")
    ap.add_argument("--out", default="run")
    ap.add_argument("--seq", type=int, default=2048)
    ap.add_argument("--micro", type=int, default=1)
    ap.add_argument("--accum", type=int, default=4)
    ap.add_argument("--lr-muon", type=float, default=0.02)
    ap.add_argument("--lr-adam", type=float, default=4e-3)
    ap.add_argument("--wd", type=float, default=0.0)
    ap.add_argument("--warmup", type=int, default=100)
    ap.add_argument("--steps", type=int, default=0)
    ap.add_argument("--minutes", type=float, default=60)
    ap.add_argument("--decay-from", type=float, default=0.5)
    ap.add_argument("--mtp", type=float, default=0.3)
    ap.add_argument(
        "--sparse-from",
        type=float,
        default=2.0,
        help="fraction of the budget after which CSA layers use the indexer's top-k",
    )
    ap.add_argument("--eval-every", type=int, default=100)
    ap.add_argument("--save-minutes", type=float, default=4)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--device", default="cpu", help="cpu (tested) or cuda (not tested)")
    ap.add_argument("--compile", action="store_true")
    ap.add_argument("--resume")
    ap.add_argument("--pos", type=int, default=-1)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    torch.set_num_threads(a.threads)
    os.makedirs(a.out, exist_ok=True)
    model = M.TinyV4(M.Cfg.load(a.config)).to(a.device)
    named = list(model.named_parameters())

    def is_adam(n):
        return any(k in n for k in ADAM)

    adam = torch.optim.AdamW(
        [p for n, p in named if is_adam(n)], lr=a.lr_adam, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    muon = Muon([p for n, p in named if not is_adam(n)], lr=a.lr_muon, wd=a.wd)
    step, seen, data, hist = 0, 0, Data(a.data, a.seq, device=a.device), []
    if a.resume:
        c = torch.load(a.resume, weights_only=False)
        model.load_state_dict(c["model"])
        adam.load_state_dict(c["adam"])
        muon.load_state_dict(c["muon"])
        step, seen, hist = c["step"], c["seen"], c["hist"]
        if c["data"] == a.data:
            data.pos = c["pos"]
    if a.pos >= 0:
        data.pos = a.pos
    print(
        f"{sum(p.numel() for _, p in named) / 1e6:.2f}M parameters, {len(data.t) / 1e6:.1f}M training tokens, "
        f"start at step {step}",
        flush=True,
    )
    torch._dynamo.config.cache_size_limit = 64  # one variant per kind of layer and mode
    block = torch.compile(lambda b, *x: b(*x), dynamic=False) if a.compile else None
    if a.compile:
        for h in (model.out, model.mtp_out):
            h.forward = torch.compile(h.forward, dynamic=False)
    moes = [b.ffn for b in model.layers] + [model.mtp.ffn]
    t0 = last_save = tlog = time.time()
    s0 = step
    ema = {}
    ntok = 0
    done = False

    def checkpoint():
        tmp = f"{a.out}/ckpt.tmp"
        torch.save(
            {
                "model": model.state_dict(),
                "adam": adam.state_dict(),
                "muon": muon.state_dict(),
                "step": step,
                "seen": seen,
                "hist": hist,
                "pos": data.pos,
                "data": a.data,
            },
            tmp,
        )
        os.replace(tmp, f"{a.out}/ckpt.pt")
        M.save(model, f"{a.out}/model.tmp")
        os.replace(f"{a.out}/model.tmp", f"{a.out}/model.safetensors")
        with open(f"{a.out}/history.json", "w") as f:
            json.dump(hist, f)

    while not done:
        frac = (step - s0) / a.steps if a.steps else (time.time() - t0) / (a.minutes * 60)
        if frac >= 1:
            break
        lr = min(1.0, (step + 1) / a.warmup) * (
            1.0 if frac < a.decay_from else max(0.01, 1 - (frac - a.decay_from) / (1 - a.decay_from))
        )
        for o, base in ((adam, a.lr_adam), (muon, a.lr_muon)):
            for g in o.param_groups:
                g["lr"] = base * lr
        for g in muon.param_groups:
            g["momentum"] = min(0.95, 0.85 + 0.1 * step / 300)
        loads, micro = [0] * len(moes), []
        for _ in range(a.accum):
            ids, w = data.batch(a.micro)
            r = model(ids, w, sparse=frac > a.sparse_from, block=block, mtp=a.mtp > 0)
            ((r["loss"] + (a.mtp * r["mtp"] if a.mtp else 0) + r["aux"]) / a.accum).backward()
            loads = [x + y for x, y in zip(loads, r["loads"], strict=False)]
            micro.append([float(r[k].detach()) if k in r else 0.0 for k in ("loss", "mtp", "aux")])
            ntok += a.micro * a.seq
            seen += a.micro * a.seq
        gn = float(torch.nn.utils.clip_grad_norm_([p for n, p in named if is_adam(n)], 1.0))
        adam.step()
        muon.step()
        adam.zero_grad(set_to_none=True)
        muon.zero_grad(set_to_none=True)
        for m, n in zip(moes, loads, strict=False):
            if not m.hashed:
                m.gate.bias += 0.003 * lr * torch.sign(n.float().mean() - n.float())  # aux-loss-free balancing
        step += 1
        for k, v in zip(("loss", "mtp", "aux"), np.mean(micro, 0), strict=False):
            ema[k] = v if k not in ema else 0.95 * ema[k] + 0.05 * v
        if step % 10 == 0:
            print(
                f"step {step} loss {ema['loss']:.3f} mtp {ema['mtp']:.3f} idx {ema['aux']:.3f} gn {gn:.2f} lr {lr:.3f} "
                f"tok/s {ntok / (time.time() - tlog):.0f} "
                f"load {max(float(n.max() / n.float().mean()) for n in loads):.2f} "
                f"t {(time.time() - t0) / 60:.1f}m",
                flush=True,
            )
            tlog, ntok = time.time(), 0
        if step % a.eval_every == 0:
            e = evaluate(model, a.val, a.seq, a.micro, 16 // a.micro, block, frac > a.sparse_from, a.mtp > 0)
            hist.append(dict(step=step, tokens=seen, train=round(ema["loss"], 4), **e))
            print("eval", json.dumps(hist[-1]), flush=True)
        if time.time() - last_save > a.save_minutes * 60:
            checkpoint()
            last_save = time.time()
        if os.path.exists(f"{a.out}/STOP"):
            os.remove(f"{a.out}/STOP")
            done = True
    checkpoint()
    print(
        "final",
        json.dumps(evaluate(model, a.val, a.seq, a.micro, 64 // a.micro, block, a.sparse_from < 1, a.mtp > 0)),
        flush=True,
    )


if __name__ == "__main__":
    main()
