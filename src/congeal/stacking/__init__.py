"""One picture out of many: the aligned originals of a run, combined.

stack.py     `stack`: which images, how, and the file that is written
frames.py    originals as they lie in the aligned picture, a few rows of it at a time
combine.py   means that flaws do not reach, and how much of the detail each image shows
"""

from congeal.stacking.stack import METHODS, StackResult, stack

__all__ = ["METHODS", "StackResult", "stack"]
