//@ emit
//@ check levels(in[4096], out[4096], table[1024]) over 1024
//@ check levels(in[4096], out[4096], table[1020]) over 1024

// Choice by a switch, with a table in constant memory.
kernel void levels(global const int *in, global float *out, constant float *table) {
    int value = in[get_global_id(0)];
    float result;
    switch (value) {
    case 0:
        result = 0.0f;
        break;
    case 1:
    case 2:
        result = 1.5f;
        break;
    case 100:
        result = -1.0f;
        break;
    default:
        result = table[value & 255];
    }
    out[get_global_id(0)] = result;
}
