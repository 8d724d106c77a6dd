"""What several methods are built from: what images are compared on, what holds their common pose, and the step rules.

appearance.py    what is compared, where it counts, what a sound pose is
gauge.py         what holds the pose that the whole set shares
gaussnewton.py   the step rule of one image towards a template;  setpass.py  a whole set, streamed
matching.py      searching one image's pose against a template;  pose_prior.py  which poses are to be expected
lowrank.py       matrices of low rank plus sparse errors (rasl, pssv, tgrasta)
fields.py        distributions at every pixel, and the search towards them (entropy, sift, deepfeatures)
convfeatures.py, descriptors.py   learnt and hand-made features
reference.py     which image stands for the set;  best.py  the best iterate so far
filters.py       blur and gradients;  threads.py  how many threads to use
"""
