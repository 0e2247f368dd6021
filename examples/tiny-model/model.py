"""A training-time forward pass for the DeepSeek-V4 architecture at toy size (CPU, bf16 matmuls, fp32 master weights).

Parameter names follow the published checkpoint layout (layers.N.attn.wq_a ..., mtp.0 ...), except that the routed
experts are stacked while training; `export_state` splits them.  Sequences start at position 0 and their length is a
multiple of 128, so no compressor window is ever incomplete here."""

import json
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

NEG = -1e30


class Cfg:
    """Reads the published config.json field names."""

    def __init__(self, d):
        self.raw = d
        for k, v in d.items():
            setattr(self, k, v)

    @classmethod
    def load(cls, path):
        return cls(json.load(open(path)))


def inv_freq(cfg, compressed):
    R, base = cfg.qk_rope_head_dim, cfg.compress_rope_theta if compressed else cfg.rope_theta
    f = 1.0 / base ** (torch.arange(0, R, 2).float() / R)
    if compressed and cfg.rope_scaling:
        s = cfg.rope_scaling

        def dim(rot):
            return R * math.log(s["original_max_position_embeddings"] / (rot * 2 * math.pi)) / (2 * math.log(base))

        lo, hi = max(math.floor(dim(s["beta_fast"])), 0), min(math.ceil(dim(s["beta_slow"])), R - 1)
        ramp = ((torch.arange(R // 2).float() - lo) / max(hi - lo, 1e-3)).clamp(0, 1)
        f = f / s["factor"] * ramp + f * (1 - ramp)
    return f


def rotate(x, cos, sin):
    """Interleaved RoPE on the trailing channels; cos/sin broadcast against x[..., :R/2]."""
    n = 2 * cos.shape[-1]
    a, b = x[..., -n:].float().unflatten(-1, (n // 2, 2)).unbind(-1)
    return torch.cat([x[..., :-n], torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)], -1)


def rms(x, w=None, eps=1e-6):
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (y if w is None else y * w).to(x.dtype)


def lin(x, w):
    return F.linear(x, w.to(x.dtype))


@torch.library.custom_op("tiny::gmm", mutates_args=())
def gmm(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows of x sorted by expert: y[s:e] = x[s:e] @ w[i].T"""
    y, s = x.new_empty(x.shape[0], w.shape[1]), 0
    for i, e in enumerate(ends.tolist()):
        if e > s:
            torch.mm(x[s:e], w[i].t(), out=y[s:e])
        s = e
    return y


@torch.library.custom_op("tiny::gmm_back", mutates_args=())
def gmm_back(
    g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    gx, gw, s, g = torch.empty_like(x), torch.zeros_like(w), 0, g.contiguous()
    for i, e in enumerate(ends.tolist()):
        if e > s:
            torch.mm(g[s:e], w[i], out=gx[s:e])
            torch.mm(g[s:e].t(), x[s:e], out=gw[i])
        s = e
    return gx, gw


gmm.register_fake(lambda x, w, ends: x.new_empty(x.shape[0], w.shape[1]))
gmm_back.register_fake(lambda g, x, w, ends: (torch.empty_like(x), torch.empty_like(w)))
gmm.register_autograd(
    lambda ctx, g: (*gmm_back(g, *ctx.saved_tensors), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class Hyper(nn.Module):
    """mHC mixing weights of one sublayer: fn [24, 4d], base [24], scale [3]."""

    def __init__(self, cfg, idx):
        super().__init__()
        n, d = cfg.hc_mult, cfg.hidden_size
        self.n, self.iters, self.eps = n, cfg.hc_sinkhorn_iters, cfg.hc_eps
        self.fn = nn.Parameter(torch.randn((2 + n) * n, n * d) * 0.02)
        pre = torch.full((n,), -2.0)
        pre[idx % n] = 1.0
        self.base = nn.Parameter(torch.cat([pre, torch.zeros(n), (torch.eye(n) * 4).flatten()]))
        self.scale = nn.Parameter(torch.full((3,), 0.3))

    def forward(self, x):  # x [N, n, d]
        n = self.n
        flat = x.flatten(1).float()
        mix = F.linear(flat, self.fn) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + 1e-6)
        pre = torch.sigmoid(mix[:, :n] * self.scale[0] + self.base[:n]) + self.eps
        post = 2 * torch.sigmoid(mix[:, n : 2 * n] * self.scale[1] + self.base[n : 2 * n])
        c = (mix[:, 2 * n :] * self.scale[2] + self.base[2 * n :]).t().reshape(n, n, -1)  # tokens last: cheap Sinkhorn
        c = torch.softmax(c, 1) + self.eps
        c = c / (c.sum(0, keepdim=True) + self.eps)
        for _ in range(self.iters - 1):
            c = c / (c.sum(1, keepdim=True) + self.eps)
            c = c / (c.sum(0, keepdim=True) + self.eps)
        return (pre.unsqueeze(-1) * x).sum(1).to(x.dtype), post, c.permute(2, 0, 1)


def mix_back(x, out, post, comb):
    """streams' = post * out + comb^T @ streams"""
    y = post.unsqueeze(-1) * out.float().unsqueeze(1)
    for j in range(x.shape[1]):
        y = y + comb[:, j].unsqueeze(-1) * x[:, j].float().unsqueeze(1)
    return y.to(x.dtype)


class Compressor(nn.Module):
    def __init__(self, cfg, ratio, dim):
        super().__init__()
        self.ratio, self.dim, k = ratio, dim, 2 if ratio == 4 else 1
        self.wkv, self.wgate = weight(k * dim, cfg.hidden_size), weight(k * dim, cfg.hidden_size)
        self.ape, self.norm = nn.Parameter(torch.zeros(ratio, k * dim)), Norm(dim)

    def forward(self, x, cos, sin):  # x [B,S,d] -> [B,T,dim]
        B, S, _ = x.shape
        r, D, T = self.ratio, self.dim, S // self.ratio
        kv = lin(x, self.wkv.weight).view(B, T, r, -1)
        g = lin(x, self.wgate.weight).view(B, T, r, -1).float() + self.ape
        if r == 4:  # each entry pools the previous window's first half of channels and its own second half

            def shift(t, v):
                return torch.cat([F.pad(t[:, :-1, :, :D], (0, 0, 0, 0, 1, 0), value=v), t[..., D:]], 2)

            kv, g = shift(kv, 0.0), shift(g, NEG)
        y = (kv.float() * g.softmax(2)).sum(2).to(x.dtype)
        return rotate(rms(y, self.norm.weight), cos[: T * r : r], sin[: T * r : r])


class Weight(nn.Module):
    def __init__(self, *shape, std=None):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*shape) * (std if std is not None else shape[-1] ** -0.5))


def weight(*shape, std=None):
    return Weight(*shape, std=std)


class Norm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))


class Indexer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.h, self.dim = cfg.index_n_heads, cfg.index_head_dim
        self.wq_b, self.weights_proj = weight(self.h * self.dim, cfg.q_lora_rank), weight(self.h, cfg.hidden_size)
        self.compressor = Compressor(cfg, 4, self.dim)

    def forward(self, x, qr, cos, sin):
        B, S, _ = x.shape
        k = self.compressor(x, cos, sin)
        q = rotate(lin(qr, self.wq_b.weight).view(B, S, self.h, self.dim), cos[:S, None], sin[:S, None])
        s = torch.matmul(q.flatten(1, 2), k.transpose(1, 2)).float().view(B, S, self.h, -1).relu() * self.dim**-0.5
        return (s * (lin(x, self.weights_proj.weight).float() * self.h**-0.5).unsqueeze(-1)).sum(2)  # [B,S,T]


class Attention(nn.Module):
    def __init__(self, cfg, ratio):
        super().__init__()
        d, H, D, R = cfg.hidden_size, cfg.num_attention_heads, cfg.head_dim, cfg.q_lora_rank
        self.H, self.D, self.G, self.ratio, self.C, self.topk = (
            H,
            D,
            cfg.o_groups,
            ratio,
            cfg.sliding_window,
            cfg.index_topk,
        )
        self.wq_a, self.q_norm, self.wq_b = weight(R, d), Norm(R), weight(H * D, R)
        self.wkv, self.kv_norm = weight(D, d), Norm(D)
        self.wo_a, self.wo_b = (
            weight(cfg.o_groups * cfg.o_lora_rank, H * D // cfg.o_groups),
            weight(d, cfg.o_groups * cfg.o_lora_rank, std=0.02),
        )
        self.attn_sink = nn.Parameter(torch.zeros(H))
        if ratio:
            self.compressor = Compressor(cfg, ratio, D)
        if ratio == 4:
            self.indexer = Indexer(cfg)

    def forward(self, x, cos, sin, bias, cmask, sparse: bool):
        """bias [N,C,2C+T] additive window+causal mask; cmask [S,T] visible compressed entries.
        Returns (out, indexer loss)."""
        B, S, _ = x.shape
        H, D, C = self.H, self.D, self.C
        N = S // C
        qr = rms(lin(x, self.wq_a.weight), self.q_norm.weight)
        q = rotate(rms(lin(qr, self.wq_b.weight).view(B, S, H, D)), cos[:S, None], sin[:S, None])
        kv = rotate(rms(lin(x, self.wkv.weight), self.kv_norm.weight), cos[:S], sin[:S])
        pad = F.pad(kv, (0, 0, C, 0)).view(B, N + 1, C, D)
        keys, extra, aux = [pad[:, :-1], pad[:, 1:]], 0, x.new_zeros((), dtype=torch.float32)
        mask = bias.view(1, N, 1, C, -1)
        if self.ratio:
            comp = self.compressor(x, cos, sin)
            T = comp.shape[1]
            keys.append(comp.unsqueeze(1).expand(B, N, T, D))
            if self.ratio == 4:
                score = self.indexer(x.detach(), qr.detach(), cos, sin).masked_fill(~cmask, NEG)
                if sparse and self.topk < T:
                    keep = torch.zeros_like(score, dtype=torch.bool).scatter_(
                        -1, score.topk(self.topk, -1).indices, True
                    )
                    extra = torch.where(keep, 0.0, NEG).view(B, N, 1, C, T)
                    mask = mask + F.pad(extra, (2 * C, 0))
        K = torch.cat(keys, 2).reshape(B * N, -1, D)
        Q = q.view(B, N, C, H, D).transpose(2, 3).reshape(B * N, H * C, D)
        s = torch.bmm(Q, K.transpose(1, 2)).view(B, N, H, C, -1).float() * D**-0.5 + mask
        sink = self.attn_sink.view(1, 1, H, 1, 1)
        m = torch.maximum(s.amax(-1, keepdim=True), sink).detach()
        e = torch.exp(s - m)
        p = (e / (e.sum(-1, keepdim=True) + torch.exp(sink - m))).to(x.dtype)
        if self.ratio == 4:  # teach the indexer where the (dense) attention looked
            t = p[..., 2 * C :].detach().float().sum(2).reshape(B, S, -1)
            mass = t.sum(-1)
            t = t / (mass.unsqueeze(-1) + 1e-6)
            kl = (t * ((t + 1e-6).log() - F.log_softmax(score, -1).clamp(min=-50))).sum(-1)
            aux = (kl * (mass > 1e-3)).mean()
        o = torch.bmm(p.reshape(B * N, H * C, -1), K).view(B, N, H, C, D).transpose(2, 3).reshape(B, S, H, D)
        o = rotate(o, cos[:S, None], -sin[:S, None]).reshape(B * S, self.G, -1)
        o = torch.cat([lin(o[:, g], w) for g, w in enumerate(self.wo_a.weight.chunk(self.G))], -1)
        return lin(o, self.wo_b.weight).view(B, S, -1), aux


class Experts(nn.Module):
    def __init__(self, E, d, I):
        super().__init__()
        self.w13, self.w2 = nn.Parameter(torch.randn(E, 2 * I, d) * d**-0.5), nn.Parameter(torch.randn(E, d, I) * 0.02)


class MoE(nn.Module):
    def __init__(self, cfg, hashed, seed):
        super().__init__()
        d, I, E, K = cfg.hidden_size, cfg.moe_intermediate_size, cfg.n_routed_experts, cfg.num_experts_per_tok
        self.E, self.K, self.hashed, self.limit, self.scale = E, K, hashed, cfg.swiglu_limit, cfg.routed_scaling_factor
        self.gate, self.experts, self.shared = weight(E, d, std=0.02), Experts(E, d, I), Experts(1, d, I)
        if hashed:
            g = torch.Generator().manual_seed(seed)
            self.gate.register_buffer("tid2eid", torch.rand(cfg.vocab_size, E, generator=g).topk(K).indices)
        else:
            self.gate.register_buffer("bias", torch.zeros(E))
        self.register_buffer("load", torch.zeros(E), persistent=False)

    def act(self, h):
        g, u = h.float().chunk(2, -1)
        return (F.silu(g.clamp(max=self.limit)) * u.clamp(-self.limit, self.limit)).to(h.dtype)

    def forward(self, x, ids):  # x [N,d]
        s = F.softplus(F.linear(x.float(), self.gate.weight)).sqrt()
        idx = self.gate.tid2eid[ids] if self.hashed else (s.detach() + self.gate.bias).topk(self.K, -1).indices
        w = s.gather(1, idx)
        w = w / (w.sum(-1, keepdim=True) + 1e-20) * self.scale
        flat = idx.flatten()
        order = flat.argsort(stable=True)
        counts = (flat.unsqueeze(0) == torch.arange(self.E, device=x.device).unsqueeze(1)).sum(1)
        ends = counts.cumsum(0)
        h = gmm(x[order // self.K], self.experts.w13.to(x.dtype), ends)
        o = gmm(self.act(h), self.experts.w2.to(x.dtype), ends)
        y = (o[order.argsort()].view(-1, self.K, x.shape[1]).float() * w.unsqueeze(-1)).sum(1).to(x.dtype)
        return y + lin(self.act(lin(x, self.shared.w13[0])), self.shared.w2[0]), counts


class Block(nn.Module):
    def __init__(self, cfg, ratio, hashed, idx):
        super().__init__()
        self.attn, self.ffn = Attention(cfg, ratio), MoE(cfg, hashed, idx)
        self.attn_norm, self.ffn_norm = Norm(cfg.hidden_size), Norm(cfg.hidden_size)
        self.hc_attn, self.hc_ffn = Hyper(cfg, 2 * idx), Hyper(cfg, 2 * idx + 1)

    def forward(self, x, ids, cos, sin, bias, cmask, sparse: bool):  # x [B,S,n,d]
        B, S, n, d = x.shape
        x = x.flatten(0, 1)
        y, post, comb = self.hc_attn(x)
        y, aux = self.attn(rms(y, self.attn_norm.weight).view(B, S, d), cos, sin, bias, cmask, sparse)
        x = mix_back(x, y.reshape(B * S, d), post, comb)
        y, post, comb = self.hc_ffn(x)
        y, counts = self.ffn(rms(y, self.ffn_norm.weight), ids.reshape(-1))
        return mix_back(x, y, post, comb).view(B, S, n, d), aux, counts


class Head(nn.Module):
    """Collapse of the streams before the output norm."""

    def __init__(self, cfg):
        super().__init__()
        n, d = cfg.hc_mult, cfg.hidden_size
        self.eps, self.fn, self.base, self.scale = (
            cfg.hc_eps,
            nn.Parameter(torch.randn(n, n * d) * 0.02),
            nn.Parameter(torch.full((n,), -1.1)),
            nn.Parameter(torch.full((1,), 0.3)),
        )
        self.norm = Norm(d)

    def forward(self, x, w, targets, weights):  # -> mean weighted loss, per-token loss, hit
        flat = x.flatten(2).float()
        mix = F.linear(flat, self.fn) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + 1e-6)
        y = ((torch.sigmoid(mix * self.scale + self.base) + self.eps).unsqueeze(-1) * x).sum(2).to(x.dtype)
        logits = lin(rms(y, self.norm.weight), w).float().flatten(0, 1)
        loss = F.cross_entropy(logits, targets.reshape(-1), reduction="none")
        return (loss * weights.reshape(-1)).sum() / weights.sum(), loss, logits.argmax(-1)


class TinyV4(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg, d = cfg, cfg.hidden_size
        L = cfg.num_hidden_layers
        self.embed, self.head = weight(cfg.vocab_size, d, std=0.5), weight(cfg.vocab_size, d, std=0.02)
        self.layers = nn.ModuleList([Block(cfg, cfg.compress_ratios[i], i < cfg.num_hash_layers, i) for i in range(L)])
        self.out = Head(cfg)
        self.mtp = Block(cfg, cfg.compress_ratios[L], False, L)
        self.mtp_out, self.e_proj, self.h_proj = Head(cfg), weight(d, d), weight(d, d)
        self.enorm, self.hnorm = Norm(d), Norm(d)
        self.run, self.dtype = {}, torch.bfloat16

    def consts(self, S):
        """Rotary tables and masks for one sequence length."""
        if S not in self.run:
            dev = self.embed.weight.device
            t, C = torch.arange(S), self.cfg.sliding_window
            rope = [
                (a.cos().to(dev), a.sin().to(dev))
                for a in (t[:, None].float() * inv_freq(self.cfg, c) for c in (False, True))
            ]
            N = S // C
            qpos = t.view(N, C, 1)
            kpos = (torch.arange(N).view(N, 1, 1) - 1) * C + torch.arange(2 * C)
            local = (kpos <= qpos) & (kpos > qpos - C) & (kpos >= 0)
            masks = {0: (torch.where(local, 0.0, NEG), None)}
            for r in (4, 128):
                cm = torch.arange(S // r) < ((t + 1) // r)[:, None]
                masks[r] = (torch.where(torch.cat([local, cm.view(N, C, -1)], -1), 0.0, NEG), cm)
            self.run[S] = (rope, {r: tuple(x if x is None else x.to(dev) for x in m) for r, m in masks.items()})
        return self.run[S]

    def forward(self, ids, weights, sparse=False, mtp=True, block=None):
        """ids [B,S+2], weights [B,S+2]. Returns dict of losses."""
        _B, S = ids.shape[0], ids.shape[1] - 2
        rope, masks = self.consts(S)
        call = block or (lambda b, *a: b(*a))
        x = (
            F.embedding(ids[:, :S], self.embed.weight)
            .to(self.dtype)
            .unsqueeze(2)
            .expand(-1, -1, self.cfg.hc_mult, -1)
            .contiguous()
        )
        aux, loads = 0.0, []
        for i, b in enumerate(self.layers):
            r = self.cfg.compress_ratios[i]
            x, a, n = call(b, x, ids[:, :S].contiguous(), *rope[r > 0], *masks[r], sparse)
            aux = aux + a
            loads.append(n)
        loss, tok, hit = self.out(x, self.head.weight, ids[:, 1 : S + 1], weights[:, 1 : S + 1])
        res = {"loss": loss, "tok": tok, "hit": hit, "aux": aux, "loads": loads}
        if mtp:
            e = rms(F.embedding(ids[:, 1 : S + 1], self.embed.weight).to(x.dtype), self.enorm.weight)
            h = lin(e, self.e_proj.weight).unsqueeze(2) + lin(rms(x, self.hnorm.weight), self.h_proj.weight)
            h, _, n = call(self.mtp, h, ids[:, 1 : S + 1].contiguous(), *rope[0], *masks[0], sparse)
            loads.append(n)
            res["mtp"], res["mtp_tok"], res["mtp_hit"] = self.mtp_out(h, self.head.weight, ids[:, 2:], weights[:, 2:])
        return res


def public(k):
    """Own parameter name -> published tensor name (experts: the name without expert index and matrix)."""
    k = (
        k.replace("mtp_out.norm", "mtp.0.norm")
        .replace("mtp_out.", "mtp.0.hc_head_")
        .replace("out.norm", "norm")
        .replace("out.", "hc_head_")
    )
    k = k.replace("hc_attn.", "hc_attn_").replace("hc_ffn.", "hc_ffn_").replace(".shared.", ".shared_experts.")
    if k.startswith("mtp.") and not k.startswith("mtp.0."):
        k = "mtp.0." + k[4:]
    return "mtp.0." + k if k.split(".")[0] in ("e_proj", "h_proj", "enorm", "hnorm") else k


def expert_names(k, n):
    """Published names behind a stacked expert tensor, one list per matrix."""
    head, name = public(k).rsplit(".", 1)

    def at(e):
        return head if "shared" in head else f"{head}.{e}"

    return [[f"{at(e)}.{m}.weight" for e in range(n)] for m in (("w1", "w3") if name == "w13" else ("w2",))]


def export_state(model):
    """State dict with the published tensor names."""
    out = {}
    for k, v in model.state_dict().items():
        v = v.detach()
        if ".experts." in k or ".shared." in k:
            names = expert_names(k, v.shape[0])
            for e in range(v.shape[0]):
                for row, t in zip(names, v[e].chunk(len(names)), strict=False):
                    out[row[e]] = t
        else:
            out[public(k)] = v
    return out


def import_state(model, f):
    """Inverse of export_state: f maps published names to tensors."""
    own, seen = model.state_dict(), set()
    for k, v in own.items():
        if ".experts." in k or ".shared." in k:
            names = expert_names(k, v.shape[0])
            seen.update(name for group in names for name in group)
            own[k] = torch.stack([torch.cat([f[row[e]] for row in names]) for e in range(v.shape[0])]).float()
        else:
            seen.add(public(k))
            own[k] = f[public(k)].to(v.dtype)
    assert seen == set(f), seen ^ set(f)
    model.load_state_dict(own)
    return model


FP32 = ("hc_", "attn_sink", ".ape", "gate.bias", "norm.weight")  # kept in fp32 in the saved file


def save(model, path):
    from safetensors.torch import save_file

    save_file(
        {
            k: (v if v.dtype == torch.int64 else v.float() if any(f in k for f in FP32) else v.to(torch.bfloat16))
            .contiguous()
            .clone()
            for k, v in export_state(model).items()
        },
        path,
        metadata={"format": "pt"},
    )
