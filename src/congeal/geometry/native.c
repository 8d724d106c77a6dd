/* Images through homographies, in one pass over the output: `native.py` says when this is used and what it must equal.

   Numbers of an image are kept as float32, `LANES` of them a pixel: one for grey images, four for colours, of which
   the last may be unused. A pixel then is one vector, and a look-up needs no gather instruction. Additions and
   products are not fused (-ffp-contract=off), so that every processor gives the same numbers. */

#include <stdint.h>

#define VERSION 1
#define MIN_DENOMINATOR 0.1 /* as in warping.py */
#define AHEAD 18            /* pixels after which the filter has forgotten: 0.344^18 is below float32's last digit */
#define STRIP_BYTES 400000  /* columns that are filtered at a time stay in the cache */
#define CHUNK 256           /* output pixels whose places are worked out together */

typedef int64_t i64;
typedef float v4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t v4i __attribute__((vector_size(16), aligned(4), may_alias));
typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));

#define INLINED static inline __attribute__((always_inline))
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default"))) /* chosen when the library is loaded */
#else
#define FOR_EACH_PROCESSOR
#endif

enum { UINT8, UINT16, FLOAT32 };
static const i64 BYTES[] = {1, 2, 4};
enum { FADE, CUT, EDGE }; /* what lies outside: blended into a value, cut off half-way, the outermost pixels */

typedef struct {
    i64 height, width, lanes; /* of the numbers below */
    float *numbers;
} Plane;

typedef struct {
    i64 height, width;
    double matrix[9]; /* source_from_output in pixels, its denominator 1 at the centre of the output */
    int outside;
    float fill, low[4], high[4];
} View;

i64 congeal_native_version(void) { return VERSION; }

/* ---- pixels → numbers of a plane, and their range */

static float pixel(const void *pixels, int dtype, i64 at)
{
    if (dtype == UINT8) return ((const uint8_t *)pixels)[at];
    if (dtype == UINT16) return ((const uint16_t *)pixels)[at];
    return ((const float *)pixels)[at];
}

#define LOAD(TYPE, CHANNELS, LANES)                                                         \
    for (i64 k = 0; k < count; k++)                                                         \
        for (i64 c = 0; c < LANES; c++) {                                                   \
            float value = c < CHANNELS ? (float)((const TYPE *)pixels)[k * step + c] : 0.f; \
            least[c] = value < least[c] ? value : least[c];                                 \
            most[c] = value > most[c] ? value : most[c];                                    \
            never += value - value; /* 0, unless the value is not finite */                 \
            numbers[k * LANES + c] = value;                                                 \
        }

#define LOAD_LANES(TYPE)                                 \
    if (channels == 1) { LOAD(TYPE, 1, 1) }              \
    else if (channels == 3) { LOAD(TYPE, 3, 4) }         \
    else { LOAD(TYPE, channels, 4) }

/* Whether all of them are finite. */
static int load(float *numbers, const void *pixels, int dtype, i64 count, i64 channels, i64 step, float *low,
                float *high)
{
    float least[4], most[4], never = 0;
    for (i64 c = 0; c < 4; c++) least[c] = most[c] = c < channels ? pixel(pixels, dtype, c) : 0.f;
    if (dtype == UINT8) { LOAD_LANES(uint8_t) }
    else if (dtype == UINT16) { LOAD_LANES(uint16_t) }
    else { LOAD_LANES(float) }
    for (i64 c = 0; c < 4; c++) low[c] = least[c], high[c] = most[c];
    return never == 0;
}

/* ---- numbers → coefficients of the cubic o-MOMS through them */

/* The filter 21 / (4/z + 13 + 4z) is a recursion forwards and one backwards with this pole, and a factor. Beyond its
   ends a line goes on as its mirror image, the outermost number twice. */
static const float POLE = -0.34413115426052756f;
static const float GAIN = 21.f / 4.f;

static i64 mirrored(i64 k, i64 n)
{
    k %= 2 * n;
    return k < n ? k : 2 * n - 1 - k;
}

/* Columns: `count` numbers side by side in each of `height` rows that begin `stride` apart. */
INLINED void filter_columns(float *top, i64 height, i64 stride, i64 count)
{
    float sum[count];
    for (i64 x = 0; x < count; x++) sum[x] = 0;
    float power = 1;
    for (i64 k = 0; k < AHEAD; k++, power *= POLE) {
        const float *row = top + mirrored(k, height) * stride;
        for (i64 x = 0; x < count; x++) sum[x] += power * row[x];
    }
    for (i64 x = 0; x < count; x++) top[x] += POLE * sum[x];
    for (i64 y = 1; y < height; y++) {
        float *row = top + y * stride;
        const float *before = row - stride;
        for (i64 x = 0; x < count; x++) row[x] += POLE * before[x];
    }
    float *last = top + (height - 1) * stride;
    for (i64 x = 0; x < count; x++) last[x] *= POLE / (POLE - 1) * GAIN;
    for (i64 y = height - 2; y >= 0; y--) {
        float *row = top + y * stride;
        const float *after = row + stride;
        for (i64 x = 0; x < count; x++) row[x] = POLE * (after[x] - GAIN * row[x]);
    }
}

/* A row of pixels of one or four numbers: the same along the row. Several rows at a time, because each step waits for
   the one before it. */
#define FILTER_ROWS(TYPE, ROWS)                                                                      \
    do {                                                                                             \
        TYPE last[ROWS], sum[ROWS];                                                                  \
        for (int r = 0; r < ROWS; r++) sum[r] = (TYPE){0};                                           \
        float power = 1;                                                                             \
        for (i64 k = 0; k < AHEAD; k++, power *= POLE)                                               \
            for (int r = 0; r < ROWS; r++) sum[r] += power * line[r * width + mirrored(k, width)];   \
        for (int r = 0; r < ROWS; r++) last[r] = line[r * width] += POLE * sum[r];                   \
        for (i64 x = 1; x < width; x++)                                                              \
            for (int r = 0; r < ROWS; r++) last[r] = line[r * width + x] += POLE * last[r];          \
        for (int r = 0; r < ROWS; r++)                                                               \
            last[r] = line[r * width + width - 1] *= POLE / (POLE - 1) * GAIN;                       \
        for (i64 x = width - 2; x >= 0; x--)                                                         \
            for (int r = 0; r < ROWS; r++)                                                           \
                last[r] = line[r * width + x] = POLE * (last[r] - GAIN * line[r * width + x]);       \
    } while (0)

INLINED void filter_rows(Plane plane)
{
    i64 width = plane.width, y = 0;
    if (plane.lanes == 4) {
        v4 *line = (v4 *)plane.numbers;
        for (; y + 4 <= plane.height; y += 4, line += 4 * width) FILTER_ROWS(v4, 4);
        for (; y < plane.height; y++, line += width) FILTER_ROWS(v4, 1);
    } else {
        float *line = plane.numbers;
        for (; y + 8 <= plane.height; y += 8, line += 8 * width) FILTER_ROWS(float, 8);
        for (; y < plane.height; y++, line += width) FILTER_ROWS(float, 1);
    }
}

FOR_EACH_PROCESSOR
static void filter(Plane plane)
{
    i64 stride = plane.width * plane.lanes;
    i64 strip = STRIP_BYTES / (4 * plane.height);
    strip = strip < 16 ? 16 : strip > 1024 ? 1024 : strip;
    for (i64 x = 0; x < stride; x += strip)
        filter_columns(plane.numbers + x, plane.height, stride, stride - x < strip ? stride - x : strip);
    filter_rows(plane);
}

/* ---- numbers of a plane → an image in another frame */

/* Where some output pixels of a row look, and what came of it. */
typedef struct {
    int count;
    double x[CHUNK], y[CHUNK], depth[CHUNK]; /* as the homography says */
    int column[CHUNK], row[CHUNK];           /* the pixel before a place, inside the image … */
    float t[CHUNK], u[CHUNK];                /* … and how far behind it the place is, across and down */
    float value[4 * CHUNK];
} Places;

static inline int inside(double place, double first, double last) { return place >= first && place <= last; }

INLINED void find(Places *restrict at, const View *view, const Plane *plane, i64 row, i64 first)
{
    const double *m = view->matrix, right = plane->width - 1, bottom = plane->height - 1;
    double x0 = m[0] * first + m[1] * row + m[2], dx = m[0], y0 = m[3] * first + m[4] * row + m[5], dy = m[3];
    double depth0 = m[6] * first + m[7] * row + m[8], deeper = m[6];
    int count = view->width - first < CHUNK ? (int)(view->width - first) : CHUNK;
    at->count = count;
    for (int k = 0; k < count; k++) {
        double depth = deeper * k + depth0;
        depth = depth > MIN_DENOMINATOR ? depth : MIN_DENOMINATOR;
        at->x[k] = (dx * k + x0) / depth;
        at->y[k] = (dy * k + y0) / depth;
        at->depth[k] = depth;
    }
    for (int k = 0; k < count; k++) {
        double x = at->x[k] > 0 ? at->x[k] : 0, y = at->y[k] > 0 ? at->y[k] : 0; /* what is no number becomes 0 */
        x = x < right ? x : right;
        y = y < bottom ? y : bottom;
        at->column[k] = (int)x;
        at->row[k] = (int)y;
        at->t[k] = (float)(x - at->column[k]);
        at->u[k] = (float)(y - at->row[k]);
    }
}

/* Whether all places lie so far inside the image; what lies between two places that do, does as well. */
static int all_inside(const Places *at, const Plane *plane, double before, double behind)
{
    for (int k = 0; k < at->count; k += at->count > 1 ? at->count - 1 : 1)
        if (!(inside(at->x[k], before, plane->width - 1 - behind) && at->depth[k] > MIN_DENOMINATOR &&
              inside(at->y[k], before, plane->height - 1 - behind)))
            return 0;
    return 1;
}

/* Weights of the four pixels around a place, t behind the second one: polynomials, factors of 1, t, t² and t³. */
INLINED v4 spline_weights(float t)
{
    const v4 c0 = {4 / 21.f, 13 / 21.f, 4 / 21.f, 0}, c1 = {-11 / 21.f, 1 / 14.f, 3 / 7.f, 1 / 42.f};
    const v4 c2 = {.5f, -1, .5f, 0}, c3 = {-1 / 6.f, .5f, -.5f, 1 / 6.f};
    return ((c3 * t + c2) * t + c1) * t + c0;
}

#define PAIR(a, b) ((v8){a, a, a, a, b, b, b, b})

/* The spline where all 16 pixels around a place are there: two of four numbers at a time. */
INLINED v4 spline_of_four(const float *line, i64 stride, v4 across, v4 down)
{
    v8 left = PAIR(across[0], across[1]), right = PAIR(across[2], across[3]), total = {0};
    for (int j = 0; j < 4; j++, line += stride)
        total += down[j] * (left * *(const v8 *)line + right * *(const v8 *)(line + 8));
    return (v4){total[0], total[1], total[2], total[3]} + (v4){total[4], total[5], total[6], total[7]};
}

INLINED float spline_of_one(const float *line, i64 stride, v4 across, v4 down)
{
    v4 total = {0};
    for (int j = 0; j < 4; j++, line += stride) total += down[j] * (across * *(const v4 *)line);
    return (total[0] + total[2]) + (total[1] + total[3]);
}

static inline i64 within(i64 k, i64 n) { return k < 0 ? 0 : k < n ? k : n - 1; }

/* The 16 pixels around a place at the edge, where the outermost ones go on. */
INLINED void around(const Plane *plane, int column, int row, float *pixels)
{
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 4; i++) {
            i64 at = within(row - 1 + j, plane->height) * plane->width + within(column - 1 + i, plane->width);
            for (i64 c = 0; c < plane->lanes; c++) *pixels++ = plane->numbers[at * plane->lanes + c];
        }
}

INLINED void sample_spline(Places *at, const Plane *plane)
{
    i64 lanes = plane->lanes, right = plane->width - 2, bottom = plane->height - 2;
    for (int k = 0; k < at->count; k++) {
        v4 across = spline_weights(at->t[k]), down = spline_weights(at->u[k]);
        i64 column = at->column[k], row = at->row[k], stride = plane->width * lanes;
        float edge[64];
        const float *line = plane->numbers + ((row - 1) * plane->width + column - 1) * lanes;
        if (column < 1 || column >= right || row < 1 || row >= bottom) {
            around(plane, (int)column, (int)row, edge);
            line = edge;
            stride = 4 * lanes;
        }
        if (lanes == 4) *(v4 *)(at->value + 4 * k) = spline_of_four(line, stride, across, down);
        else at->value[k] = spline_of_one(line, stride, across, down);
    }
}

INLINED void sample_linear(Places *at, const Plane *plane)
{
    i64 lanes = plane->lanes;
    for (int k = 0; k < at->count; k++) {
        i64 column = at->column[k], row = at->row[k];
        i64 right = column + 1 < plane->width ? lanes : 0, below = row + 1 < plane->height ? lanes * plane->width : 0;
        const float *pixel = plane->numbers + lanes * (row * plane->width + column);
        float t = at->t[k], u = at->u[k];
        if (lanes == 4) {
            v4 a = *(const v4 *)pixel, b = *(const v4 *)(pixel + right);
            v4 c = *(const v4 *)(pixel + below), d = *(const v4 *)(pixel + below + right);
            a += t * (b - a);
            c += t * (d - c);
            *(v4 *)(at->value + 4 * k) = a + u * (c - a);
        } else {
            float a = pixel[0], c = pixel[below];
            a += t * (pixel[right] - a);
            c += t * (pixel[below + right] - c);
            at->value[k] = a + u * (c - a);
        }
    }
}

/* How much of a sample comes from inside, as in frame_coverage.py. */
static float share(double x, double y, double depth, const Plane *plane)
{
    if (!(depth > MIN_DENOMINATOR)) return 0;
    double across = x < 0 ? 1 + x : x > plane->width - 1 ? plane->width - x : 1;
    double down = y < 0 ? 1 + y : y > plane->height - 1 ? plane->height - y : 1;
    return across > 0 && down > 0 ? (float)(across * down) : 0;
}

static void fill_outside(Places *at, const View *view, const Plane *plane)
{
    for (int k = 0; k < at->count; k++) {
        float own = share(at->x[k], at->y[k], at->depth[k], plane);
        for (i64 c = plane->lanes * k; c < plane->lanes * (k + 1) && own < 1; c++)
            if (view->outside == FADE) at->value[c] = at->value[c] * own + view->fill * (1 - own);
            else if (own < .5f) at->value[c] = view->fill;
    }
}

/* Values inside the range of their channel. */
INLINED void hold_inside(Places *at, const View *view, i64 lanes)
{
    v4 low = *(const v4 *)view->low, high = *(const v4 *)view->high;
    if (lanes == 1) low = (v4){0} + low[0], high = (v4){0} + high[0];
    for (int k = 0; k < lanes * at->count; k += 4) {
        v4 value = *(v4 *)(at->value + k);
        v4i below = value < low;
        value = (v4)(((v4i)low & below) | ((v4i)value & ~below));
        v4i above = value > high;
        *(v4 *)(at->value + k) = (v4)(((v4i)high & above) | ((v4i)value & ~above));
    }
}

#define PUT(TYPE, KIND, CHANNELS, LANES)                                                               \
    for (int k = 0; k < at->count; k++)                                                                \
        for (int c = 0; c < CHANNELS; c++) ((TYPE *)out)[k * step + c] = (TYPE)(KIND)at->value[k * LANES + c];

#define PUT_LANES(TYPE, KIND)                              \
    if (lanes == 1) { PUT(TYPE, KIND, 1, 1) }              \
    else if (channels == 3) { PUT(TYPE, KIND, 3, 4) }      \
    else { PUT(TYPE, KIND, channels, 4) }

/* Values into pixels `step` apart, rounded to whole numbers, halves to even ones. */
INLINED void put(Places *at, void *restrict out, int dtype, i64 channels, i64 step, i64 lanes)
{
    for (int k = 0; k < lanes * at->count && dtype != FLOAT32; k += 4) {
        v4 *value = (v4 *)(at->value + k);
        *value = (*value + 12582912.f) - 12582912.f;
    }
    if (dtype == UINT8) { PUT_LANES(uint8_t, int) }
    else if (dtype == UINT16) { PUT_LANES(uint16_t, int) }
    else { PUT_LANES(float, float) }
}

FOR_EACH_PROCESSOR
static void warp(const Plane *plane, const View *view, char *out, int dtype, i64 channels, i64 step, int spline)
{
    Places at;
    for (i64 row = 0; row < view->height; row++)
        for (i64 first = 0; first < view->width; first += CHUNK) {
            find(&at, view, plane, row, first);
            if (spline) sample_spline(&at, plane);
            else sample_linear(&at, plane);
            hold_inside(&at, view, plane->lanes);
            if (view->outside != EDGE && !all_inside(&at, plane, 0, 0)) fill_outside(&at, view, plane);
            put(&at, out + (row * view->width + first) * step * BYTES[dtype], dtype, channels, step, plane->lanes);
        }
}

/* What a type holds: values are not drawn beyond it, even if a filter before this one overshot. */
static void hold(View *view, int dtype)
{
    float most = dtype == UINT8 ? 255 : 65535;
    for (int c = 0; c < 4 && dtype != FLOAT32; c++) {
        view->low[c] = view->low[c] > 0 ? view->low[c] : 0;
        view->high[c] = view->high[c] < most ? view->high[c] : most;
    }
}

/* Some channels of `count` images (height, width, step), `channels` of them, through a homography each, to images of
   the same layout and of another size or type. room: memory for height × width × lanes numbers, 1 lane for 1 channel,
   else 4. drawn: whether each image was; it was not if a pixel of it is not finite. */
void congeal_native_warp(const void *pixels, int dtype, i64 count, i64 height, i64 width, i64 channels, i64 step,
                         float *room, const double *matrices, void *out, int out_dtype, i64 out_height, i64 out_width,
                         int spline, int outside_kind, double fill, uint8_t *drawn)
{
    Plane plane = {height, width, channels == 1 ? 1 : 4, room};
    View view = {.height = out_height, .width = out_width, .outside = outside_kind, .fill = (float)fill};
    for (i64 i = 0; i < count; i++) {
        const char *image = (const char *)pixels + i * height * width * step * BYTES[dtype];
        char *target = (char *)out + i * out_height * out_width * step * BYTES[out_dtype];
        for (int k = 0; k < 9; k++) view.matrix[k] = matrices[9 * i + k];
        drawn[i] = (uint8_t)load(room, image, dtype, height * width, channels, step, view.low, view.high);
        if (!drawn[i]) continue;
        hold(&view, out_dtype);
        if (spline) filter(plane);
        warp(&plane, &view, target, out_dtype, channels, step, spline);
    }
}
