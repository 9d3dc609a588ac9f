kernel void twice(global double *x)
{
    *x *= 2;
}
