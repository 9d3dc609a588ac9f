// What later kernels calculate from is constant, or may be, or is not. Compilers calculate `mad` of
// constants otherwise than processors, and estimates and sums of products depend on how a kernel becomes
// vectors.

kernel void written(global float *a) { a[get_global_id(0)] = 1.3f; }

kernel void chosen(global const float *src, global float *a) {
    size_t i = get_global_id(0);
    a[i] = src[i] > 0.0f ? 1.3f : src[i];
}

kernel void counted(global const float *src, global float *a, int n) {
    size_t i = get_global_id(0);
    float sum = 1.3f;
    for (int k = 0; k < n; k++) sum += src[i];
    a[i] = sum;
}

__attribute__((noinline)) void put(global float *place, float number) { *place = number; }

__attribute__((noinline)) float twice(float number) { return number + number; }

kernel void put_there(global float *a) { put(a + get_global_id(0), twice(0.65f)); }

kernel void written_whole(global float *a) { vstore4((float4)(1.3f, 0.7f, 0.1f, 0.9f), get_global_id(0), a); }

kernel void squared(global const float *src, global float *a) {
    size_t i = get_global_id(0);
    a[i] = src[i] * src[i];
}

kernel void by_id(global float *a) {
    size_t i = get_global_id(0);
    a[i] = (float)i;
}

kernel void passed(global const float *a, global float *b) {
    size_t i = get_global_id(0);
    put(b + i, a[i]);
}

kernel void multiplied(global const float *a, global float *o) {
    size_t i = get_global_id(0);
    o[i] = mad(a[i], a[i], a[i] + 0.1f);
}

kernel void with_others(global const float *src, global const float *a, global float *o) {
    size_t i = get_global_id(0);
    o[i] = mad(src[i], a[i], a[i]);
}

kernel void by_scalar(global float *o, int n) {
    size_t i = get_global_id(0) * n;
    float x = n * 0.1f;
    for (int k = 0; k < n; k++) o[i + k] = mad(x, x, x + 0.1f);
}

kernel void multiplied_whole(global const float *a, global float *o) {
    size_t i = get_global_id(0);
    float4 x = vload4(i, a);
    vstore4(mad(x, x, x + 0.1f), i, o);
}

kernel void estimated(global const float *a, global float *o) {
    size_t i = get_global_id(0);
    o[i] = native_recip(a[i]) + native_rsqrt(a[i]);
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

kernel void exact(global const float *a, global float *o) {
    size_t i = get_global_id(0);
    o[i] = sqrt(a[i]) + 1.0f / a[i];
}
