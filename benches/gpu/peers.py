#!/usr/bin/env python3
"""The chain of `benches/fusion.rs --chain` in other libraries. Prints a line for each: the name, the time
of a run in nanoseconds, and the bytes that a run has to move, separated by tabs."""

import statistics
import sys
import time

ELEMENTS = 64 << 20
RUNS = 100  # before the host waits
ROUNDS = 24


def measure(run, wait):
    def batch():
        wait()
        start = time.perf_counter_ns()
        for _ in range(RUNS):
            run()
        wait()
        return (time.perf_counter_ns() - start) / RUNS

    for _ in range(3):
        batch()
    return statistics.median(batch() for _ in range(ROUNDS))


def print_row(name, run, wait):
    print(name, round(measure(run, wait)), 2 * 4 * ELEMENTS, sep="\t", flush=True)


def expected(x):
    x = min((x * 1.5) + 0.25, 4.0)
    return abs(1.0 - x * x)


def check(name, source, result):
    for at in (0, 1, 999, ELEMENTS - 1):
        want = expected(float(source[at]))
        assert abs(float(result[at]) - want) <= 1e-4 * max(1.0, want), f"{name} at {at}"


def torch_peers():
    import torch

    if not torch.cuda.is_available():
        raise ImportError("no GPU is found")

    def chain(x):
        x = x * 1.5
        x = x + 0.25
        x = torch.clamp(x, max=4.0)
        x = x * x
        x = 1.0 - x
        return torch.abs(x)

    with torch.no_grad():
        x = (torch.arange(ELEMENTS, device="cuda") % 1000).float() * 0.01 - 3.0
        version = torch.__version__
        check("eager", x, chain(x))
        print_row(f"PyTorch {version}, eager", lambda: chain(x), torch.cuda.synchronize)
        compiled = torch.compile(chain)
        check("compiled", x, compiled(x))
        print_row(f"PyTorch {version}, compiled", lambda: compiled(x), torch.cuda.synchronize)
        y = torch.empty_like(x)
        print_row(f"copy by PyTorch {version}", lambda: y.copy_(x), torch.cuda.synchronize)
    del x, y
    torch.cuda.empty_cache()


def cupy_peers():
    import cupy

    @cupy.fuse()
    def chain(x):
        x = x * cupy.float32(1.5)
        x = x + cupy.float32(0.25)
        x = cupy.minimum(x, cupy.float32(4.0))
        x = x * x
        x = cupy.float32(1.0) - x
        return cupy.absolute(x)

    x = ((cupy.arange(ELEMENTS) % 1000) * 0.01 - 3.0).astype(cupy.float32)
    wait = cupy.cuda.get_current_stream().synchronize
    result = chain(x)
    assert result.dtype == cupy.float32
    check("CuPy", x, result)
    print_row(f"CuPy {cupy.__version__}, fuse", lambda: chain(x), wait)


for name, peers in (("PyTorch", torch_peers), ("CuPy", cupy_peers)):
    try:
        peers()
    except ImportError as error:
        print(f"{name} is left out: {error}", file=sys.stderr)
