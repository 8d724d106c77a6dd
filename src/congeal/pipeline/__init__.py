"""From a source of images to a finished run folder.

align.py    a set of images             apply.py   new images with the model of a finished run
request.py  what was asked, checked     starts.py  where the alignment starts
stages.py   the work, stage by stage    result.py  what comes back
render.py   aligned pixels and pictures of the whole set from the originals
display.py  pixel values as grey levels of a picture
"""
