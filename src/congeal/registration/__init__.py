"""Registration: what two or more methods share.

batching.py                batches of a stack, its initial poses and total intensity; the image that stands for it
features.py                features of images (pixels, gradients), their weights, and which poses are admissible
gauge.py                   the common pose of a set; members of a motion
gauss_newton.py            inverse-compositional Gauss-Newton of one image to a template
joint_gauss_newton.py      the same for a whole set to its running mean, batch by batch
template_registration.py   registration of single images to a template: scores, prior, moments, random warps
tiles.py                   tiles of large images, their template, Gauss-Newton steps on them, with covariances
tile_refinement.py         joint refinement of a set on tiles, at one pyramid level; the choice of the motion by it
"""
