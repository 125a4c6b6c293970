"""The peer of image_bench: LLaMA-Factory's resize by Pillow, then transformers' Qwen2-VL image processor on torchvision, line by line.

Reads lines "PATH COUNT" and answers each with one JSON line: images per second on one thread and the mean of the patch rows.
"""
import io
import json
import math
import sys
import time

import torch
from PIL import Image
from torchvision.transforms.v2 import functional as F

torch.set_num_threads(1)
PATCH, MERGE, LEAST, MOST = 14, 2, 3136, 12845056
MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073]) * 255
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711]) * 255


def pre_resize(image):
    if image.width * image.height > 589824:
        factor = math.sqrt(589824 / (image.width * image.height))
        image = image.resize((int(image.width * factor), int(image.height * factor)))
    return image.convert("RGB") if image.mode != "RGB" else image


def smart_resize(height, width, factor=PATCH * MERGE):
    h, w = round(height / factor) * factor, round(width / factor) * factor
    if h * w > MOST:
        beta = math.sqrt(height * width / MOST)
        h, w = max(factor, math.floor(height / beta / factor) * factor), max(factor, math.floor(width / beta / factor) * factor)
    elif h * w < LEAST:
        beta = math.sqrt(LEAST / (height * width))
        h, w = math.ceil(height * beta / factor) * factor, math.ceil(width * beta / factor) * factor
    return h, w


def patch_rows(content):
    pixels = F.pil_to_tensor(pre_resize(Image.open(io.BytesIO(content))))
    height, width = smart_resize(*pixels.shape[-2:])
    pixels = F.resize(pixels[None], [height, width], interpolation=F.InterpolationMode.BICUBIC, antialias=True)
    pixels = F.normalize(pixels.to(torch.float32), MEAN.tolist(), STD.tolist())
    patches = pixels[:, None].repeat(1, 2, 1, 1, 1)
    h, w = height // PATCH, width // PATCH
    patches = patches.view(1, 1, 2, 3, h // MERGE, MERGE, PATCH, w // MERGE, MERGE, PATCH)
    return patches.permute(0, 1, 4, 7, 5, 8, 3, 2, 6, 9).reshape(h * w, 3 * 2 * PATCH * PATCH)


for line in sys.stdin:
    if line.strip() == "ready":
        print(json.dumps({"ready": True}), flush=True)
        continue
    path, count = line.rsplit(" ", 1)
    with open(path, "rb") as file:
        content = file.read()
    with torch.no_grad():
        start = time.perf_counter()
        for _ in range(int(count)):
            rows = patch_rows(content)
        seconds = time.perf_counter() - start
    print(json.dumps({"per_second": int(count) / seconds, "mean": rows.double().mean().item()}), flush=True)
