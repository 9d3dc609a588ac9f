// Reaches what lies before a pointer, with `by` below zero.
kernel void around(global const float *x, global float *y, uint by)
{
    size_t i = get_global_id(0);
    float all[8] = {0};
    float *middle = all + 4;
    for (int n = 0; n < 4; ++n)
        middle[(int)by + n] = x[i] + n;
    y[i] = all[0] + 2 * all[1];
}
