//@ check sparse_columns(columns[16000], values[16000], x[4000], y[4000], 1000, 4) over 1024 in 64

// Product of a sparse matrix in the format ELLPACK and a vector: a fixed number of elements in each row.
kernel void sparse_columns(global const int *columns, global const float *values, global const float *x,
                           global float *y, int rows, int width) {
    int row = get_global_id(0);
    if (row >= rows)
        return;
    float sum = 0.0f;
    for (int k = 0; k < width; k++) {
        int at = k * rows + row, column = columns[at];
        if (column >= 0 && column < rows)
            sum += values[at] * x[column];
    }
    y[row] = sum;
}
