"""Joint alignment by direct optimisation, the default method: start reading at alignment.py.

estimator.py        parameters, the scikit-learn interface, the model file
alignment.py        the whole algorithm on one page
initialisation.py   the first template        multistart.py   each image alone, from several initial poses
refinement.py       all images jointly        pyramid.py      finer levels, up to the originals
state.py            the images and their state        fitted_model.py   what places new images
"""
