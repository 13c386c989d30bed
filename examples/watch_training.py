"""The curvature of a small convolutional network while it is trained, and where it ends up.

Run with

    python examples/watch_training.py [folder]

It takes some ten seconds, prints tables, and writes training.png, layers.png and density.png into
the folder. Started again with the same folder it goes on where it ended, model and history.
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hessence as hs

EVERY, EPOCHS, RATE = 5, 5, 0.05

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "out/watch_training")
folder.mkdir(parents=True, exist_ok=True)

# Images of 8 × 8 with a bright row or a bright column, in noise: which, and where?
torch.manual_seed(0)
labels = torch.randint(16, (512,))
images = 0.5 * torch.randn(512, 1, 8, 8)
for image, label in zip(images, labels.tolist(), strict=True):
    line = image[0, label] if label < 8 else image[0, :, label - 8]
    line += 1

model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU(), nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU(), nn.Flatten(),
    nn.Dropout(0.1), nn.Linear(16 * 4 * 4, 16),
)  # fmt: skip
loss = nn.CrossEntropyLoss()
loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

# Sharpness is measured on some data that stay the same, without dropout and with the running
# averages of batch norm: that is `eval_mode`, which leaves the model in the mode it is in.
probe = images[:128], labels[:128]
monitor = hs.Monitor(model, probe, loss, k=2, lr=RATE, path=folder / "history.json", eval_mode=True)
step = 0
checkpoint = folder / "model.pt"
if checkpoint.exists():
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    step = saved["step"]

for _ in range(EPOCHS):
    for x, y in loader:
        if step % EVERY == 0:
            monitor.measure(step)
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
        step += 1

torch.save({"model": model.state_dict(), "step": step}, checkpoint)
print(monitor.history)
monitor.plot().figure.savefig(folder / "training.png")

# Where does the curvature sit?
layers = hs.layer_spectra(model, probe, loss, k=3, eval_mode=True)
print(layers)
layers.plot().figure.savefig(folder / "layers.png")

# And what does all of the spectrum look like?
spectrum = hs.spectrum(model, probe, loss, k=10, eval_mode=True, probes=4, steps=40)
print(spectrum)
spectrum.plot().figure.savefig(folder / "density.png")

# What was measured is the model's: its sharpness now is that of the spectrum.
monitor.measure(step)
assert abs(monitor.history[-1].sharpness / float(spectrum.sharpness) - 1) < 1e-3
