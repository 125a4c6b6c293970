"""Images that the golden set has not, with what Pillow makes of them: python3 make_images.py (Pillow 13.0, numpy)."""
import hashlib
import io
import json
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

folder = Path(__file__).parent
y, x = np.mgrid[0:37, 0:53]
rgb = np.stack([(x * 5) % 256, (y * 7) % 256, (x * y) % 256], -1).astype(np.uint8)
alpha = ((x + y) * 3 % 256).astype(np.uint8)
picture = Image.fromarray(rgb)
with_alpha = Image.fromarray(np.dstack([rgb, alpha]))

picture.save(folder / "lossy.webp", quality=70)
picture.save(folder / "lossless.webp", lossless=True)
with_alpha.save(folder / "alpha.webp", lossless=True)
picture.quantize(16).save(folder / "palette4.png", bits=4)
with_alpha.quantize(32).save(folder / "palette_alpha.png")
Image.fromarray(rgb[:, :, 0]).save(folder / "grey_key.png", transparency=10)
picture.save(folder / "rgb_key.png", transparency=tuple(int(v) for v in rgb[3, 4]))
picture.save(folder / "optimized.jpg", quality=60, progressive=True, restart_marker_rows=1)


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width, height, depth, color, rows, interlace=0, extra=b""):
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlace)) + extra
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


deep = np.stack([x * 1200, y * 1700, x * y * 30], -1).astype(">u2")
(folder / "rgb16.png").write_bytes(png(53, 37, 16, 2, b"".join(b"\0" + row.tobytes() for row in deep)))
(folder / "grey16.png").write_bytes(png(53, 37, 16, 0, b"".join(b"\0" + row.tobytes() for row in deep[:, :, 0])))
grey2 = (x // 9 % 4).astype(np.uint8)[:, :52]
packed = [bytes(int(r[i]) << 6 | int(r[i + 1]) << 4 | int(r[i + 2]) << 2 | int(r[i + 3]) for i in range(0, 52, 4)) for r in grey2]
(folder / "grey2.png").write_bytes(png(52, 37, 2, 0, b"".join(b"\0" + row for row in packed)))
# Adam7: seven passes, each with its own offsets and steps.
passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
rows = b""
for x0, y0, dx, dy in passes:
    part = rgb[y0::dy, x0::dx]
    rows += b"".join(b"\0" + row.tobytes() for row in part)
(folder / "interlaced.png").write_bytes(png(53, 37, 8, 2, rows, interlace=1))

# Not compared with Pillow: what becomes of it depends on the limits of a processor.
(folder / "odd").mkdir(exist_ok=True)
strip = bytes(i // 100 % 256 for i in range(20000))
(folder / "odd" / "strip_20000x1.png").write_bytes(png(20000, 1, 8, 0, b"\0" + strip))

frames = [Image.fromarray(np.roll(rgb, 5 * i, 1)) for i in range(3)]
frames[0].save(folder / "animated.webp", save_all=True, append_images=frames[1:])
frames[0].save(folder / "animated.png", save_all=True, append_images=frames[1:])

expected = {}
for file in sorted(folder.glob("*.*")):
    if file.suffix not in (".png", ".webp", ".jpg") or file.stem == "animated":
        continue
    image = Image.open(file)
    entry = {"mode": image.mode, "width": image.width, "height": image.height}
    if file.stem == "grey16":  # Pillow's conversion makes almost everything white: see decode.h
        converted = Image.fromarray((np.array(image) >> 8).astype(np.uint8)).convert("RGB")
    else:
        converted = image.convert("RGB")
    entry["rgb_sha256"] = hashlib.sha256(converted.tobytes()).hexdigest()
    if file.stem != "grey16":
        small = image.resize((23, 29)).convert("RGB")
        entry["resized_23x29_sha256"] = hashlib.sha256(small.tobytes()).hexdigest()
    if "transparency" in image.info or "A" in image.getbands():
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        entry["on_white_sha256"] = hashlib.sha256(Image.alpha_composite(white, rgba).convert("RGB").tobytes()).hexdigest()
    expected[file.name] = entry
(folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
