//@ check matrix_product(a[40000], b[40000], c[40000], 100, 100, 100) over 112x104 in 16x8
//@ check matrix_product(a[40000], b[39600], c[40000], 100, 100, 100) over 112x104 in 16x8

// Product of two matrices, without local memory.
kernel void matrix_product(global const float *a, global const float *b, global float *c, int m, int n, int k) {
    int column = get_global_id(0), row = get_global_id(1);
    if (row >= m || column >= n)
        return;
    float sum = 0.0f;
    for (int i = 0; i < k; i++)
        sum += a[row * k + i] * b[i * n + column];
    c[row * n + column] = sum;
}
