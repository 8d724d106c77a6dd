"""One picture out of many: the aligned originals of a run, combined.

stack.py     `stack`: which images, how, and where to
frames.py    originals as they lie in the aligned picture, a few rows of it at a time
combine.py   means that flaws do not reach
sharpness.py how much of the detail each image shows
picture.py   the file that is written
"""

from congeal.stacking.stack import METHODS, StackResult, stack

__all__ = ["METHODS", "StackResult", "stack"]
