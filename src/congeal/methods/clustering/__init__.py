"""Clustering of a set into groups, each aligned by itself.

`sample_clustering.py` finds the groups, `group_fit.py` aligns one, `estimator.py` is the estimator `CongealGroups`.
"""
