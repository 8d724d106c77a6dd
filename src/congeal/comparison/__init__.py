"""Several methods on the same images, start and frame, each measured in a process of its own.

compare.py       the comparison from source to table and report
entries.py       which methods, with which settings and motion
shared_stack.py  the prepared images, as another process sees them
process.py       work in a process of its own, with a time limit
"""
