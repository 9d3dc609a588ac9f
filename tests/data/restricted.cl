// What is only read may be given twice, even where the program says that nobody else points to it.
kernel void accumulate(global const uint *restrict a, global const uint *b, global uint *c, int n)
{
    size_t i = get_global_id(0);
    for (int k = 0; k < n; ++k) {
        uint x = b[i];
        uint y = a[i];
        c[i] += x * y;
    }
}

kernel void copy(global const uint *c, global uint *d)
{
    d[get_global_id(0)] = c[get_global_id(0)];
}
