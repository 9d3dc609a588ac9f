// What Intel's compiler for CPUs calculates otherwise where it knows more: estimates of what all
// work-items share, and sums of the components of vectors of double precision.

kernel void written(global float *a) { a[get_global_id(0)] = 1.3f; }

kernel void squared(global const float *src, global float *a) {
    size_t i = get_global_id(0);
    a[i] = src[i] * src[i];
}

kernel void estimated(global const float *a, global float *o) {
    size_t i = get_global_id(0);
    o[i] = native_recip(a[i]) + rsqrt(a[i]);
}

kernel void by_scalar(global float *o, int n) {
    size_t i = get_global_id(0) * n;
    for (int k = 0; k < n; k++) o[i + k] = native_recip((float)n);
}

kernel void dotted(global const float *a, global float *o) {
    size_t i = get_global_id(0);
    o[i] = dot((float3)(a[i], 2.0f, 0.1f), (float3)(0.7f, a[i], 1.1f));
}

kernel void dotted_doubles(global const float *a, global float *o) {
    size_t i = get_global_id(0);
    double x = a[i];
    o[i] = dot((double3)(x, 2.0, 0.1), (double3)(0.7, x, 1.1));
}

kernel void normal_of_doubles(global const float *a, global float *o) {
    size_t i = get_global_id(0);
    o[i] = normalize((double3)(a[i], 2.0, 0.1)).y;
}
