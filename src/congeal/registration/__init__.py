"""Registration: what two or more methods share.

features.py                features of images (pixels, gradients), their weights, and which poses are admissible
gauss_newton.py            inverse-compositional Gauss-Newton of one image to a template
joint_gauss_newton.py      the same for a whole set to its running mean, batch by batch
template_registration.py   scoring and registering images to a template; random perturbations
tiles.py, tile_solver.py, tile_refinement.py   registration of large images on tiles, with covariances
motion_selection.py        the simplest motion that explains the images
gauge.py, pose_prior.py    the common pose of a set; the prior on single poses
moments.py                 initial poses from the moments of an object's intensity
reference.py, best_iterate.py, batching.py, cross_correlation.py, filters.py
"""
