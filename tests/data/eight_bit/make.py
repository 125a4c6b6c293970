#!/usr/bin/env python3
"""Makes quantized.safetensors beside this file: matrices in 8 bits as bitsandbytes writes them into checkpoints.

    pip install torch==2.11.0 bitsandbytes==0.50.2 safetensors numpy
    make.py                # on a CPU; needs no GPU

The tensors NAME.weight, NAME.SCB and NAME.weight_format are those of the state_dict of a Linear8bitLt, which quantizes
its weight when it is moved to a device. NAME.input is the weight before, and NAME.numbers what codes and scales stand
for: functional.int8_vectorwise_dequant.
"""
import pathlib

import bitsandbytes
import numpy as np
import torch
from safetensors.torch import save_file

assert bitsandbytes.__version__ == "0.50.2"


def quantized(name, x, tensors):
    layer = bitsandbytes.nn.Linear8bitLt(x.shape[1], x.shape[0], bias=False, has_fp16_weights=False)
    layer.weight = bitsandbytes.nn.Int8Params(x.clone(), requires_grad=False, has_fp16_weights=False)
    state = layer.to("cpu").state_dict()
    tensors[f"{name}.input"] = x
    tensors |= {f"{name}.{key}": value.clone() for key, value in state.items()}
    tensors[f"{name}.numbers"] = bitsandbytes.functional.int8_vectorwise_dequant(state["weight"], state["SCB"])


random = np.random.default_rng(8)
tensors = {}
quantized("normal", torch.tensor(random.standard_normal((24, 80)), dtype=torch.float32), tensors)
quantized("half", torch.tensor(random.standard_normal((6, 33)), dtype=torch.float16), tensors)
# Magnitudes that differ between rows by powers of two, in the dtype of most checkpoints.
wide = random.standard_normal((40, 129)) * 2.0 ** random.integers(-12, 4, (40, 1))
quantized("wide", torch.tensor(wide, dtype=torch.bfloat16), tensors)
# Rows of zeros, of subnormal numbers of fp16, of numbers that fp16 rounds to 0, with its largest number, of one number
# that is not 0, and in the middle between codes: exactly, and of scales whose 127th is not exact. In the last two rows
# it matters that a number is multiplied by 127 / scale, and that torch computes this as (1 / scale) · 127.
adversarial = np.zeros((10, 21))
adversarial[1] = np.arange(-10, 11) * 2.0**-24
adversarial[2] = 2.0**-26
adversarial[3] = random.standard_normal(21) * 1e4
adversarial[3, 7] = 65519
adversarial[4, 20] = -3
adversarial[5] = np.arange(-10, 11) + 0.5
adversarial[5, 0] = 127
adversarial[6] = (np.arange(-10, 11) + 0.5) * 3.0 / 127
adversarial[6, 1] = -3
adversarial[7] = (np.arange(-10, 11) * 11 + 0.5) * 0.7 / 127
adversarial[7, 2] = 0.7
adversarial[8] = np.append(7 * (np.arange(6, 126, 6) + 0.5), 7 * 127)
adversarial[9] = np.append(15 * (np.arange(6, 126, 6) + 0.5), 15 * 127)
quantized("adversarial", torch.tensor(adversarial, dtype=torch.float32), tensors)
save_file(tensors, pathlib.Path(__file__).parent / "quantized.safetensors")
