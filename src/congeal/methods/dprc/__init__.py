"""Deep penalised reconstruction congealing: the paper's networks and losses, as printed and as an estimator that works.

losses.py       D and C, and what keeps them sound   networks.py     DeSTNet and the auto-encoders
as_printed.py   the paper's training, one loop       estimator.py    `DPRC`
training.py     the training of `DPRC`               prediction.py   poses from networks, model file, ONNX
"""
