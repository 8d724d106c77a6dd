"""Joint alignment by direct optimisation, the default method: start reading at alignment.py.

estimator.py    parameters, the scikit-learn interface, the model file
alignment.py    the whole algorithm on one page
template.py     the first template; all images jointly registered to the mean of the inliers
multistart.py   each image alone, from several initial poses
pyramid.py      finer levels, up to the originals; new images
state.py        the images, the state of their alignment, and what a fitted model keeps
"""
