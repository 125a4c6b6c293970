"""Small video files, and some of their frames as PyAV converts them: python3 make_videos.py (PyAV 18.1, Pillow, numpy)."""
from pathlib import Path

import av
import numpy as np
from PIL import Image, ImageDraw

folder = Path(__file__).parent / "video"
folder.mkdir(exist_ok=True)


def picture(i, width=64, height=48):
    y, x = np.mgrid[0:height, 0:width]
    image = Image.fromarray(
        np.stack([(x * 4 + i * 9) % 256, (y * 5) % 256, np.full_like(x, (i * 20) % 256)], -1).astype(np.uint8))
    ImageDraw.Draw(image).rectangle([4 + 3 * i, 10, 18 + 3 * i, 30], fill=(250, 20 * i % 256, 40))
    return image


def write(name, codec, frames, rate, kept, container_options=None, **options):
    with av.open(str(folder / name), "w", options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=rate, options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for i in range(frames):
            container.mux(stream.encode(av.VideoFrame.from_image(picture(i))))
        container.mux(stream.encode())
    with av.open(str(folder / name)) as container:
        for i, frame in enumerate(container.decode(container.streams.video[0])):
            if i in kept:
                frame.to_image().save(folder / f"{name}.{i}.png")


# The header of the first stands in front of the frames, so that it outlives a cut; the others do not say how many
# frames they have.
write("clip.mp4", "libx264", 13, 4, [0, 6, 12], {"movflags": "faststart"}, crf="30", bf="2")
write("clip.mkv", "ffv1", 6, 3, [5])
write("clip.webm", "libvpx", 9, 5, [8], crf="30")
