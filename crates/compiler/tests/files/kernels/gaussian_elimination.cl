//@ check multipliers(m[250000], a[250000], 250, 7) over 256 in 64
//@ check eliminate(m[250000], a[250000], b[1000], 250, 7) over 256x256 in 16x16
//@ check eliminate(m[250000], a[249996], b[1000], 250, 7) over 256x256 in 16x16

// Elimination of one column of a system of linear equations.
kernel void multipliers(global float *m, global const float *a, int size, int step) {
    int i = get_global_id(0);
    if (i < size - 1 - step)
        m[size * (i + step + 1) + step] = a[size * (i + step + 1) + step] / a[size * step + step];
}

kernel void eliminate(global const float *m, global float *a, global float *b, int size, int step) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= size - 1 - step || y >= size - step)
        return;
    int row = x + 1 + step;
    a[size * row + y + step] -= m[size * row + step] * a[size * step + y + step];
    if (y == 0)
        b[row] -= m[size * row + step] * b[step];
}
