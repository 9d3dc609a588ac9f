// Arithmetic of all widths, comparisons with NaN, conversions and bits.
kernel void integers(global uint *out, global const uint *in)
{
    size_t i = get_global_id(0);
    uint a = in[i], b = in[i ^ 1] | 1;
    int s = (int)a, t = (int)b;
    char c = (char)a;
    uchar u = (uchar)(a >> 3);
    short h = (short)(a >> 5);
    ushort w = (ushort)(b >> 7);
    long l = (long)a * t - s;
    ulong x = (ulong)a << 17 ^ b;
    uint sum = a * b + (a >> (b & 31)) - (uint)(s >> (t & 31));
    sum += (uint)(s / 2 / (t | 1)) ^ (uint)(t / 2 % (s | 1)) ^ a / b ^ b % (a | 1);
    sum ^= (uint)(char)(c * c) + (uint)(uchar)(u << 3) + (uint)(short)(h * h) + (ushort)(w * w);
    sum += (uint)(c >> 1) ^ (uint)(h / 3) ^ (uint)(c % 5);
    sum ^= (uint)(l >> 13) + (uint)(x >> 33) + (uint)(l / 1000003) + (uint)(x % 999983);
    sum += s < t ? 17 : a < b ? 5 : 3;
    sum ^= (c < (char)u) + 2 * (h <= (short)w) + 4 * (l > (long)x) + 8 * (a == b);
    sum += rotate(a, b) ^ popcount(a) ^ clz(b) ^ mul_hi(a, b) ^ abs(s) ^ add_sat(a, b) ^ abs_diff(s, t);
    sum ^= (uint)mad_hi(s, t, s) ^ (uint)hadd(s, t) ^ max(s, t) ^ min(a, b) ^ (uint)sub_sat(c, (char)u);
    sum += upsample((short)h, w) ^ mad24(s & 0xffff, 5, t) ^ (uint)clamp(s, -100, 1000);
    out[i] = sum ^ ~a;
}

kernel void floats(global uint *out, global const float *in)
{
    size_t i = get_global_id(0);
    float a = in[i], b = in[i ^ 1];
    uint bits = (a < b) | (a <= b) << 1 | (a > b) << 2 | (a >= b) << 3 | (a == b) << 4 | (a != b) << 5;
    bits |= !(a < b) << 6 | !(a <= b) << 7 | !(a > b) << 8 | !(a >= b) << 9;
    bits |= isnan(a) << 10 | isinf(b) << 11 | isfinite(a) << 12 | isnormal(b) << 13 | isunordered(a, b) << 14;
    bits |= islessgreater(a, b) << 15 | isordered(a, b) << 16 | (signbit(a) != 0) << 17;
    float f = a * b + a - b / 3.0f + (a > 0 ? a : -b);
    f += fma(a, b, 0.5f) + fabs(a) + floor(b) + trunc(a) + rint(b) + fmin(a, b) + copysign(1.0f, b);
    f = isnan(f) ? 1.0f : f;
    int n = (int)clamp(f, -1e6f, 1e6f);
    f += sqrt(fabs(a)) * 1e-3f + ldexp(0.75f, n & 7) + fmod(clamp(a, -1e3f, 1e3f), 0.3f);
    out[i] = bits ^ as_uint(isnan(f) ? 2.0f : f) ^ (uint)n;
}

kernel void conversions(global uint *out, global const float *in)
{
    size_t i = get_global_id(0);
    float a = clamp(in[i], -1e9f, 1e9f);
    a = isnan(a) ? 0.25f : a;
    uint sum = convert_uchar_sat(a) + convert_char_sat_rte(a) * 3 + convert_short_sat_rtp(a) * 5;
    sum += convert_int_rtn(a) * 7 + convert_uint_sat(a) * 11 + as_uint(convert_float_rtz(convert_int(a))) * 13;
    sum += as_uint((float)(long)a) ^ as_uint((float)(ulong)fabs(a)) ^ (uint)(uchar)(int)a;
    int4 v = convert_int4_sat_rte((float4)(a, a + 0.5f, -a, a * 0.25f));
    uchar4 c = convert_uchar4_sat(v);
    short4 s = convert_short4(v);
    float4 f = convert_float4(s) + convert_float4(c);
    sum += as_uint(dot(f, (float4)(1, 2, 3, 4))) + as_uint(c) + v.w;
    out[i] = sum;
}

kernel void halves(global uint *out, global const float *in, global half *scratch)
{
    size_t i = get_global_id(0);
    vstore_half(in[i], i, scratch);
    uint low = as_uint(vload_half(i, scratch));
    vstore_half_rtz(in[i] * 0.7f, i, scratch);
    out[i] = low + as_uint(vload_half(i, scratch));
}
