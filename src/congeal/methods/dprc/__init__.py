"""Deep penalised reconstruction congealing: the paper's networks and losses, as printed and as an estimator that works.

networks.py     DeSTNet and the auto-encoders      losses.py            D and C as printed
as_printed.py   the paper's training, one loop     training_losses.py   D, C and S as they are trained here
estimator.py    `DPRC`                             training.py          its training
onnx.py         the aligner for use without torch
"""
