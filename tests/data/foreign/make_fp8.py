"""Makes fp8_blocks.safetensors: weights that transformers rounds to fp8 with a scale per block of 8 x 16.

    python tests/data/foreign/make_fp8.py

Made with transformers 5.22 and torch 2.11: Fp8Quantize of transformers/integrations/finegrained_fp8.py.
"""

import os
import types

import torch
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Quantize

BLOCK = (8, 16)

torch.manual_seed(20)
weight = torch.randn(24, 64) * torch.logspace(-4, 3, 64)
weight[:8, :16] = 0  # a block of zeros
weight = weight.to(torch.bfloat16)
config = types.SimpleNamespace(weight_block_size=BLOCK, scale_fmt=None)
made = Fp8Quantize(types.SimpleNamespace(quantization_config=config)).convert({"w.weight": weight})
save_file(
    {"weight": weight, "codes": made["w.weight"], "scales": made["w.weight_scale_inv"]},
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "fp8_blocks.safetensors"),
)
