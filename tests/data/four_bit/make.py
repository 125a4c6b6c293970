#!/usr/bin/env python3
"""Makes quantized.safetensors beside this file: tensors in 4 bits as bitsandbytes writes them into checkpoints.

    pip download --no-deps bitsandbytes==0.50.2 && unzip bitsandbytes-*.whl
    make.py FOLDER        # that holds bitsandbytes/libbitsandbytes_cpu.so; needs numpy, and no torch

From the library of bitsandbytes 0.50.2 itself, called through ctypes: codes of 8 bits and their scales (double
quantization), and the numbers that codes of 4 bits stand for. Its functions for codes of 4 bits on the CPU are Python
over torch; here they are repeated in numpy, which rounds every operation as torch does:

    codes_default   backends/default/ops.py, quantize_4bit
    codes_cuda      dQuantizeNF4 and dQuantizeFP4 of csrc (the limits), on numbers times 1 / largest magnitude

The two differ where a tail is divided instead of multiplied, in the sign of numbers that fp4 rounds to 0, and in
blocks of zeros. The file holds codes_cuda, with codes_default for blocks of zeros; the differences are counted below.

Scales are multiples of a power of two, so that their fp32 sum, and so their mean, does not depend on its order.
"""
import ctypes
import json
import pathlib
import sys

import numpy as np

f4 = np.float32
library = ctypes.CDLL(str(pathlib.Path(sys.argv[1]) / "bitsandbytes" / "libbitsandbytes_cpu.so"))

NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
                1.0], f4)
FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3], f4) / f4(12)
VALUES = {"nf4": NF4, "fp4": FP4}


def as_in_c(text):
    """Numbers as a C compiler reads them with the suffix f: rounded once. Some lie near the middle of two."""
    strtof = ctypes.CDLL(None).strtof
    strtof.restype, strtof.argtypes = ctypes.c_float, [ctypes.c_char_p, ctypes.c_void_p]
    return np.array([strtof(word.encode(), None) for word in text.split()], f4)


NF4_LIMITS = as_in_c("""-0.8480964004993439 -0.6106329262256622 -0.4599952697753906 -0.33967943489551544
                        -0.23460740596055984 -0.13791173323988914 -0.045525018125772476 0.03979014977812767
                        0.1202552504837513 0.2035212516784668 0.2920137718319893 0.3893125355243683
                        0.5016634166240692 0.6427869200706482 0.8614784181118011""")
FP4_LIMITS = as_in_c("0.00260417 0.0859375 0.20833333 0.29166667 0.4166667 0.583333 0.8333333")
FP4_CODES = np.array([0, 1, 6, 7, 4, 5, 2, 3], np.uint8)


def linspace(items):
    """torch.linspace(0.1, 1, items) on the CPU: from both ends."""
    start, end = f4(0.1), f4(1)
    step = (end - start) / f4(items - 1)
    return np.array([start + step * f4(i) if i < items // 2 else end - step * f4(items - 1 - i) for i in range(items)],
                    f4)


def dynamic_map():
    """functional.create_dynamic_map()."""
    data = [0.0, 1.0]
    for i in range(7):
        bounds = linspace(2**i + 1)
        means = (bounds[:-1] + bounds[1:]) / f4(2)
        power = f4(10.0 ** (i - 6))
        data += list(power * means) + list(-power * means)
    return np.sort(np.array(data, f4))


def blocks_of(x, block=64):
    return [x[i:i + block] for i in range(0, len(x), block)]


def codes_cuda(x, kind):
    codes = []
    for block in blocks_of(x):
        largest = np.abs(block).max()
        scaled = block * (f4(1) / max(largest, f4(1e-38)))
        if kind == "nf4":
            codes.append(np.searchsorted(NF4_LIMITS, scaled, side="left"))
        else:
            place = np.searchsorted(FP4_LIMITS, np.abs(scaled), side="left")
            codes.append(FP4_CODES[place] + np.where(scaled < 0, 8, 0))
    return np.concatenate(codes).astype(np.uint8)


def codes_default(x, kind):
    values = VALUES[kind]
    order = np.argsort(values, kind="stable")
    limits = (values[order[:-1]] + values[order[1:]]) / f4(2)
    scaled = []
    for block in blocks_of(x):
        largest = max(np.abs(block).max(), f4(1e-38))
        scaled.append(np.clip(block * (f4(1) / largest) if len(block) == 64 else block / largest, -1, 1))
    return order[np.searchsorted(limits, np.concatenate(scaled), side="left")].astype(np.uint8)


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def quantize_8bit(x, code):
    """quantize_blockwise of the library, in blocks of 256."""
    codes, largest = np.empty(len(x), np.uint8), np.empty(-(-len(x) // 256), f4)
    library.cquantize_blockwise_cpu_fp32(pointer(code.copy()), pointer(x), pointer(largest), pointer(codes),
                                         ctypes.c_longlong(256), ctypes.c_longlong(len(x)))
    return codes, largest


def dequantize_8bit(codes, largest, code):
    x = np.empty(len(codes), f4)
    library.cdequantize_blockwise_cpu_fp32(pointer(code), pointer(codes), pointer(largest), pointer(x),
                                           ctypes.c_longlong(256), ctypes.c_longlong(len(codes)))
    return x


def dequantize_4bit(packed, scales, kind, n):
    x = np.empty(2 * len(packed), f4)
    function = getattr(library, f"cdequantize_blockwise_cpu_{kind}_fp32")
    function(pointer(packed), pointer(scales), pointer(x), ctypes.c_longlong(64), ctypes.c_longlong(1),
             ctypes.c_longlong(len(x)))
    return x[:n]


def quantized(name, x, kind, double, tensors):
    """Adds what Params4bit writes for a weight of this name, and `name`.numbers: what it stands for, in fp32."""
    flat = x.reshape(-1).astype(f4)
    codes, other = codes_cuda(flat, kind), codes_default(flat, kind)
    zeros = np.repeat([not b.any() for b in blocks_of(flat)], 64)[:len(flat)]
    codes = np.where(zeros, other, codes)
    differ = (codes != other) & ~((codes % 8 == 0) & (other % 8 == 0) if kind == "fp4" else False)
    print(f"{name}: {len(flat)} numbers, {differ.sum()} codes differ between bitsandbytes' versions")
    # The number beyond the end is a 0.
    padded = np.append(codes, 7 if kind == "nf4" else 0) if len(codes) % 2 else codes
    packed = (padded[::2] << 4 | padded[1::2]).astype(np.uint8)
    scales = np.array([np.abs(b).max() for b in blocks_of(flat)], f4)
    state = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16" if name.startswith("wide") else "float32",
             "shape": list(x.shape)}
    tensors[f"{name}.weight"] = packed.reshape(-1, 1)
    tensors[f"{name}.weight.quant_map"] = VALUES[kind]
    if double:
        offset = f4(scales.sum(dtype=f4) / f4(len(scales)))
        assert offset == f4(scales.sum(dtype=np.float64) / len(scales))
        code = dynamic_map()
        scale_codes, nested = quantize_8bit(scales - offset, code)
        # The CUDA kernel multiplies by 1 / largest, the library for the CPU divides: no code may depend on it.
        limits = (code[:-1] + code[1:]) * f4(0.5)
        inverse = np.repeat(f4(1) / np.maximum(nested, f4(1e-38)), 256)[:len(scales)]
        assert (scale_codes == np.searchsorted(limits, (scales - offset) * inverse, side="left")).all()
        tensors[f"{name}.weight.absmax"] = scale_codes
        tensors[f"{name}.weight.nested_absmax"] = nested
        tensors[f"{name}.weight.nested_quant_map"] = code
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(offset)}
        scales = dequantize_8bit(scale_codes, nested, code) + offset
    else:
        tensors[f"{name}.weight.absmax"] = scales
    tensors[f"{name}.weight.quant_state.bitsandbytes__{kind}"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    tensors[f"{name}.numbers"] = dequantize_4bit(packed, scales.astype(f4), kind, len(flat)).reshape(x.shape)


def save(path, tensors):
    """Like safetensors.numpy.save_file, with BF16 for the inputs named so."""
    names = {"float32": "F32", "uint8": "U8", "uint16": "BF16"}
    header, data = {}, b""
    for name, array in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": names[str(array.dtype)], "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


random = np.random.default_rng(7)
normal = np.round(random.standard_normal((24, 80)) * 4096).astype(f4) / f4(4096)
# A block of zeros, one of subnormal numbers, one with the largest numbers, one with every limit of both kinds, and a
# tail of 5.
adversarial = np.zeros((9, 29), f4)
flat = adversarial.reshape(-1)
flat[64:128] = np.arange(-32, 32) * f4(1e-42)
flat[128:192] = random.standard_normal(64) * f4(1e37)
flat[130], flat[131] = np.finfo(f4).max, np.finfo(f4).min
flat[192:207], flat[207:214], flat[214:221], flat[255] = NF4_LIMITS, FP4_LIMITS, -FP4_LIMITS, 1
flat[256:261] = [0.5, -0.25, 0.125, 0, -1]
# 300 scales of 8 bits, in two blocks.
wide = (random.integers(-200, 201, (150, 128)) * 2.0 ** random.integers(-4, 1, (150, 1)) / 128).astype(f4)
tensors = {"normal.input": normal, "adversarial.input": adversarial,
           "wide.input": (wide.view(np.uint32) >> 16).astype(np.uint16)}
assert ((wide.view(np.uint32) & 0xffff) == 0).all()
for kind in ("nf4", "fp4"):
    quantized(f"normal_{kind}", normal, kind, False, tensors)
    quantized(f"adversarial_{kind}", adversarial, kind, False, tensors)
    quantized(f"wide_{kind}", wide, kind, True, tensors)
save(pathlib.Path(__file__).parent / "quantized.safetensors", tensors)
