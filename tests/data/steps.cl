// Kernels whose results depend on two numbers, so that programs with other numbers are other programs.

#ifndef A
#define A 3u
#define B 5u
#endif

kernel void scale(global uint *x, uint by) {
    size_t i = get_global_id(0);
    x[i] = x[i] * A + by;
}

kernel void blend(global const uint *from, global uint *to, uint by) {
    size_t i = get_global_id(0);
    to[i] = to[i] * A + from[i] * B + by;
}

kernel void make(global uint *to, uint by) {
    size_t i = get_global_id(0);
    to[i] = (uint)i * A + (by ^ B);
}

kernel void shift(global const uint *from, global uint *to) {
    size_t i = get_global_id(0);
    to[i] = from[i] * A + B;
}
