//@ check strided_saxpy(10000, 2.0, x[40000], y[40000]) over 1024 in 64
//@ check strided_saxpy(10000, 2.0, x[40000], y[39996]) over 1024 in 64

// Loop with the stride of the grid: any number of work-items does the work.
kernel void strided_saxpy(int n, float a, global const float *x, global float *y) {
    for (int i = get_global_id(0); i < n; i += get_global_size(0))
        y[i] += a * x[i];
}
