"""The paper's experiments, one command each: `congeal reproduce mnist -o DIR`.

experiment.py  what an experiment is: a list of cells, and tables and figures of their rows; and how it runs
measures.py    the usual cell: one set aligned by one method in a run folder, and numbers of the result
tables.py      rows as tables;  figures.py  pictures and curves;  printed.py  what the paper prints

One file per experiment beside these; each has an `Experiment` with the name of the command in capitals.
"""

from __future__ import annotations

# name on the command line: (module, one sentence)
EXPERIMENTS = {
    "mnist": ("congeal.experiments.mnist", "ten digits, 6,000 images each, our method and the peers"),
    "perspective": ("congeal.experiments.perspective", "the same under random perspective warps of 10, 20 and 30 %"),
    "ablation": ("congeal.experiments.ablation", "what each term of the loss and each of our additions buys"),
    "scaling": ("congeal.experiments.scaling", "time and memory from 1,000 to 1,000,000 images"),
    "affnist": ("congeal.experiments.large_sets", "100,000 images per digit under affine warps"),
    "infimnist": ("congeal.experiments.large_sets", "1,000,000 images per digit under local deformations"),
    "paper": ("congeal.experiments.paper", "the printed method by itself: its losses over training, beside our recipe"),
    "groups": ("congeal.experiments.groups", "piles of several kinds: groups against labels, and how many there are"),
    "lfw": ("congeal.experiments.lfw", "faces of four people, and how far their landmarks lie apart"),
    "cub": ("congeal.experiments.wild", "birds of three species: points of one image found in the others"),
    "willow": ("congeal.experiments.wild", "cars, ducks, motorbikes, bottles: the same, ten images each"),
}
