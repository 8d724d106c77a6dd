"""Several methods on the same images, start and frame, each measured in a process of its own.

compare.py   the comparison from source to table and report
entries.py   which methods, with which settings and motion
frozen.py    the prepared stack as files, so that every process sees the same; no copy where it is in files already
child.py     starting, timing and ending a process;  worker.py  what runs in it
"""
