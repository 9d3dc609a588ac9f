//@ check saxpy_unguarded(2.0, x[4096], y[4096]) over 1024 in 64
//@ check saxpy_unguarded(2.0, x[4000], y[4000]) over 1024 in 64
//@ guard saxpy_unguarded(2.0, x[4000], y[4096]) over 1024 in 64

// Scaled sum of two vectors, whose lengths have to be that of the range.
kernel void saxpy_unguarded(float a, global const float *x, global float *y) {
    size_t i = get_global_id(0);
    y[i] = a * x[i] + y[i];
}
