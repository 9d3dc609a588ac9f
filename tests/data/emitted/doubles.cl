#pragma OPENCL EXTENSION cl_khr_fp64 : enable
// Double precision, and functions that write through pointers.
kernel void doubles(global ulong *out, global const double *in)
{
    size_t i = get_global_id(0);
    double a = in[i], b = in[i ^ 1];
    int exponent;
    double whole, fraction = modf(a * 0.37, &whole);
    double mantissa = frexp(b, &exponent);
    double sum = a * b + a / (fabs(b) + 1.0) - fraction + whole * mantissa + exponent;
    sum += sqrt(fabs(a)) + floor(b) + (double)(float)a + (double)(long)b + (double)(uint)fabs(a);
    sum += a < b ? 1.0 : a == b ? 2.0 : 1e300;
    double2 v = (double2)(a, b);
    long2 less = v < v.yx;
    out[i] = as_ulong(sum) ^ (ulong)less.x ^ (ulong)convert_long_rte(a) + (ulong)ilogb(b + 2.5);
}
