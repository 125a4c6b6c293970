"""Small sounds in several formats, with what other programs make of them: python3 make_sounds.py
(soundfile 0.14, torchaudio 2.11, transformers 5.23, numpy).

expected.safetensors: `mono.FILE` [samples], the mean of the channels; `resampled.FILE`, that at 16 kHz by
torchaudio.functional.resample; `features.FILE` [frames, 128], the log-mel frames of WhisperFeatureExtractor."""
from pathlib import Path

import numpy as np
import soundfile
import torch
import torchaudio
from safetensors.numpy import save_file
from transformers import WhisperFeatureExtractor

folder = Path(__file__).parent
numbers = np.random.default_rng(5)


def sound(rate, seconds, channels):
    """A rising tone, a chord and noise; the third quarter is silent. Channels differ in loudness."""
    t = np.arange(int(rate * seconds)) / rate
    wave = 0.4 * np.sin(2 * np.pi * (200 + 1500 * t) * t) + 0.2 * np.sin(2 * np.pi * 440 * t) + 0.1 * np.sin(2 * np.pi * 3300 * t)
    wave += 0.02 * numbers.standard_normal(len(t))
    wave[len(t) // 2 : 3 * len(t) // 4] = 0
    return np.stack([wave * (0.9 - 0.3 * c) for c in range(channels)], 1)


files = {
    "pcm16.wav": (16000, 1.213, 1, "PCM_16"),
    "stereo24.wav": (44100, 0.13, 2, "PCM_24"),
    "pcm32.wav": (22050, 0.21, 1, "PCM_32"),
    "float.wav": (8000, 0.3, 1, "FLOAT"),
    "double.wav": (48000, 0.03, 3, "DOUBLE"),
    "byte.wav": (11025, 0.2, 1, "PCM_U8"),
    "stereo.flac": (48000, 0.15, 2, "PCM_16"),
    "mono.ogg": (24000, 0.25, 1, "VORBIS"),
    "mono.mp3": (32000, 0.3, 1, None),
}
extractor = WhisperFeatureExtractor(feature_size=128, sampling_rate=16000, hop_length=160, n_fft=400)
expected = {}
for name, (rate, seconds, channels, subtype) in files.items():
    # Plain and extended headers.
    kind = "WAVEX" if name in ("stereo24.wav", "double.wav") else None
    soundfile.write(folder / name, sound(rate, seconds, channels), rate, subtype=subtype, format=kind)
    samples, read_rate = soundfile.read(folder / name, dtype="float32", always_2d=True)
    assert read_rate == rate
    mono = samples.mean(1, dtype=np.float64).astype(np.float32)
    at_16k = torchaudio.functional.resample(torch.from_numpy(mono), rate, 16000).numpy()
    features = extractor(at_16k, sampling_rate=16000, padding=False, truncation=False, return_tensors="np").input_features[0]
    expected[f"mono.{name}"] = mono[:2000]
    expected[f"resampled.{name}"] = at_16k if rate != 16000 else at_16k[:1]
    expected[f"length.{name}"] = np.array([len(mono), len(at_16k)], np.float32)
    expected[f"features.{name}"] = np.ascontiguousarray(features.T, np.float32)
save_file(expected, folder / "expected.safetensors")
