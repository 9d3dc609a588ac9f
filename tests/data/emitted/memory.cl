// Vectors, structs, arrays, constants, pointers and copies.
typedef struct {
    float scale;
    uchar4 mask;
    short pair[2];
    struct { ulong wide; float3 three; } inner;
} Settings;

typedef struct __attribute__((packed)) {
    uchar tag;
    uint value;
    ushort more;
} Packed;

constant float table[2][4] = {{1, 2, 3, INFINITY}, {0.1f, -0.0f, 1e-45f, __builtin_nanf("")}};
constant Settings defaults = {2.5f, {1, 2, 3, 4}, {-5, 6}, {1ul << 40, {1, 2, 3}}};
constant uint zeros[5] = {0};

static float __attribute__((noinline)) total(const Settings *settings)
{
    return settings->scale + settings->inner.three.y + settings->pair[0];
}

static Settings __attribute__((noinline)) scaled(Settings settings, float by)
{
    settings.scale *= by;
    settings.inner.three *= by;
    settings.pair[1] -= 3;
    return settings;
}

static void __attribute__((noinline)) bump(global uint *where, uint by) { *where += by; }

kernel void aggregates(global uint *out, Settings given, global Packed *packed, uint which)
{
    size_t i = get_global_id(0);
    Settings copy = which & 1 ? given : defaults;
    copy.mask.s2 += (uchar)i;
    copy.pair[i & 1] = (short)(i * 7);
    Settings more = scaled(copy, 0.5f);
    uint local_array[8];
    for (uint k = 0; k < 8; ++k) local_array[k] = k * (uint)i + zeros[k % 5];
    packed[i].value += local_array[(i + which) & 7];
    packed[i].more ^= packed[i].tag;
    uint sum = as_uint(total(&more)) + packed[i].value + as_uint(more.mask) + (uint)(more.inner.wide >> 37);
    sum ^= as_uint(table[i >> 2 & 1][i & 3] == 1e-45f ? 2.0f : table[0][i & 1]);
    out[i] = sum + (uint)more.pair[1];
    bump(out + i, which);
}

kernel void vectors(global uint *out, global const float4 *in, global const uint *index)
{
    size_t i = get_global_id(0);
    float4 a = in[i], b = a.wzyx;
    float3 three = a.xyz + b.yzw;
    float8 wide = (float8)(a, b) * 2.0f;
    int4 less = a < b;
    int4 unordered = isnan(a) | !(a >= b);
    float4 picked = select(a, b, less);
    a[index[i] & 3] = 7.0f;
    float one = b[index[i + 1] & 3];
    wide.s1357 = picked;
    uint4 bits = as_uint4(wide.lo) ^ as_uint4(wide.hi);
    uchar16 bytes = as_uchar16(bits);
    ushort4 shifted = as_ushort4(bits.xy) >> (ushort4)(1, 2, 3, 4);
    bits += as_uint4(bytes.s0f1e2d3c4b5a6978) + convert_uint4(shifted) + as_uint4(unordered);
    bits += as_uint4(isnan(cross(three, a.xyz)) ? (int3)(1) : (int3)(2)).xyzz;
    uint4 mixed = shuffle2(bits, as_uint4(less), (uint4)(0, 5, 2, 7));
    int all_less = all(a < b), any_less = any(a < b);
    vstore3(convert_uint3(mixed.xyz), i, out);
    out[3 * i + 1] += (uint)(one == one ? one : 3.0f) + all_less * 2 + any_less;
}

kernel void three(global uint3 *out, global const uint3 *in)
{
    size_t i = get_global_id(0);
    out[i] = in[i] * 2u;
}

kernel void bytes(global uchar *out, global const uchar *in)
{
    size_t i = get_global_id(0);
    union { float f; uchar b[4]; } pun;
    pun.f = 1.5f + in[i];
    ulong all = 0;
    for (uint k = 0; k < 4; ++k) all = all << 8 | pun.b[k];
    *(global ulong *)(out + i * 8) = all;
    ((global ushort *)(out + i * 8))[3] = vload2(i, in).y;
}

kernel void pointers(global uint *out, global const uint *a, global const uint *b, uint n)
{
    size_t i = get_global_id(0);
    global const uint *from = i % 3 ? a : b;
    global const uint *end = from + n;
    from += i;
    uint sum = 0;
    while (from < end) sum = sum * 3 + *from++;
    volatile uint kept = sum;
    out[i] = kept + (uint)(end - a == n) + (from == end);
}
