#!/usr/bin/env python3
"""The end of the photograph, as in `benches/stencils.rs`, in PyTorch: the arithmetic of the kernels `blur_rows`,
`blur_columns`, `unsharp`, `filmic` and `overlay` of `examples/pipeline/*.cl`, over square pictures of float4
pixels. Writes the blur in two ways. Checks a few pixels against NumPy, and prints the median time of a picture on
the device, in milliseconds.

Arguments: the widths of the pictures, in pixels; 4096 by default."""

import functools
import statistics
import sys

try:
    import numpy
    import torch

    if not torch.cuda.is_available():
        raise ImportError("no GPU is found")
except ImportError as error:
    sys.exit(f"PyTorch is left out: {error}")

WEIGHTS = [weight / 256 for weight in (1, 8, 28, 56, 70, 56, 28, 8, 1)]
RADIUS = len(WEIGHTS) // 2
AMOUNT = 0.7  # of `unsharp`
SATURATION = 1.05  # of `filmic`
INK = 0.4  # of `overlay`
LUMINANCE = (0.2126, 0.7152, 0.0722)

RUNS = 20  # between two events
ROUNDS = 15


def clamped(size):
    """The indices from `RADIUS` before a picture to `RADIUS` behind it, clamped to those of the picture."""
    return torch.clamp(torch.arange(-RADIUS, size + RADIUS, device="cuda"), 0, size - 1)


def weighted(samples):
    return sum(weight * sample for weight, sample in zip(WEIGHTS, samples))


def blur_by_indices(pixels):
    """Reads each sample at its clamped index."""
    height, width, _ = pixels.shape
    at = clamped(width)
    rows = weighted(pixels[:, at[tap : tap + width]] for tap in range(len(WEIGHTS)))
    at = clamped(height)
    return weighted(rows[at[tap : tap + height]] for tap in range(len(WEIGHTS)))


def blur_by_convolution(pixels):
    """Repeats the border, and calls cuDNN's convolutions."""
    planes = pixels.permute(2, 0, 1)[None]
    weights = torch.tensor(WEIGHTS, device="cuda").expand(4, 1, 1, -1)
    padded = torch.nn.functional.pad(planes, [RADIUS, RADIUS, RADIUS, RADIUS], mode="replicate")
    rows = torch.nn.functional.conv2d(padded, weights, groups=4)
    return torch.nn.functional.conv2d(rows, weights.transpose(2, 3), groups=4)[0].permute(1, 2, 0)


def film_curve(light):
    return (light * (2.51 * light + 0.03)) / (light * (2.43 * light + 0.59) + 0.14)


def unsharp(pixels, blurred):
    return torch.clamp(pixels + AMOUNT * (pixels - blurred), 0.0, 1.0)


def filmic(pixels, exposure):
    encoded, alpha = pixels[..., :3], pixels[..., 3:]
    light = encoded * encoded
    red, green, blue = (light[..., at : at + 1] for at in range(3))
    grey = red * LUMINANCE[0] + green * LUMINANCE[1] + blue * LUMINANCE[2]
    vivid = torch.clamp(grey + (light - grey) * SATURATION, min=0.0)
    film = film_curve(vivid * exposure) / film_curve(exposure)
    return torch.cat((torch.sqrt(torch.clamp(film, 0.0, 1.0)), alpha), dim=-1)


def overlay(pixels, edges):
    colours = pixels[..., :3] * (1.0 - INK * edges)[..., None]
    inked = torch.cat((colours, pixels[..., 3:]), dim=-1)
    # `round` takes halves to the even number, like `convert_uchar4_sat_rte`.
    return torch.clamp(torch.round(inked * 255.0), 0.0, 255.0).to(torch.uint8)


def tail(blur, denoised, exposure, edges):
    return overlay(filmic(unsharp(denoised, blur(denoised)), exposure), edges)


def numbers(*shape):
    """The numbers that `benches/stencils.rs` fills its buffers with."""
    count = 1
    for size in shape:
        count *= size
    n = torch.arange(count, device="cuda", dtype=torch.int64)
    return (((n * 2654435761) >> 8 & 0xFFFF).float() / 65536.0).reshape(shape)


def expected(denoised, exposure, edges, x, y):
    """The pixel at `x` and `y` in double precision, before it is rounded."""
    around = numpy.arange(-RADIUS, RADIUS + 1)
    rows = numpy.clip(y + around, 0, denoised.shape[0] - 1)
    columns = numpy.clip(x + around, 0, denoised.shape[1] - 1)
    patch = denoised[torch.from_numpy(rows).cuda()][:, torch.from_numpy(columns).cuda()]
    patch = patch.cpu().numpy().astype(numpy.float64)
    weights = numpy.array(WEIGHTS)
    blurred = numpy.einsum("y,yxc,x->c", weights, patch, weights)
    own = patch[RADIUS, RADIUS]
    sharp = numpy.clip(own + AMOUNT * (own - blurred), 0.0, 1.0)
    light = sharp[:3] ** 2
    grey = light @ numpy.array(LUMINANCE)
    vivid = numpy.maximum(grey + (light - grey) * SATURATION, 0.0)
    exposure = float(exposure)
    film = film_curve(vivid * exposure) / film_curve(exposure)
    toned = numpy.sqrt(numpy.clip(film, 0.0, 1.0))
    pixel = numpy.append(toned * (1.0 - INK * float(edges[y, x])), sharp[3])
    return numpy.clip(pixel * 255.0, 0.0, 255.0)


def check(name, result, denoised, exposure, edges):
    last = result.shape[0] - 1
    middle = last // 2
    corners = [(x, y) for x in (0, last) for y in (0, last)]
    for x, y in [*corners, (1, 2), (middle, last - 3), (middle, middle)]:
        want = expected(denoised, exposure, edges, x, y)
        pixel = result[y, x].cpu().numpy().astype(numpy.float64)
        # Bytes are rounded to the nearest; near a half, single precision may give the one beside it.
        assert (abs(pixel - want) <= 0.51).all(), f"{name} at {x}, {y}: {pixel}, not {want}"


def device_time(run):
    """The median time of a run on the device, in milliseconds."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        run()  # while the device is busy with it, the host submits those that are timed
        start.record()
        for _ in range(RUNS):
            run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / RUNS)
    return statistics.median(times)


def measure(width):
    denoised, edges = numbers(width, width, 4), numbers(width, width)
    exposure = torch.ones(1, device="cuda")
    print(f"\n{torch.cuda.get_device_name()}, {width} x {width}, PyTorch {torch.__version__}")
    print(f"{'':28} {'ms':>9}", flush=True)
    for way, blur in (
        ("indices", blur_by_indices),
        ("convolution", blur_by_convolution),
    ):
        eager = functools.partial(tail, blur)
        torch._dynamo.reset()  # the compiler gives up after too many variants of one function
        for name, run in (
            (f"{way}, eager", eager),
            (f"{way}, compiled", torch.compile(eager, dynamic=False)),
        ):
            check(name, run(denoised, exposure, edges), denoised, exposure, edges)
            took = device_time(lambda: run(denoised, exposure, edges))
            print(f"{name:28} {took:9.3f}", flush=True)


with torch.no_grad():
    for size in [int(argument) for argument in sys.argv[1:]] or [4096]:
        measure(size)
