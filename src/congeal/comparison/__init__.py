"""Several methods on the same images, start and frame, each measured in a process of its own.

compare.py       the comparison from source to table and report
entries.py       which methods, with which settings and motion
process.py       work in a process of its own, with a time limit
"""
