"""Writes muon.safetensors: steps of torch.optim.Muon, for tests/optim/muon_test.cc.

    python tests/data/optim/make_muon.py

Each case has two matrices (wide, tall), a gradient for each of four steps, and the parameters after each step. Cases
whose name begins with fp32 compute the Newton-Schulz iteration in fp32, by a cast to bf16 that does nothing: there other
programs agree to fp32's accuracy. The others are torch's own, in bf16.

Made with torch 2.11.0.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file

STEPS = 4
SHAPES = {"wide": (12, 20), "tall": (16, 8)}
# name -> arguments of torch.optim.Muon besides lr and weight_decay
CASES = {
    "fp32_original": {"momentum": 0.95, "nesterov": True, "adjust_lr_fn": "original"},
    "fp32_match_rms": {"momentum": 0.9, "nesterov": True, "adjust_lr_fn": "match_rms_adamw"},
    "fp32_plain": {"momentum": 0.8, "nesterov": False, "adjust_lr_fn": "original", "ns_steps": 3},
    "bf16_original": {"momentum": 0.95, "nesterov": True, "adjust_lr_fn": "original"},
}


def main():
    generator = torch.Generator().manual_seed(35)
    tensors = {}
    cast = torch.Tensor.bfloat16
    for name, arguments in CASES.items():
        torch.Tensor.bfloat16 = torch.Tensor.clone if name.startswith("fp32") else cast
        parameters = {
            shape: torch.nn.Parameter(torch.randn(size, generator=generator) * 0.1) for shape, size in SHAPES.items()
        }
        optimizer = torch.optim.Muon(parameters.values(), lr=0.02, weight_decay=0.1, **arguments)
        for step in range(STEPS + 1):
            for shape, parameter in parameters.items():
                tensors[f"{name}.{shape}.after{step}"] = parameter.detach().clone()
                if step < STEPS:
                    parameter.grad = torch.randn(parameter.shape, generator=generator)
                    tensors[f"{name}.{shape}.grad{step}"] = parameter.grad.clone()
            if step < STEPS:
                optimizer.step()
    torch.Tensor.bfloat16 = cast
    save_file(tensors, Path(__file__).parent / "muon.safetensors")


if __name__ == "__main__":
    main()
