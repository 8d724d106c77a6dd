"""The paper's experiments, one command each: `congeal reproduce mnist -o DIR`.

plan.py       what an experiment is: a list of cells, and tables and figures of their rows
execute.py    run the cells that are not done, then write tables and figures
aligning.py   the usual cell: one set aligned by one method in a run folder, in a process of its own if that matters
tables.py     rows as Markdown, CSV and JSON;  figures.py  pictures and curves;  printed.py  what the paper prints
seen.py       images as an alignment shows them, for numbers that metrics.json does not have
wrapped.py    one of these: APSNR in the arithmetic that the paper may have used

One file per experiment beside these; each has an `EXPERIMENT`.
"""

from __future__ import annotations

# name on the command line: (module, one sentence)
EXPERIMENTS = {
    "mnist": ("congeal.experiments.mnist", "ten digits, 6,000 images each, our method and the peers"),
    "perspective": ("congeal.experiments.perspective", "the same under random perspective warps of 10, 20 and 30 %"),
    "ablation": ("congeal.experiments.ablation", "what each term of the loss and each of our additions buys"),
    "scaling": ("congeal.experiments.scaling", "time and memory from 1,000 to 1,000,000 images"),
    "affnist": ("congeal.experiments.affnist", "100,000 images per digit under affine warps"),
    "infimnist": ("congeal.experiments.infimnist", "1,000,000 images per digit under local deformations"),
    "paper": ("congeal.experiments.paper", "the printed method by itself: its losses over training, beside our recipe"),
    "groups": ("congeal.experiments.groups", "piles of several kinds: groups against labels, and how many there are"),
    "lfw": ("congeal.experiments.lfw", "faces of four people, and how far their landmarks lie apart"),
    "cub": ("congeal.experiments.cub", "birds of three species: points of one image found in the others"),
    "willow": ("congeal.experiments.willow", "cars, ducks, motorbikes, bottles: the same, ten images each"),
}
