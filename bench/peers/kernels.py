"""The peer of kernel_bench: the operations in plain PyTorch, as one writes them, eager and through torch.compile.

One command a line on stdin:

  KERNEL PART RUNS SIZES...   -> {"eager": ms, "compiled": ms}; PART: forward, backward or all

Medians of RUNS runs, each behind a pass over 1 GiB. `kernels.py --warm` compiles what kernel_bench asks for, so that
its own run finds it in the cache of torch.compile.
"""
import json
import statistics
import sys

import torch
import torch.nn.functional as F

BF16 = dict(device="cuda", dtype=torch.bfloat16)
FP32 = dict(device="cuda", dtype=torch.float32)


def random(*sizes, **options):
    return torch.randn(*sizes, **(options or BF16)) * 0.5


def leaf(*sizes, **options):
    return random(*sizes, **options).requires_grad_()


def rotated(x, cos, sin):
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


def angles(t, d):
    angle = torch.arange(t, **FP32)[:, None] / 1e4 ** (torch.arange(d // 2, **FP32) / (d // 2))
    return angle.cos()[:, None].bfloat16(), angle.sin()[:, None].bfloat16()


def heads(qkv, cos, sin, n, g, d, q_weight=None, k_weight=None):
    q, k, v = qkv.view(-1, n + 2 * g, d).split((n, g, g), 1)
    if q_weight is not None:
        q, k = F.rms_norm(q, (d,), q_weight, 1e-6), F.rms_norm(k, (d,), k_weight, 1e-6)
    return rotated(q, cos, sin), rotated(k, cos, sin), v.contiguous()


def swiglu(x):
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def choose(logits, k):
    values, places = logits.topk(k, -1)
    places, order = places.sort(-1)
    return values.gather(1, order).softmax(-1)


def loss_in_chunks(hidden, weight, labels):
    total = 0
    for x, ids in zip(hidden.split(4096), labels.split(4096)):
        total = total + F.cross_entropy((x @ weight.t()).float(), ids, reduction="sum")
    return total / labels.numel()


def adam(main, grad, m, v, param):
    grad = grad * 0.5
    m.mul_(0.9).add_(grad, alpha=0.1)
    v.mul_(0.999).addcmul_(grad, grad, value=0.001)
    main.mul_(1 - 1e-4).sub_(1e-3 * (m / 0.1) / ((v / 0.001).sqrt() + 1e-8))
    param.copy_(main)


# Moments in another format, without scales; main stays fp32.
def adam_stored(main, grad, m, v, param):
    wide_m, wide_v = m.float(), v.float()
    adam(main, grad.float(), wide_m, wide_v, param)
    m.copy_(wide_m)
    v.copy_(wide_v)


def fp8_cast(x):
    scale = 448.0 / x.abs().amax().float()
    cast = (x.float() * scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return cast, cast.t().contiguous(), scale.reciprocal()


def fp8_cast_delayed(x, scale, seen):
    seen.copy_(torch.maximum(seen, x.abs().amax().float()))
    cast = (x.float() * scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return cast, cast.t().contiguous()


def fp8_strips(x):
    parts = x.float().unflatten(1, (-1, 128))
    scale = torch.exp2(torch.floor(torch.log2(448.0 / parts.abs().amax(-1))))
    return (parts * scale[..., None]).flatten(1).to(torch.float8_e4m3fn), scale.reciprocal()


def case(kernel, s):
    """The arguments and the function; arguments that require a gradient get one in backward."""
    cuda = dict(device="cuda")
    if kernel == "rms_norm":
        return [leaf(*s), leaf(s[1])], lambda x, w: F.rms_norm(x, (s[1],), w, 1e-5)
    if kernel == "add_rms_norm":
        def add_norm(x, delta, w):
            total = x + delta
            return total, F.rms_norm(total, (s[1],), w, 1e-5)
        return [leaf(*s), leaf(*s), leaf(s[1])], add_norm
    if kernel == "layer_norm":
        return [leaf(*s), leaf(s[1]), leaf(s[1])], lambda x, w, b: F.layer_norm(x, (s[1],), w, b, 1e-5)
    if kernel in ("rope", "rope_norm"):
        t, n, g, d = s
        weights = [leaf(d), leaf(d)] if kernel == "rope_norm" else []
        return [leaf(t, (n + 2 * g) * d), *angles(t, d)] + weights, lambda x, c, i, *w: heads(x, c, i, n, g, d, *w)
    if kernel == "swiglu":
        return [leaf(s[0], 2 * s[1])], swiglu
    if kernel == "weighted_swiglu":
        weights = torch.rand(s[0], **FP32).requires_grad_()
        return [leaf(s[0], 2 * s[1]), weights], lambda x, w: (swiglu(x) * w[:, None]).bfloat16()
    if kernel == "bias_gelu":
        return [leaf(*s), leaf(s[1])], lambda x, b: F.gelu(x + b, approximate="tanh")
    if kernel in ("copy_rows", "sum_rows"):
        t, k, h = s
        order = torch.randperm(t * k, **cuda)
        token, row = order // k, torch.argsort(order)
        if kernel == "copy_rows":
            return [leaf(t, h)], lambda x: x[token]
        weights = torch.rand(t, k, **FP32).requires_grad_()
        return [leaf(t * k, h), weights], lambda x, w: (x[row].view(t, k, h) * w[..., None]).sum(1).bfloat16()
    if kernel == "top_experts":
        return [leaf(s[0], s[1], **FP32)], lambda x: choose(x, s[2])
    if kernel == "dropout":
        return [leaf(*s)], lambda x: F.dropout(x, 0.1)
    if kernel == "dropout_add":
        return [leaf(*s), leaf(*s)], lambda x, r: F.dropout(x, 0.1) + r
    if kernel == "cross_entropy":
        labels = torch.randint(s[1], (s[0],), **cuda)
        return [leaf(*s)], lambda x: F.cross_entropy(x.float(), labels, reduction="sum")
    if kernel == "linear_cross_entropy":
        t, h, v = s
        labels = torch.randint(v, (t,), **cuda)
        return [leaf(t, h), (random(v, h) * 0.1).requires_grad_()], lambda x, w: loss_in_chunks(x, w, labels)
    if kernel == "embedding_grad":
        t, h, v = s
        rows, dy, sums = torch.randint(v, (t,), **cuda), random(t, h), torch.zeros(v, h, **FP32)
        return [sums, rows, dy], lambda a, r, d: a.index_add_(0, r, d.float())
    if kernel == "group_products":
        return [random(*s, **FP32), random(*s)], lambda a, p: a.add_(p)
    if kernel == "bias_grad":
        return [random(*s)], lambda x: x.sum(0)
    if kernel == "adam":
        n = s[0]
        return [random(n, **FP32), random(n, **FP32), torch.zeros(n, **FP32), torch.zeros(n, **FP32),
                torch.zeros(n, **BF16)], adam
    if kernel in ("adam_bf16_state", "adam_fp8_state"):
        n, moment = s[0], {"device": "cuda", "dtype": torch.bfloat16 if "bf16" in kernel else torch.float8_e4m3fn}
        return [random(n, **FP32), random(n), torch.zeros(n, **moment), torch.zeros(n, **moment),
                torch.zeros(n, **BF16)], adam_stored
    if kernel == "grad_norm":
        return [random(s[0], **FP32)], torch.linalg.vector_norm
    if kernel == "zero":
        return [random(s[0], **FP32)], lambda x: x.zero_()
    if kernel == "cast":
        return [random(s[0], **FP32), torch.empty(s[0], **BF16)], lambda x, y: y.copy_(x)
    if kernel == "fp8_cast":
        return [random(*s)], fp8_cast
    if kernel == "fp8_cast_delayed":
        return [random(*s), torch.full((), 100.0, **FP32), torch.zeros((), **FP32)], fp8_cast_delayed
    if kernel == "fp8_cast_blocks":
        return [random(*s)], lambda x: (*fp8_strips(x), *fp8_strips(x.t()))
    raise ValueError(kernel)


flush = torch.empty(1 << 28, **FP32)


def median_ms(prepare, run, runs):
    marks = []
    for _ in range(runs + 3):
        held = prepare()
        flush.zero_()
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run(held)
        stop.record()
        marks.append((start, stop))
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in marks[3:])


def time_form(function, part, arguments, runs):
    wanted = [a for a in arguments if a.is_floating_point() and a.requires_grad]
    if part == "forward" or not wanted:
        with torch.no_grad():
            return median_ms(lambda: None, lambda _: function(*arguments), runs)

    def forward():
        out = function(*arguments)
        return [o for o in (out if isinstance(out, tuple) else (out,)) if o.requires_grad]

    slopes = [torch.ones_like(o) for o in forward()]
    if part == "all":
        return median_ms(lambda: None, lambda _: torch.autograd.grad(forward(), wanted, slopes), runs)
    return median_ms(forward, lambda outs: torch.autograd.grad(outs, wanted, slopes), runs)


def answer(words):
    kernel, part, runs, sizes = words[0], words[1], int(words[2]), [int(w) for w in words[3:]]
    torch._dynamo.reset()
    arguments, function = case(kernel, sizes)
    return {"eager": time_form(function, part, arguments, runs),
            "compiled": time_form(torch.compile(function, dynamic=False), part, arguments, runs)}


WARM = """rms_norm 16384 2048|rms_norm 16384 4096|add_rms_norm 16384 2048|add_rms_norm 16384 4096|layer_norm 65536 768
rope 16384 32 8 64|rope 16384 32 8 128|rope_norm 16384 32 4 128|swiglu 16384 8192|swiglu 16384 14336
weighted_swiglu 131072 768|bias_gelu 65536 3072|copy_rows 16384 8 2048|sum_rows 16384 8 2048|top_experts 16384 64 8
dropout 16384 4096|dropout_add 16384 4096|cross_entropy 4096 128256|fp8_cast 16384 4096|fp8_cast_delayed 16384 4096|fp8_cast_blocks 16384 4096|bias_grad 65536 3072
adam 268435456|linear_cross_entropy 16384 2048 128256"""

if __name__ == "__main__":
    if sys.argv[1:] == ["--warm"]:
        for line in WARM.replace("\n", "|").split("|"):
            words = line.split()
            for part in ("forward", "backward"):
                answer([words[0], part, "1"] + words[1:])
        sys.exit()
    for line in sys.stdin:
        print(json.dumps(answer(line.split())), flush=True)
