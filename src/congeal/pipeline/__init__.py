"""From a source of images to a finished run folder.

options.py        the options of `align` and `apply`, for Python and the command line
align.py          a set of images             apply.py           new images with the model of a finished run
model.py          the method, made from the options               output_options.py  formats, sampling, canvas
initial_poses.py  poses from files and faces  initialisation.py  poses and orientations that are estimated first
config.py         config.json and the locked run folder           stages.py          the work, stage by stage
render.py         aligned pixels and pictures of the whole set    display.py         pixel values as grey levels
result.py         the object that `align` and `apply` return
"""
