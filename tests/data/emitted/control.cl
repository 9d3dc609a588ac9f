// Loops whose values swap, switches, early returns, calls, local memory and barriers.
static uint __attribute__((noinline)) collatz(uint n)
{
    uint steps = 0;
    while (n != 1 && steps < 200) {
        n = n & 1 ? 3 * n + 1 : n / 2;
        ++steps;
    }
    return steps;
}

static uint swaps(uint n, uint x, uint y)
{
    for (; n; --n) {
        uint z = x;
        x = y;
        y = z;
        if (x > 100000) break;
        x += n;
    }
    return x * 31 + y;
}

kernel void control(global uint *out, global const uint *in)
{
    size_t i = get_global_id(0);
    uint n = in[i];
    if (n == 77) {
        out[i] = 1;
        return;
    }
    uint sum = collatz(n % 1000 + 1) + swaps(n % 50, n >> 8, n >> 16);
    switch (n) {
    case 0: sum += 3;
    case 1: sum *= 5; break;
    case 2: sum ^= 0x55; break;
    case 0xfffffff7: sum -= 11;
    case 9: sum = ~sum; break;
    default: sum += 1;
    }
    switch ((uchar)n) {
    case 200: sum += 7; break;
    case 255: sum += 9; break;
    case 3: sum += 13; break;
    }
    switch ((long)n << 32) {
    case 0x500000000: sum += 1; break;
    case -0x100000000: sum += 2; break;
    case 0x700000000: sum += 4; break;
    }
    for (uint a = 0; a < 4; ++a)
        for (uint b = a; b < 6; ++b) {
            if ((sum >> a & 3) == b) goto found;
            sum += a * b;
        }
    sum ^= 0xabcdef;
found:
    out[i] = sum;
}

static uint __attribute__((noinline)) neighbour(local const uint *values, size_t at, size_t size)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    return values[(at + 1) % size];
}

kernel void groups(global uint *out, global const uint *in, local uint *given)
{
    local uint own[64];
    local struct { uint a[2]; uint4 b; } shared;
    size_t i = get_global_id(0), l = get_local_id(0), size = get_local_size(0);
    own[l] = in[i];
    given[l] = in[i] * 3;
    if (l == 0) {
        shared.a[1] = 5;
        shared.b = (uint4)(1, 2, 3, (uint)get_group_id(0));
    }
    uint sum = neighbour(own, l, size);
    sum += neighbour(given, l, size) * shared.a[1] + shared.b.w;
    for (uint step = 32; step; step >>= 1) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (l < step && l + step < size) own[l] += own[l + step];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    out[i] = sum + own[0] + (uint)(get_num_groups(0) * 7 + get_global_size(0) + get_work_dim());
}

kernel void atomics(global uint *out, global const uint *in)
{
    // Element 0 to 7 are counters.
    uint n = in[get_global_id(0)];
    atomic_add(out, n);
    atomic_sub(out + 1, n);
    atomic_inc(out + 2);
    atomic_max(out + 3, n);
    atomic_min((volatile global int *)out + 4, (int)n);
    atomic_and(out + 5, n | 0xff);
    atomic_or(out + 6, n & 0xffff);
    atomic_xor(out + 7, n);
    uint old = out[8], seen;
    while ((seen = atomic_cmpxchg(out + 8, old, old + (n & 7))) != old) old = seen;
}
