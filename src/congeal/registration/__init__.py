"""Registration: what two or more methods share.

features.py                features of images (pixels, gradients), their weights, and which poses are admissible
gauss_newton.py            inverse-compositional Gauss-Newton of one image to a template
joint_gauss_newton.py      the same for a whole set to its running mean, batch by batch
template_registration.py   scoring and registering images to a template; the prior on poses; random perturbations
tiles.py                   tiles of large images, their template, Gauss-Newton steps on them, with covariances
tile_refinement.py         joint refinement of a set on tiles, at one pyramid level
motion_selection.py        the simplest motion that explains the images
gauge.py                   the common pose of a set; the best iterate
moments.py                 initial poses from the moments of an object's intensity
reference.py, batching.py
"""
