"""One picture out of many: the aligned originals of a run, combined.

stack.py    `stack`: which images, how, and the file that is written
combine.py  the originals as they lie in the aligned picture, and means of them that flaws do not reach
"""

from congeal.stacking.stack import METHODS, StackResult, stack

__all__ = ["METHODS", "StackResult", "stack"]
