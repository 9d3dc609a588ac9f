float filter(float x);

kernel void filtered(global float *x) {
    size_t i = get_global_id(0);
    x[i] = filter(x[i]);
}
