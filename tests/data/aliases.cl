// Given one buffer twice, as memory of two types.
kernel void both(global float *a, global uint *b)
{
    uint x = *b;
    *a = 1.0f;
    b[1] = x + *b;
}
