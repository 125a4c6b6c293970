"""Small video files, and some of their frames and their sound as PyAV converts them: python3 make_videos.py (PyAV 18.1,
Pillow, numpy)."""
import wave
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


# A video with sound: two channels, of which the WAV beside it holds the mean.
def write_with_sound(name, frames, rate, sound_rate):
    samples = np.arange(int(frames / rate * sound_rate)) / sound_rate
    both = np.stack([0.4 * np.sin(2 * np.pi * 220 * samples), 0.2 * np.sin(2 * np.pi * 660 * samples)]).astype(np.float32)
    with av.open(str(folder / name), "w") as container:
        stream = container.add_stream("libx264", rate=rate, options={"crf": "30"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        sound = container.add_stream("aac", rate=sound_rate, layout="stereo", bit_rate=24000)
        for i in range(frames):
            container.mux(stream.encode(av.VideoFrame.from_image(picture(i))))
        container.mux(stream.encode())
        frame = av.AudioFrame.from_ndarray(both, format="fltp", layout="stereo")
        frame.sample_rate = sound_rate
        container.mux(sound.encode(frame))
        container.mux(sound.encode())
    with av.open(str(folder / name)) as container:
        heard = np.concatenate([f.to_ndarray() for f in container.decode(container.streams.audio[0])], 1)
    with wave.open(str(folder / (name + ".wav")), "wb") as out:
        out.setnchannels(1), out.setsampwidth(2), out.setframerate(sound_rate)
        out.writeframes(np.round(heard.mean(0) * 32768).clip(-32768, 32767).astype("<i2").tobytes())


write_with_sound("sound.mp4", 6, 4, 8000)
