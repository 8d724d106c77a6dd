"""Joint alignment by direct optimisation, the default method: start reading at alignment.py.

alignment.py    the estimator, and the whole algorithm on one page
template.py     the first template; all images jointly registered to the mean of the inliers
multistart.py   each image alone, from several initial poses
pyramid.py      finer levels, up to the originals; new images
model.py        what a fitted model keeps; inliers and outliers by a mixture of scores
"""
