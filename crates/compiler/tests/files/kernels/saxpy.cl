//@ check saxpy(1000, 2.0, x[4000], y[4000]) over 1024 in 64
//@ check saxpy(1000, 2.0, x[4000], y[3996]) over 1024 in 64
//@ check saxpy(1000, 2.0, x[4000], y[4000]) over 1024 in 64 few

// Scaled sum of two vectors, with a guard for the work-items that round the range up.
kernel void saxpy(int n, float a, global const float *x, global float *y) {
    int i = get_global_id(0);
    if (i < n)
        y[i] += a * x[i];
}
