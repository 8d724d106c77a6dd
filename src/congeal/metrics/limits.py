"""Every threshold on the numbers of an alignment, in one place.

*Ink* is the sum of an image's pixel values: what there is of an object on empty ground. The *energy ratio* is the ink
of the aligned images divided by that of the sources; 1 is right. The bands were chosen on MNIST digits and widened
until no sound alignment of any digit, clean or perturbed by up to 30 %, fell outside them.

Thresholds on likeness, chance and kinds were chosen on alignments by `lsc` and `deep` of MNIST threes and sevens
(alone, with other digits, in mirrored and turned halves), of one person's faces (Capriati; with textures, shuffled
pixels and other pictures), of noise and blobs, and on known warps of a photograph (the cameraman).
The limits on kinds were placed on thirty sets of one digit and ten of another person's faces (Bush).
benchmarks/everyday_verdict.py holds all of them against other digits, people, photographs and stacks.
"""

from __future__ import annotations

Band = tuple[float, float]
"""(lowest, highest) value allowed."""

# ---- which kind of set it is: objects on empty dark ground, or photographs

WHITE_QUANTILE = 0.999
"""The brightest value of a set is this quantile of its pixels: a few hot pixels must not decide."""
DARK = 0.1
"""A pixel is dark up to this share of the brightest value."""
EMPTY_BORDER = 0.75
"""Images of objects have at least this share of dark pixels along the border …"""
EMPTY_GROUND = 0.4
"""… and at least this share in the whole image."""

# ---- objects on empty ground: what a whole set may do

COLLAPSE_ENERGY: Band = (0.9, 1.1)
"""An energy ratio outside it is a collapse, and is called one."""
LOST_ENERGY = 0.5
"""Below it the object was not shrunk but pushed out of the frame."""
COMPARABLE_ENERGY: Band = (0.93, 1.07)
"""Costs of two iterates may be compared while both are inside: shrinking lowers any cost, and is no progress."""
HELD_ENERGY: Band = (0.95, 1.0)
"""Where the gauge holds the set: well inside what counts as a collapse, and never larger than what came in."""
REFINED_ENERGY: Band = (0.95, 0.95)
"""Where the deep method's refinement ends, wherever it began, so that results of different sets can be compared: an
energy ratio higher by 0.01 costs 0.04 dB."""

# ---- objects: what one image may do

MATCH_INK: Band = (1 / 3, 3.0)
"""Ink of one image against its own source while its pose is searched; a narrow two needs more than twice its ink."""
LOST_INK = 0.5
"""An aligned image with less of its ink than this has failed."""
BLANK_INK = 0.02
"""A source image with less than this share of the set's median ink is blank."""

# ---- photographs, where ink means nothing

COLLAPSE_SCALE: Band = (0.85, 1.15)
"""Mean scale against the start: outside it the set was shrunk or enlarged as a whole."""
LOST_RISE = 0.25
"""Rise of the mean out-of-frame share beyond which the object was pushed out of the frame."""
LOST_OUTSIDE = 0.9
"""A photograph that covers less than a tenth of the frame has failed."""

# ---- local contrast

SURROUNDINGS = 1 / 32
"""Sigma of the Gaussian that light is measured with, as a share of the frame's longer side …"""
LEAST_SURROUNDINGS = 1.5
"""… and at least so many pixels: the strokes of a digit of 28 pixels are two or three wide. Wider ones (2.5, 4) tell
foreign digits from right ones less often (AUC 0.961 and 0.931 against 0.965)."""
FLAT_CONTRAST = 0.2
"""The local deviation counts as at least this share of the usual one, so that flat places do not become noise."""
SEEN = 0.5
"""A pixel counts where at least this share of it has image under it."""
COMMON = 0.3
"""The mean of the others counts where at least this share of them show something."""

# ---- how much is looked at

FINE_SIDE = 192
"""Longer side of the pictures that likeness is measured on, where the originals have as much …"""
FINE_IMAGES = 2_000
"""… and the set has no more images; larger sets are measured at the size they were aligned at."""
SAMPLE_VALUES = 16_000_000
"""Pixel values of the images that are compared with each other and kept for it (64 MB); of larger sets a sample."""
SAMPLE_IMAGES = 2_000
"""Images of such a sample, at most. All other images are compared with its mean."""
PAIRED_IMAGES = 256
"""Images of it of which every two are compared, at most."""
CHANCE_IMAGES = 64
"""Images that get a double of noise, at most."""
CHANCE_REACH = 0.25
"""How far a double is moved to where it fits best, as a share of the frame. What it reaches there against what `lsc`
makes of the same: noise 0.056 against 0.053, noise of 28 pixels 0.114 against 0.122, blobs 0.17 against 0.20."""

# ---- sequences, of which each image is held against those near it in time

TIME_NEIGHBOURS = (1, 3)
"""How many images before and after: the next, and one that slow motion has moved a little from."""
NEIGHBOUR_SHARE = 0.5
"""An image of a sequence is as like its neighbours as this share of what is usual: they show the same thing."""
BOTH_SEEN = 0.1
"""Share of a frame that two images must both show to be compared."""

# ---- single images

COMMON_OBJECT = 2.5
"""How many times more matches of features must agree than by chance for a set to have an object in common: photographs
of different things reach 2.1 to 2.2, of one kind of bird, car, bottle or face 2.9 to 8."""
FOLLOWED_SHARE = 0.3
"""And the share of pairs whose matches must follow what images show when the window moves: noise of seven kinds 0 to
0.04, birds, cars, bottles and faces 0.57 and more."""
TOLD_APART = 0.07
"""How much better, as a share, an image must fit one way round than the other to tell them apart …"""
UNTOLD = 0.1
"""… and the share of a set that may not. Digits 2, 3, 4, 6 and 7 in a mirror 0.09 to 0.18 at this quantile; faces, and
the digits 0, 1 and 8, 0.02 to 0.05."""
WILD_SCALE = 3.0
"""An image that is enlarged or reduced by more than this factor, against the middle of the set, has failed."""
NEAREST = 0.25
"""An image is held against the quarter of the set that it is most like: a set may vary, and means of means hide it."""
CENTRE = 0.6
"""The quantile of that which stands for a right image: up to a third of a set may be foreign."""
MATCH_SHARE: Band = (0.25, 0.85)
"""A right image reaches this share of what stands for one: the first where images are hardly alike, the second where
they are identical, in between in proportion. Digits (alike by 0.8) and faces (0.2) differ that much."""
BENT_SHARE = 0.9
"""An object whose frame is wild reaches this share. With it 82 % of the foreign ones among digits are found, 69 %
without; of the others 3.7 and 2.7 % are flagged, nearly all of them because `lsc` wrecked them."""
NEAREST_AGAIN = 1 / 8
"""Where objects are looked at again, each is held against the eighth that it is most like …"""
MATCH_AGAIN = 0.6
"""… and a right one reaches this share of what is usual among members, in all ways of looking together. Chosen on 580
sets of 50 of one of the ten digits (MNIST 0 to 2,000 and 2,400 to 4,000, `lsc`), between what finds 90 % of the foreign
ones and what flags 2 % of the right ones, see docs/experiments.md."""
LIKENESS_WEIGHT, PIECES_WEIGHT, CLOSED_WEIGHT = 0.15, 0.275, 0.15
"""How much of what an image reaches is likeness in each of two looks, pieces in the second look and upright (each), and
being closed in on the same sides."""
MEMBER = 0.75
"""Who reaches this share is clearly a member; all are held against members only."""
SEVERAL = 0.05
"""A set has foreign images where this share of it reaches too little; fewer are odd ones of its own …"""
FOREIGN_WEIGHT, FOREIGN_REACH = 0.4, 0.4
"""… and so much counts against an image of what it reaches, beyond the second, among foreign ones."""
ROUNDS = 3
"""How often members and foreign images are told apart; in the first round all may be members."""
PIECES_SIDE = 28
"""Pixels of the longer side, about, of pictures that are compared piece by piece …"""
PIECES_IMAGES = 64
"""… with so many images of the set, at most."""
PIECE, PIECE_STRIDE, PIECE_REACH = 3, 2, 2
"""Pixels that a piece is wide, from one to the next, and that it may lie elsewhere. A reach of 1 finds as many foreign
digits, one of 3 fewer."""
PIECES_LEFT = 0.01
"""Share of an object that is left over when it is held against itself, but drawn between other pixels."""
PIECES_MISSED = 0.1
"""Share of an object that a right one may miss, however alike the others are. Of letters in 230 fonts 0.03 is usual and
0.04 the median, of foreign ones 0.38; without this 13 % of the right letters would be flagged, with it 4 %. Digits miss
0.07 (ones) to 0.19."""
FULL_INK = 0.98
"""The quantile of an object's pixels that stands for a full stroke."""
CLOSED_SIDES, CLOSED_CELL = 2, 4
"""Sides on which a place is closed in, at least, and pixels of the cells in which such places are counted."""
CHANCE_DEVIATIONS = 0.5
"""And every right image lies so many deviations above what noise of the same kind reaches."""

# ---- the set

FAILED_CHANCE = 1.5
"""Likeness below so many times that of noise is none. Noise, blobs, textures and faces that `lsc` lost: 0.9 to 1.5;
right faces 2.3 and more, digits 2.2 and more."""
FREEDOMS = 6
"""Of a homography beyond a shift …"""
FITTED_CHANCE = {"photo": 1.65, "object": 1.5}
"""… and so many times what noise reaches by them photographs are alike. Blobs, gravel and pictures without faces under
`deep` 0.9 to 1.4, different clothes 1.6; faces of one person 2.2 and more. Objects are held against their own pieces
(`congeal.methods.in_pieces`): random blobs under `lsc` and `deep` 1.0 to 1.6, where the last are called mixed …"""
UNFITTED_CHANCE = 1.0
"""… unless they are so many times as alike as noise at best where they started, too: nobody fitted that. Noise, gravel
and clothes 0 to 0.5; small faces of many people 1.9, with 30 % of other pictures 1.3."""
DOUBTED_OBJECTS = 0.6
"""Only objects that are less alike than this are held against their pieces: random blobs end at 0.3 to 0.5, digits and
letters at 0.7 and more."""
FAILED_IMAGES = 0.5
"""An alignment in which so many images have failed has failed."""
MATCHING = 0.85
"""Where fewer images than this share match, the set is mixed."""
CHESSBOARD = 8
"""Squares along the longer side of the board on which groups are found and compared."""
SMALLEST_GROUP = 3
"""Images in a group, at least."""
NEIGHBOURS = 1 / 8
"""The nearest neighbours of an image are this share of the set …"""
NEIGHBOURS_AT_LEAST = 3
"""… and at least so many."""
OBJECT_UNITY = 0.8
"""Objects whose two groups are less alike than this are of several kinds. 30 sets of 50 of one digit: 0.81 and more,
but 0.65 to 0.72 for twos, with and without a loop; two digits, or one of them mirrored or turned: 0.23 to 0.86."""
OBJECT_CROWD = 0.8
"""The same for likeness to all against likeness to the nearest. One digit 0.8 and more (twos 0.71), several 0.81 and
less. Of 24 pairs of digits the two limits miss one, sevens with fours."""
PHOTO_UNITY = 0.6
"""Photographs vary more: faces of one person 0.49 to 0.84, half of them turned 0.0 to 0.49 …"""
PHOTO_DISTINCTNESS: Band = (1.0, 3.4)
"""… so single images, too, must clearly be of one kind or the other: by the first where the groups have nothing in
common (unity 0), by the second where they are one (unity 1), in between in proportion. Faces of one person lie 0.3
and more below that line, turned halves 0.1 and more above it."""
PART = 0.15
"""A group with a smaller share of the set is not another kind but a few odd images."""
LEAST_RISE = 0.005
"""A smaller rise of likeness is none, however sure."""
LEAST_FALL = 0.02
"""A smaller fall of likeness is none, however sure …"""
LEAST_FALL_SHARE = 0.08
"""… where images are hardly alike, as in noisy stacks, one of a smaller share of their likeness."""
SURE = 3.0
"""A change of likeness counts when it is so many standard errors, over images, away from none."""

# ---- groups

LEAK = 0.08
"""Share of a group's neighbours that may be in other groups, at most, where the number of groups is found. MNIST
training digits: three digits 0.003 to 0.022, cut into four 0.09 and more; one digit cut into two 0.10 and more, but
0.075 for twos, with and without a loop; ten digits 0.06, cut into eleven 0.09."""
SURE_LEAK = 0.75
"""The number of groups is clear where the leaks lie this factor below the limit, and above it for one group more."""
NO_KINDS = 0.55
"""A cut by features of a network counts where it leaks less than this share of what it would in a set without kinds.
Birds of two species and two kinds of things of PF-WILLOW: 0.39 and less; one kind: cars 0.75, ducks and motorbikes more
than 1, but jays, goldfinches and woodpeckers 0.3 to 0.53, by how they sit. It is about the middle of 0.39 and 0.75."""
LEAST_GROUP = 5
"""Images in a group that is found, not asked for, at least."""
FOREIGN_TIMES = 3.0
"""An image that is unlike its nearest ones by so many times the usual is in no group …"""
FOREIGN_LEAST = 0.12
"""… and by at least so much. Of MNIST training threes and sevens 0.5 % are, of noise as sparse as ink all."""
COHERENT_SHARE = 0.4
"""An image whose pixels tell less than this share of the usual about the pixels next to them is noise. Of MNIST
training digits 0.53 and more where 0.80 is usual, faces 0.93 and more of 0.97; noise 0.1 and less."""
COHERENT_SET = 0.3
"""Where less is usual the whole set is noisy, and no image is told from it by that."""
