"""Several kinds of things in one pile: sorted into groups, each aligned by itself.

`sorting.py` finds the groups, `aligning.py` aligns each, `estimator.py` is the estimator `CongealGroups`.
"""
