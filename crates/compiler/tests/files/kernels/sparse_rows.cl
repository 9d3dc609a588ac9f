//@ check sparse_rows(starts[4004], columns[20000], values[20000], x[4000], y[4000], 1000) over 1024 in 64
//@ guard sparse_rows(starts[4004], columns[20000], values[20000], x[4000], y[4000], 1000) over 1024 in 64

// Product of a sparse matrix in compressed rows and a vector.
kernel void sparse_rows(global const int *starts, global const int *columns, global const float *values,
                        global const float *x, global float *y, int rows) {
    int row = get_global_id(0);
    if (row >= rows)
        return;
    float sum = 0.0f;
    for (int k = starts[row]; k < starts[row + 1]; k++)
        sum += values[k] * x[columns[k]];
    y[row] = sum;
}
