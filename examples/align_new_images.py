"""Fit once, then align new images in milliseconds.

python examples/align_new_images.py
"""

import time

import congeal

if __name__ == "__main__":
    digits = congeal.open_images("digits:7").batch(range(150))[..., 0]  # (150, 28, 28) uint8
    model = congeal.LSC(size=28, random_state=0)
    model.fit(digits[:100])
    model.save("example-model.safetensors")

    began = time.perf_counter()
    aligned = congeal.load("example-model.safetensors").transform(digits[100:])
    seconds = time.perf_counter() - began
    print(f"{len(aligned)} new images, {aligned.dtype}, in {seconds:.2f} s")
    print(f"variance {digits[100:].var(0).mean():.0f} before, {aligned.var(0).mean():.0f} after")
