"""From a source of images to a finished run folder.

options.py        the options of `align` and `apply`, for Python and the command line
align.py          a set of images             apply.py           new images with the model of a finished run
model.py          the method, made from the options
initial_poses.py  poses and orientations from files, faces and features
output_options.py formats, sampling, canvas, the table of transforms
run_setup.py      config.json, the locked run folder, workers, object storage
stages.py         the work, stage by stage    groups.py          groups of a run, and their tree
render.py         aligned pixels and pictures of the whole set, here or by workers
draw.py           some images at a time       render_state.py    the sums of a shard and of a run
display.py        pixel values as grey levels match_figure.py    matching points for the report
result.py         the object that `align` and `apply` return
"""
