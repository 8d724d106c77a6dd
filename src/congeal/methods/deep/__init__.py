"""The deep method, for two readers.

The paper:   networks.py (aligner, auto-encoders) · losses.py (D and C) · paper.py (its training, one plain loop)
What we do:  recipe.py (seed → train → settle → refine), one file per stage; recipe_losses.py; state.py
The rest:    congealing.py (the estimator) · onnx.py (the aligner for use without torch)
"""
